#include <gmock/gmock.h>

#include "opfuse/report/report.h"
#include "opfuse/report/sample_run.h"

namespace opfuse::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Report report_of(const std::string& outcome) {
  SampleRun run;
  run.write_config(run.config());
  run.write_process(4242, run.process(outcome));
  Report report = std::move(build_report(run.path(), RunEnd{0, 154.0}).value());
  report.run.report_dir = "opfuse-report/main-20260301-1412";
  report.run.command = {"python", "main.py"};
  report.trouble.clear();
  return report;
}

TEST(Terminal, TheTableOfATunedRun) {
  EXPECT_EQ(terminal_text(report_of("tuned")),
            R"(opfuse  EfficientNet, 1 process, step = SGD.step, 1,901 operators a step
  chain  site                   calls  now           becomes    same function  error     step
  silu   utils.py:80 (via :67)     49  x*sigmoid(x)  F.silu(x)  proved, E1     1.0x old  1.27x [1.19, 1.34]
  domain: F.silu(x) takes floating only and raises otherwise; --strict avoids that
  step  2.47 s -> 1.94 s    6.5 -> 8.2 images/s    1.27x [1.21, 1.32]   (fresh 12 pairs after the choice)
  DATA  12.0 ms -> 12.0 ms between steps, not in TIME
  near miss: 16 calls silu: sigmoid(a)*b with a and b two values: a gate, not silu (model.py:112)
  cost  recording and proof took 7.4 plain steps' time, peak memory 3.6 GiB
  next: Keep the edit: `opfuse apply opfuse-report/main-20260301-1412`, then commit it.
  next: Use the plan from the first step on, without measuring: `opfuse run --plan
        opfuse-report/main-20260301-1412/plan.json -- python main.py`.
  opfuse-report/main-20260301-1412/: report.html changes.diff plan.json report.json
  trace_before.json trace_after.json
)");
}

TEST(Terminal, ARefusalSaysWhatWhyAndWhatNext) {
  const std::string text = terminal_text(report_of("refused"));
  EXPECT_THAT(text,
              HasSubstr("Found, but left alone: x*sigmoid(x) at utils.py:80 (49 calls a step)"));
  EXPECT_THAT(text, HasSubstr("is kept by Python: self.last = s"));
  EXPECT_THAT(text, HasSubstr("next: Why, in full: `opfuse explain utils.py:80`."));
}

TEST(Terminal, ChainsOfRulesThatReplaceNothingAreOneLine) {
  Report report = report_of("tuned");
  for (int calls : {16, 1}) {
    Site& site = report.sites.emplace_back(report.sites[0]);
    site.found_only = true;
    site.calls = calls;
    site.refusal = Refusal{0, "a reason that few want", ""};
  }
  const std::string text = terminal_text(report);
  EXPECT_THAT(text, HasSubstr("found only: 2 chains (17 calls) of rules that replace nothing yet"));
  EXPECT_THAT(text, Not(HasSubstr("a reason that few want")));
  report.sites.back().found_only = false;
  EXPECT_THAT(terminal_text(report), HasSubstr("not replaced: 1 call x*sigmoid(x): a reason"));

  const auto back = parse_report(report_to_json(report), "report.json");
  ASSERT_TRUE(back.ok());
  EXPECT_TRUE(back->sites[1].found_only);
  EXPECT_FALSE(back->sites[2].found_only);
}

TEST(Terminal, TheThreeLargestChainsThatNoRuleKnowsAreNamed) {
  Report report = report_of("tuned");
  for (int i = 0; i < 5; ++i) {
    Candidate& one = report.candidates.emplace_back();
    one.operators = {"aten.sub.Tensor", "aten.detach", "aten.exp"};
    one.file = "/home/me/model.py";
    one.line = 12 + i;
    one.calls = 3;
    one.bytes_saved = 4096;
    one.ms = 1.5;
    one.share = 0.125;
    one.backward = i == 1;
  }
  const std::string text = terminal_text(report);
  EXPECT_THAT(text, HasSubstr("no rule knows: 12.5% of the operators' time: sub, exp (3 calls, "
                              "model.py:12)"));
  EXPECT_THAT(text, HasSubstr("(3 calls, backward, model.py:13)"));
  EXPECT_THAT(text, HasSubstr("model.py:14"));
  EXPECT_THAT(text, Not(HasSubstr("model.py:15")));

  const auto back = parse_report(report_to_json(report), "report.json");
  ASSERT_TRUE(back.ok());
  ASSERT_EQ(back->candidates.size(), 5u);
  const Candidate& second = back->candidates[1];
  EXPECT_EQ(second.operators, report.candidates[1].operators);
  EXPECT_EQ(second.file, "/home/me/model.py");
  EXPECT_EQ(second.line, 13);
  EXPECT_EQ(second.calls, 3);
  EXPECT_EQ(second.bytes_saved, 4096);
  EXPECT_EQ(second.ms, 1.5);
  EXPECT_EQ(second.share, 0.125);
  EXPECT_TRUE(second.backward);
}

