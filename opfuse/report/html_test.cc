#include "opfuse/report/html.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "opfuse/report/marks.h"
#include "opfuse/report/sample_run.h"
#include "opfuse/trace/chrome_writer.h"

namespace opfuse::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr size_t kLargestPage = 3 * 1000 * 1000;

Report report_of(const SampleRun& run, const Json& process, int exit_status = 0) {
  run.write_config(run.config());
  run.write_process(4242, process);
  auto report = build_report(run.path(), RunEnd{exit_status, 154.0});
  EXPECT_TRUE(report.ok()) << (report.ok() ? "" : report.error().message);
  return std::move(report.value());
}

StepRecords records_of(const SampleRun& run, int extra = 0) {
  return {sample_step(run.source_path(), false, extra),
          sample_step(run.source_path(), true, extra)};
}

TEST(Html, HoldsTheVerdictAndReachesForNothingOutside) {
  SampleRun run;
  const std::string html = render_html(report_of(run, run.tuned_process()), records_of(run));
  EXPECT_THAT(html, HasSubstr("<title>Training is 1.27x as fast"));
  EXPECT_THAT(html, HasSubstr("default-src 'none'"));
  for (const char* outside : {"src=\"http", "href=\"http", "@import", "url(http", "fetch(", "{{"})
    EXPECT_THAT(html, Not(HasSubstr(outside)));
  EXPECT_LT(html.size(), kLargestPage);
}

TEST(Html, TextOfTheRunCannotEndAScriptOrATitle) {
  SampleRun run;
  Json process = run.tuned_process();
  process["outcome"] = "failed";
  process["reason"] = "</title><script>alert(1)</script><!-- <script>";
  auto records = records_of(run);
  records.before->events[0].name = records.before->strings.intern("</script><b>aten::evil");
  const std::string html = render_html(report_of(run, process), records);
  EXPECT_THAT(html, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(html, Not(HasSubstr("</script><b>")));
  EXPECT_THAT(html, HasSubstr("\\u003c/script>\\u003cb>aten::evil"));
}

TEST(Html, TwoStepsOfThirtyThousandEventsStayBelowTheLimit) {
  SampleRun run;
  const auto records = records_of(run, 30000);
  EXPECT_GT(records.before->events.size(), 30000u);
  EXPECT_LT(render_html(report_of(run, run.tuned_process()), records).size(), kLargestPage);
}

TEST(Html, EveryOutcomeHasAPageThatSaysWhatToDoNext) {
  for (const char* outcome : {"tuned", "nothing_found", "not_faster", "refused", "undecided",
                              "failed", "recorded", "plan_applied", "dry_run"}) {
    SampleRun run;
    const Report report = report_of(run, run.process(outcome));
    EXPECT_EQ(outcome_name(report.outcome), outcome);
    EXPECT_FALSE(next_steps(report).empty()) << outcome;
    EXPECT_THAT(render_html(report, StepRecords{}), HasSubstr("What to do next")) << outcome;
  }
}

std::vector<trace::Mark> chrome_marks(const trace::EventTable& table, const Report& report) {
  const ChainMarks marks = mark_chains(table, report, Side::kBefore);
  std::vector<trace::Mark> list;
  for (size_t i = 0; i < marks.calls.size(); ++i)
    for (int32_t row : marks.calls[i].forward)
      list.push_back({row, "silu", marks.calls[i].site, static_cast<int32_t>(i)});
  return list;
}

// Python imports these: the package as it was, and the module that edits it on import.
TEST(Html, WritesASamplePatchModule) {
  const char* wanted = std::getenv("OPFUSE_REPORT_SAMPLES");
  const std::filesystem::path folder =
      (wanted ? wanted : ::testing::TempDir() + "opfuse_report_samples") + std::string("/patch");
  SampleRun run;
  Json process = run.tuned_process();
  process["result"]["diffs"][0]["package"] = "efficientnet_pytorch";
  const Report report = report_of(run, process);
  ASSERT_EQ(report.patch_modules.size(), 1u);
  std::filesystem::create_directories(folder / "efficientnet_pytorch");
  std::filesystem::copy_file(run.source_path(), folder / "efficientnet_pytorch/utils.py",
                             std::filesystem::copy_options::overwrite_existing);
  std::ofstream(folder / report.patch_modules[0].name) << report.patch_modules[0].text;
}

// The browser tests look at these pages: OPFUSE_REPORT_SAMPLES names the folder.
TEST(Html, WritesSamplePages) {
  const char* wanted = std::getenv("OPFUSE_REPORT_SAMPLES");
  const std::filesystem::path folder =
      wanted ? wanted : ::testing::TempDir() + "opfuse_report_samples";
  std::filesystem::create_directories(folder);
  const auto write = [&](const std::string& name, const std::string& html) {
    std::ofstream(folder / (name + ".html"), std::ios::binary) << html;
    EXPECT_GT(html.size(), 10000u) << name;
  };
  for (const char* outcome : {"tuned", "not_faster", "undecided"}) {
    SampleRun run;
    write(outcome, render_html(report_of(run, run.process(outcome)), records_of(run)));
  }
  for (const char* outcome : {"nothing_found", "refused", "recorded", "dry_run", "plan_applied"}) {
    SampleRun run;
    StepRecords records = records_of(run);
    records.after.reset();
    write(outcome, render_html(report_of(run, run.process(outcome)), records));
  }
  SampleRun traced;
  const Report report = report_of(traced, traced.tuned_process());
  const auto table = sample_step(traced.source_path(), false);
  EXPECT_TRUE(trace::write_chrome_trace(table, {chrome_marks(table, report), "python main.py"},
                                        (folder / "trace_before.json").string())
                  .ok());
  SampleRun failed, ended, large, unarmed;
  write("failed", render_html(report_of(failed, failed.process("failed")), StepRecords{}));
  Json early = ended.process("failed");
  early["outcome"] = nullptr;
  early["phase"] = "measuring";
  write("ended_early", render_html(report_of(ended, early, 1), StepRecords{}));
  write("large", render_html(report_of(large, large.tuned_process()), records_of(large, 10000)));
  unarmed.write_config(unarmed.config());
  write("not_armed", render_html(*build_report(unarmed.path(), RunEnd{0, 2.0}), StepRecords{}));
}

}  // namespace
}  // namespace opfuse::report
