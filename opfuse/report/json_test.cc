#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>

#include "opfuse/report/report.h"
#include "opfuse/report/sample_run.h"

namespace opfuse::report {
namespace {

using ::testing::HasSubstr;

Report sample_report() {
  SampleRun run;
  run.write_config(run.config());
  run.write_process(4242, run.tuned_process());
  return std::move(build_report(run.path(), RunEnd{0, 154.0}).value());
}

std::string error_of(const std::string& json) {
  const auto report = parse_report(json, "report.json");
  return report.ok() ? "" : report.error().message;
}

TEST(ReportJson, LeversReadBack) {
  Report report;
  Lever& lever = report.levers.emplace_back();
  lever.name = "memory", lever.what = "what", lever.outcome = "tuned", lever.kept = true;
  lever.lines = {"import x"}, lever.where = "here";
  report.levers[0].speed.headline_wall = {1.5, 1.4, 1.6, 12};
  report.search = report.levers;
  report.together.headline_wall = {2, 1.9, 2.1, 12};
  const auto back = parse_report(report_to_json(report), "report.json");
  ASSERT_TRUE(back.ok()) << back.error().message;
  ASSERT_EQ(back->levers.size(), 1u);
  ASSERT_EQ(back->search.size(), 1u);
  EXPECT_EQ(back->search[0].speed.headline_wall.pairs, 12);
  EXPECT_TRUE(back->levers[0].kept);
  EXPECT_EQ(back->levers[0].lines, std::vector<std::string>{"import x"});
  EXPECT_EQ(back->levers[0].where, "here");
  EXPECT_EQ(back->levers[0].speed.headline_wall.pairs, 12);
  EXPECT_DOUBLE_EQ(back->together.headline_wall.ratio, 2);
}

TEST(ReportJson, ReadsBackWhatItWrote) {
  const std::string json = report_to_json(sample_report());
  const auto report = parse_report(json, "report.json");
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report_to_json(*report), json);
}

TEST(ReportJson, EveryOutcomeReadsBack) {
  for (const char* outcome : {"nothing_found", "not_faster", "refused", "undecided", "failed",
                              "recorded", "plan_applied", "dry_run", "ended_early", "not_armed"}) {
    Report report = sample_report();
    report.outcome = outcome_from_name(outcome).value();
    const std::string json = report_to_json(report);
    const auto read = parse_report(json, "report.json");
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(report_to_json(*read), json);
  }
}

TEST(ReportJson, IsStrictForNumbersAndTextThatJsonDoesNotHave) {
  Report report = sample_report();
  report.reason = "bytes \xff\xfe";
  report.speed.headline_wall.high = std::nan("");
  const std::string json = report_to_json(report);
  EXPECT_EQ(json.find("nan"), std::string::npos);
  EXPECT_EQ(error_of(json), "");
}

TEST(ReportJson, ErrorsSayWhere) {
  EXPECT_EQ(error_of(""), "report.json:1:1: expected JSON, found an empty file");
  EXPECT_THAT(error_of("{\n \"schema_version\": x"), HasSubstr("report.json:2:20: expected JSON"));
  EXPECT_EQ(error_of("[]"), "report.json: expected a report, found another JSON value");
  EXPECT_EQ(error_of("{}"), "report.json: schema_version: expected 1, found none");
  EXPECT_THAT(error_of(R"({"schema_version": 2})"), HasSubstr("found 2; a newer opfuse wrote it"));
  EXPECT_THAT(error_of(R"({"schema_version": 1, "outcome": "good"})"),
              HasSubstr("report.json: outcome: expected one of the outcomes"));
  EXPECT_EQ(error_of(R"({"schema_version": 1, "outcome": "tuned", "sites": [{"line": "x"}]})"),
            "report.json: sites[0].line: expected a whole number, found a string");
  EXPECT_EQ(error_of(R"({"schema_version": 1, "outcome": "tuned", "run": 3})"),
            "report.json: run: expected an object, found another number");
}

// Names of the fields of `json`, but not those of objects whose names are data.
void collect_names(const nlohmann::ordered_json& json, std::set<std::string>* names) {
  if (json.is_array())
    for (const auto& element : json) collect_names(element, names);
  if (!json.is_object()) return;
  for (const auto& [name, value] : json.items()) {
    names->insert(name);
    if (name != "shapes" && name != "losses") collect_names(value, names);
  }
}

TEST(ReportJson, EveryFieldIsInTheManual) {
  std::ifstream in(std::string(OPFUSE_SOURCE_DIR) + "/docs/report-schema.md");
  const std::string manual{std::istreambuf_iterator<char>(in), {}};
  std::set<std::string> names;
  collect_names(Json::parse(report_to_json(sample_report())), &names);
  EXPECT_GT(names.size(), 100u);
  for (const std::string& name : names)
    EXPECT_TRUE(std::regex_search(manual, std::regex("\\b" + name + "\\b"))) << name;
}

TEST(ReportJson, AMissingFileIsNamed) {
  const auto report = read_report("/no/such/folder");
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.error().message, HasSubstr("/no/such/folder: expected a report.json"));
}

TEST(ReportJson, ExitCodesAreThoseOfTheManual) {
  EXPECT_EQ(exit_code(Outcome::kTuned), 0);
  EXPECT_EQ(exit_code(Outcome::kNothingFound), 3);
  EXPECT_EQ(exit_code(Outcome::kNotFaster), 4);
  EXPECT_EQ(exit_code(Outcome::kRefused), 5);
  EXPECT_EQ(exit_code(Outcome::kUndecided), 7);
}

}  // namespace
}  // namespace opfuse::report
