// compare: two reports or two trace files side by side.

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "opfuse/cli/finish.h"
#include "opfuse/cli/verb.h"
#include "opfuse/pipeline_trace.h"
#include "opfuse/report/report.h"
#include "opfuse/report/trace_compare.h"

namespace opfuse::cli {
namespace {

class Compare : public Verb {
 public:
  std::string name() const override { return "compare"; }
  std::string summary() const override { return "show two reports or two traces side by side"; }
  std::string usage() const override { return "compare BEFORE AFTER [--batch N] [--top N]"; }
  std::string description() const override {
    return "BEFORE and AFTER are report directories or report.json files of two runs: outcome, "
           "sites,\n"
           "TIME, images/s, ratio with interval, machine and versions side by side, and what "
           "differs\n"
           "in the conditions, so that unlike runs are not taken for a change.\n"
           "Two trace files are aligned by their operators in order: what became what at how many\n"
           "places, then counts and times by operator and module. Times are those under the\n"
           "profiler.\n"
           "\n"
           "  opfuse compare opfuse-report/main-20260301-1412 opfuse-report/latest\n"
           "  opfuse compare before.json.gz after.json.gz --batch 128";
  }
  std::vector<Flag> flags() override {
    return {{"--batch", "N", "images a step, for images/s of traces", &batch_},
            {"--top", "N", "how many lines of each table of traces (default 10)", &top_}};
  }
  int run(const std::vector<std::string>& words) override {
    if (words.size() != 2)
      return usage_error("compare: expected BEFORE and AFTER, found " +
                         std::to_string(words.size()) + " arguments");
    if (is_trace(words[0]) && is_trace(words[1])) return compare_files(words[0], words[1]);
    Result<report::Report> before = report::read_report(words[0]);
    if (!before.ok()) return damaged(before.error());
    Result<report::Report> after = report::read_report(words[1]);
    if (!after.ok()) return damaged(after.error());
    report::TerminalOptions terminal;
    terminal.color = use_color("auto");
    std::fputs(report::compare_text(*before, *after, terminal).c_str(), stdout);
    return 0;
  }

 private:
  // A report is a folder or a JSON object that says so near its beginning.
  static bool is_trace(const std::string& path) {
    if (std::filesystem::is_directory(path)) return false;
    std::ifstream file(path, std::ios::binary);
    std::string head(512, '\0');
    file.read(head.data(), static_cast<std::streamsize>(head.size()));
    head.resize(static_cast<size_t>(file.gcount()));
    return !head.empty() && head.find("\"schema_version\"") == std::string::npos;
  }

  int compare_files(const std::string& before_path, const std::string& after_path) const {
    Result<match::Rulebook> rulebook = match::load_rulebook({}, graph::SchemaTable::builtin());
    if (!rulebook.ok()) return usage_error("compare: " + rulebook.error().message);
    StageLog log;
    const TraceOptions options{};
    Result<TraceAnalysis> before = analyze_trace(before_path, options, *rulebook, &log);
    if (!before.ok()) return damaged(before.error());
    Result<TraceAnalysis> after = analyze_trace(after_path, options, *rulebook, &log);
    if (!after.ok()) return damaged(after.error());
    const auto comparison =
        report::compare_traces({&before->file, &before->inferred, &before->report},
                               {&after->file, &after->inferred, &after->report});
    std::fputs(report::comparison_text(comparison, before->report, after->report,
                                       static_cast<double>(batch_), static_cast<size_t>(top_))
                   .c_str(),
               stdout);
    int status = 0;
    for (const TraceAnalysis* side : {&*before, &*after}) {
      if (!side->report.losses.damaged()) continue;
      say("compare: " + side->report.path + " is damaged: `opfuse analyze` says where");
      status = report::kExitDamagedInput;
    }
    return status;
  }

  int64_t batch_ = 0, top_ = 10;

  static int damaged(const Error& error) {
    say("compare: " + error.message);
    return report::kExitDamagedInput;
  }
};

}  // namespace

std::unique_ptr<Verb> make_compare() { return std::make_unique<Compare>(); }

}  // namespace opfuse::cli