TEST(Terminal, SeveralSitesShareTheirLines) {
  Report tuned = report_of("tuned");
  tuned.sites.push_back(tuned.sites[0]);
  const std::string text = terminal_text(tuned);
  const size_t first = text.find("  domain: ");
  ASSERT_NE(first, text.npos);
  EXPECT_EQ(text.find("  domain: ", first + 1), text.npos);

  tuned.sites[1].refusal = Refusal{22, "why", ""};  // what was refused had no part in the gain
  EXPECT_THAT(terminal_text(tuned), HasSubstr("1.0x old  1.27x [1.19, 1.34]"));

  Report refused = report_of("refused");
  refused.sites.push_back(refused.sites[0]);
  refused.sites[1].refusal->reason = "another reason";
  EXPECT_THAT(terminal_text(refused), HasSubstr("(and 1 other reason below)"));
}

Lever memory_lever() {
  Lever lever;
  lever.name = "memory", lever.what = "CPU memory of tensors is kept and reused";
  lever.outcome = "tuned", lever.kept = true;
  lever.lines = {"import opfuse.memory", "opfuse.memory.use_caching_allocator()"};
  lever.speed.headline_wall = {1.5, 1.4, 1.6, 12};
  return lever;
}

TEST(Terminal, LeversAreRowsOfTheirOwn) {
  TerminalOptions wide;
  wide.width = 400;
  Report report = report_of("tuned");
  report.levers = {memory_lever()};
  report.together.headline_wall = {1.9, 1.8, 2.0, 12};
  report.together.old_step_s = 2, report.together.new_step_s = 1;
  const std::string text = terminal_text(report, wide);
  EXPECT_THAT(text, HasSubstr("step  2.47 s -> 1.94 s    6.5 -> 8.2 images/s    1.27x [1.21"));
  EXPECT_THAT(text, HasSubstr("lever  memory, CPU memory of tensors is kept and reused: 1.50x "
                              "[1.40, 1.60] over 12 pairs, kept"));
  EXPECT_THAT(text, HasSubstr("all   2.00 s -> 1.00 s    8.0 -> 16.0 images/s    1.90x [1.80, "
                              "2.00]   (12 fresh pairs, everything that is kept"));
  EXPECT_THAT(text, HasSubstr("Keep the lever memory: `import opfuse.memory; "
                              "opfuse.memory.use_caching_allocator()`"));
  EXPECT_THAT(verdict_sentence(report),
              HasSubstr("by F.silu(x); 1.90x with the lever memory (CPU memory of tensors"));
  EXPECT_DOUBLE_EQ(total_ratio(report)->ratio, 1.9);
}

TEST(Terminal, KindsThatWereTriedByThemselvesAreRows) {
  TerminalOptions wide;
  wide.width = 400;
  Report report = report_of("tuned");
  Lever kind = memory_lever();
  kind.name = "mish", kind.what = "torch.nn.functional.mish at 2 places, 8 calls";
  kind.kept = false;
  report.search = {kind};
  EXPECT_THAT(terminal_text(report, wide),
              HasSubstr("kind   mish, torch.nn.functional.mish at 2 places, 8 calls: 1.50x [1.40, "
                        "1.60] over 12 pairs, not kept"));
}

TEST(Terminal, ALeverAloneIsTheVerdict) {
  Report report = report_of("nothing_found");
  report.outcome = Outcome::kTuned;
  report.levers = {memory_lever()};
  EXPECT_THAT(verdict_sentence(report),
              HasSubstr("Training is 1.50x as fast with the lever memory (CPU memory of tensors "
                        "is kept and reused); no operator was replaced."));
  EXPECT_DOUBLE_EQ(total_ratio(report)->ratio, 1.5);
  report.levers[0].kept = false;
  report.levers[0].speed = {};
  report.levers[0].reason = "the model is on cuda";
  EXPECT_THAT(terminal_text(report), HasSubstr("the model is on cuda"));
}

