// view: one HTML file with the timeline of trace files.

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "opfuse/cli/trace_options.h"
#include "opfuse/cli/verb.h"
#include "opfuse/pipeline_trace.h"
#include "opfuse/report/report.h"
#include "opfuse/report/trace_view.h"

namespace opfuse::cli {
namespace {

class View : public Verb {
 public:
  std::string name() const override { return "view"; }
  std::string summary() const override { return "the timeline of trace files as one HTML file"; }
  std::string usage() const override { return "view TRACE… [-o FILE] [--step N]"; }
  std::string description() const override {
    return "Writes one HTML file that needs no network: every row of the traces on one time axis,\n"
           "w s a d to move, search, sums of a selection, chains marked. Several traces stand\n"
           "under each other. Execution traces hold no times and cannot be shown.\n"
           "\n"
           "  opfuse view trace.json.gz -o trace.html";
  }
  std::vector<Flag> flags() override {
    return {{"-o,--output", "FILE", "what to write (default opfuse-view.html)", &output_},
            {"-f,--force", "", "overwrite FILE", &force_},
            {"--step", "N", "only the step ProfilerStep#N", &step_}};
  }

  int run(const std::vector<std::string>& words) override {
    if (words.empty())
      return usage_error("view: expected a trace file, as in `opfuse view trace.json`");
    const Result<TraceOptions> options = trace_options(step_);
    if (!options.ok()) return usage_error("view: " + options.error().message);
    if (!force_ && std::filesystem::exists(output_))
      return usage_error("view: " + output_ + " exists; -f overwrites it");
    Result<match::Rulebook> rulebook = match::load_rulebook({}, graph::SchemaTable::builtin());
    if (!rulebook.ok()) return usage_error("view: " + rulebook.error().message);
    std::vector<TraceAnalysis> analyses;
    bool damaged = false;
    for (const std::string& path : words) {
      StageLog log;
      Result<TraceAnalysis> analysis = analyze_trace(path, *options, *rulebook, &log);
      if (!analysis.ok()) {
        say("view: " + analysis.error().message);
        return report::kExitDamagedInput;
      }
      if (analysis->file.table)
        return usage_error("view: " + path + ": this format holds no times");
      damaged = damaged || analysis->report.losses.damaged();
      analyses.push_back(std::move(*analysis));
    }
    return write(analyses, damaged);
  }

 private:
  int write(const std::vector<TraceAnalysis>& analyses, bool damaged) const {
    std::vector<report::TraceView> views;
    for (const TraceAnalysis& a : analyses)
      views.push_back({&a.file, &a.calls, &a.events, &a.report});
    std::ofstream file(output_, std::ios::binary);
    file << report::render_trace_html(views);
    file.close();
    if (!file) {
      say("view: " + output_ + ": could not be written");
      return 1;
    }
    say("view: wrote " + output_);
    return damaged ? report::kExitDamagedInput : 0;
  }

  std::string output_ = "opfuse-view.html", step_;
  bool force_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_view() { return std::make_unique<View>(); }

}  // namespace opfuse::cli
