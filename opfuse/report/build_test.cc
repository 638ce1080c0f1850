#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "opfuse/report/report.h"
#include "opfuse/report/sample_run.h"

namespace opfuse::report {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Report build(const SampleRun& run, std::optional<RunEnd> end = RunEnd{0, 154.0}) {
  auto report = build_report(run.path(), end);
  EXPECT_TRUE(report.ok()) << (report.ok() ? "" : report.error().message);
  return report.ok() ? std::move(report.value()) : Report{};
}

Report build_tuned(const SampleRun& run) {
  run.write_config(run.config());
  run.write_process(4242, run.tuned_process());
  return build(run);
}

TEST(Build, TakesEverythingOfATunedRun) {
  SampleRun run;
  const Report report = build_tuned(run);
  EXPECT_EQ(report.outcome, Outcome::kTuned);
  EXPECT_EQ(report.step.operators, 1901);
  ASSERT_EQ(report.sites.size(), 1u);
  EXPECT_EQ(report.sites[0].calls, 49);
  EXPECT_EQ(report.sites[0].chain_column, 17);
  EXPECT_EQ(report.sites[0].shapes.at("f32[16,96,56,56]"), 4);
  EXPECT_EQ(report.verdict.sites[0].captured_calls, 49);
  EXPECT_EQ(report.run.exit_status, 0);
  EXPECT_DOUBLE_EQ(report.run.seconds, 154.0);
  EXPECT_THAT(report.plan_json, HasSubstr("\"replacements\""));
  EXPECT_THAT(report.trouble, IsEmpty());
}

TEST(Build, TimesAreThoseOfTheStepsThatTookTurns) {
  SampleRun run;
  run.write_config(run.config());
  Json process = run.tuned_process();
  process["steps"] = Json::array();
  const auto add = [&](double wall, const char* side) {
    process["steps"].push_back({{"step", 1}, {"wall", wall}, {"data", 0.5}, {"side", side}});
  };
  for (const char* side : {"plain", "old", "new", "new", "old", "new"})
    add(side[0] == 'o' ? 4 : 2, side);
  for (int i = 0; i < 9; ++i) add(1, "new");  // runs on, tuned, when the machine has more room
  run.write_process(4242, process);
  const Report report = build(run);
  EXPECT_EQ(report.old_side.steps, 2);
  EXPECT_EQ(report.new_side.steps, 3);
  EXPECT_DOUBLE_EQ(report.old_side.time_median_s, 4);
  EXPECT_DOUBLE_EQ(report.new_side.time_median_s, 2);
  EXPECT_DOUBLE_EQ(report.new_side.images_per_s, 8);
  EXPECT_DOUBLE_EQ(report.new_side.data_mean_s, 0.5);
}

TEST(Build, WithoutABatchThereAreNoImagesPerSecond) {
  SampleRun run;
  run.write_config(run.config());
  Json process = run.tuned_process();
  process["model"]["batch"] = nullptr;
  run.write_process(4242, process);
  EXPECT_EQ(build(run).old_side.images_per_s, 0);
}

TEST(Build, SecretsOfCommandAndEnvironmentAreMasked) {
  SampleRun run;
  const Report report = build_tuned(run);
  EXPECT_THAT(report.run.command, Contains("***"));
  EXPECT_THAT(report.run.command, Not(Contains(HasSubstr("hf_"))));
  EXPECT_THAT(report.run.environment,
              ElementsAre(std::pair("OMP_NUM_THREADS", "2"), std::pair("WANDB_API_KEY", "***")));
}

TEST(Build, ADamagedProcessFileIsNamedAndTheRestIsUsed) {
  SampleRun run;
  run.write_config(run.config());
  run.write_process(4242, run.tuned_process());
  run.write("state/process-77.json", "{\"pid\": 77,\n \"steps\": [");
  const Report report = build(run);
  EXPECT_EQ(report.outcome, Outcome::kTuned);
  EXPECT_THAT(report.trouble, ElementsAre(HasSubstr("process-77.json:2:12: expected JSON, found")));
}

TEST(Build, AFieldOfTheWrongTypeIsNamedAndTheRestIsUsed) {
  SampleRun run;
  run.write_config(run.config());
  Json process = run.tuned_process();
  process["result"]["sites"][0]["calls"] = "many";
  run.write_process(4242, process);
  const Report report = build(run);
  EXPECT_EQ(report.sites[0].calls, 0);
  EXPECT_EQ(report.sites[0].line, 80);
  EXPECT_THAT(
      report.trouble,
      ElementsAre("process-4242.json: result.sites[0].calls: expected a whole number, found "
                  "a string"));
}

TEST(Build, TheProcessWithStepsIsTheMainOneAndALauncherIsCounted) {
  SampleRun run;
  run.write_config(run.config());
  Json launcher = run.process("failed"), other = run.tuned_process(), main = run.tuned_process();
  launcher["steps"] = Json::array();
  launcher["outcome"] = nullptr;
  launcher["pid"] = 1;
  main["rank"] = 0;
  main["world_size"] = 2;
  other["rank"] = 1;
  other["pid"] = 3;
  other["outcome"] = "undecided";
  run.write_process(1, launcher);
  run.write_process(3, other);
  run.write_process(4242, main);
  const Report report = build(run);
  EXPECT_EQ(report.outcome, Outcome::kTuned);
  EXPECT_EQ(report.run.processes, 3);
  EXPECT_EQ(report.run.launchers, 1);
  ASSERT_EQ(report.processes.size(), 3u);
  EXPECT_TRUE(report.processes[0].main);
  EXPECT_EQ(report.processes[0].pid, 4242);
  EXPECT_THAT(report.trouble, ElementsAre(HasSubstr("rank 1 ended as undecided")));
  EXPECT_NEAR(report.old_side.images_per_s, 2 * 16 / report.old_side.time_median_s, 1e-9);
}

TEST(Build, AScriptThatEndedWithoutAnOutcomeEndedEarly) {
  SampleRun run;
  run.write_config(run.config());
  Json process = run.process("failed");
  process["outcome"] = nullptr;
  process["phase"] = "proving";
  run.write_process(4242, process);
  EXPECT_EQ(build(run, std::nullopt).outcome, Outcome::kRunning);
  const Report report = build(run, RunEnd{139, 20});
  EXPECT_EQ(report.outcome, Outcome::kEndedEarly);
  EXPECT_THAT(verdict_sentence(report), HasSubstr("status 139 while opfuse was proving"));
}

TEST(Build, NoProcessMeansNotArmedOnceTheScriptHasEnded) {
  SampleRun run;
  run.write_config(run.config());
  EXPECT_EQ(build(run, std::nullopt).outcome, Outcome::kRunning);
  EXPECT_EQ(build(run).outcome, Outcome::kNotArmed);
}

TEST(Build, SourceLinesAreShownUnlessTheFileChanged) {
  SampleRun run;
  const Report report = build_tuned(run);
  EXPECT_EQ(report.sites[0].source_first_line, 77);
  EXPECT_THAT(report.sites[0].source, Contains("        return SwishImplementation.apply(x)"));
  EXPECT_THAT(report.sites[0].chain_source, Contains("        result = i * torch.sigmoid(i)"));
  std::ofstream(run.source_path(), std::ios::app) << "\n# edited\n";
  const Report changed = build(run);
  EXPECT_THAT(changed.sites[0].source, IsEmpty());
  EXPECT_THAT(changed.trouble, ElementsAre(HasSubstr("changed since it ran")));
}

TEST(Build, AMissingConfigIsAnErrorThatNamesIt) {
  SampleRun run;
  const auto report = build_report(run.path());
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.error().message, HasSubstr("config.json: expected a file to read"));
}

TEST(Build, AnEditInAPackageGetsAModuleToImport) {
  SampleRun run;
  run.write_config(run.config());
  Json process = run.tuned_process();
  process["result"]["diffs"][0]["package"] = "efficientnet_pytorch";
  run.write_process(4242, process);
  const Report report = build(run);
  ASSERT_EQ(report.patch_modules.size(), 1u);
  EXPECT_EQ(report.patch_modules[0].name, "opfuse_patch_efficientnet_pytorch_utils.py");
  EXPECT_THAT(report.patch_modules[0].text, HasSubstr("        return nn.functional.silu(x)"));
  EXPECT_THAT(next_steps(report), Contains(HasSubstr("import it first")));
}

}  // namespace
}  // namespace opfuse::report