TEST(Terminal, ANotebookIsToldWhatItCanDo) {
  Report report = report_of("tuned");
  report.run.command = {"notebook"};
  EXPECT_THAT(next_steps(report), testing::Contains(HasSubstr("change the cells as")));
  EXPECT_THAT(next_steps(report), testing::Not(testing::Contains(HasSubstr("opfuse run"))));
  report.outcome = Outcome::kUndecided;
  EXPECT_THAT(next_steps(report), testing::Contains(HasSubstr("with opfuse.tune(budget=256):")));
}

TEST(Terminal, EachOutcomeSaysItsVerdict) {
  const std::pair<const char*, const char*> expected[] = {
      {"nothing_found",
       "Nothing to replace: no chain of the rulebook is among the 1,901 operators"},
      {"not_faster", "No gain: with x*sigmoid(x)"},
      {"undecided", "Undecided: after 40 counted steps the ratio is 1.03x [0.97, 1.09]"},
      {"failed", "opfuse failed and took itself out of the way: proving: the replay ran out"},
      {"recorded", "One step is recorded: 1,901 operators of EfficientNet."},
      {"plan_applied", "The plan runs: one edit at utils.py:80 replaces x*sigmoid(x)"},
      {"dry_run", "Dry run: x*sigmoid(x) at utils.py:80 (49 calls a step) can be replaced"}};
  for (const auto& [outcome, sentence] : expected) {
    TerminalOptions wide;
    wide.width = 400;
    const std::string text = terminal_text(report_of(outcome), wide);
    EXPECT_THAT(text, HasSubstr(sentence)) << outcome;
    EXPECT_THAT(text, HasSubstr("  next: ")) << outcome;
  }
}

TEST(Terminal, TextOfTheRunCannotSendControlCharacters) {
  Report report = report_of("tuned");
  report.trouble = {"\x1b[2Jgone"};
  report.sites[0].now = "x\x07*y";
  EXPECT_THAT(terminal_text(report), Not(HasSubstr("\x1b")));
  EXPECT_THAT(terminal_text(report), Not(HasSubstr("\x07")));
}

TEST(Terminal, ColourAddsNothingButColour) {
  const Report report = report_of("tuned");
  TerminalOptions options;
  options.color = true;
  std::string text = terminal_text(report, options);
  EXPECT_THAT(text, HasSubstr("\x1b[1;32m"));
  for (size_t at; (at = text.find('\x1b')) != std::string::npos;)
    text.erase(at, text.find('m', at) - at + 1);
  EXPECT_EQ(text, terminal_text(report));
}

TEST(Terminal, CompareShowsBothAndSaysWhenConditionsDiffer) {
  const Report before = report_of("not_faster");
  Report after = report_of("tuned");
  TerminalOptions wide;
  wide.width = 400;
  EXPECT_THAT(compare_text(before, after, wide), HasSubstr("TIME at the end of each run: "));
  after.run.threads = 8;
  const std::string text = compare_text(before, after, wide);
  EXPECT_THAT(text, HasSubstr("Not comparable by TIME, because of different threads."));
  EXPECT_THAT(text, HasSubstr("0.99x [0.97, 1.01], 12 pairs      1.27x [1.21, 1.32], 12 pairs"));
}

TEST(Markdown, HoldsTablesDiffAndCommand) {
  const std::string text = markdown_text(report_of("tuned"));
  EXPECT_THAT(text, HasSubstr("| TIME, median | "));
  EXPECT_THAT(text, HasSubstr("```diff\n--- a/efficientnet_pytorch/utils.py"));
  EXPECT_THAT(text, HasSubstr("```sh\npython main.py\n```"));
  EXPECT_THAT(text, HasSubstr("x\\*sigmoid(x)"));
}

TEST(Csv, QuotesWhatHoldsACommaAndHasOneRowForTheStep) {
  Report report = report_of("tuned");
  report.sites[0].now = "f(x, \"y\")";
  const std::string text = csv_text(report);
  EXPECT_THAT(text, HasSubstr(",\"f(x, \"\"y\"\")\",F.silu(x),kept,E1,212.5,611,"));
  EXPECT_THAT(text, HasSubstr("step,,,,,,,tuned,,,,2.47,"));
  EXPECT_TRUE(text.ends_with(",1.27,1.21,1.32,12\r\n")) << text;
}

}  // namespace
}  // namespace opfuse::report
