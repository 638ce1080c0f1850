// analyze: chains of small operators in trace files of machines that are not here.

#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <future>

#include <fmt/format.h>

#include "opfuse/cli/finish.h"
#include "opfuse/cli/trace_options.h"
#include "opfuse/cli/verb.h"
#include "opfuse/pipeline_trace.h"
#include "opfuse/report/report.h"
#include "opfuse/report/trace_view.h"
#include "opfuse/trace/read_all.h"

namespace opfuse::cli {
namespace {

constexpr int kAboveThreshold = 1;

class Analyze : public Verb {
 public:
  std::string name() const override { return "analyze"; }
  std::string summary() const override { return "find chains of small operators in trace files"; }
  std::string usage() const override {
    return "analyze TRACE… [--json] [--html FILE] [--top N] [--step N]";
  }
  std::string description() const override {
    return "TRACE is a file that PyTorch's profiler wrote (Chrome trace, .json or .json.gz), or -\n"
           "for the standard input; or a folder or tar archive of such files, one a rank. Prints "
           "the\n"
           "chains by share of time: where, how often, what\n"
           "they cost, what the fused operator would cost (predicted from the trace's own\n"
           "kernels), and how sure the data flow is. The file is read as far as it is good; what\n"
           "is damaged is counted, and the exit status is then 6.\n"
           "\n"
           "  opfuse analyze trace.json.gz\n"
           "  opfuse analyze rank*.json.gz --html ranks.html   one page with tables and timelines\n"
           "  opfuse analyze --fail-above 5% trace.json      status 1 above 5% possible gain";
  }
  std::vector<Flag> flags() override {
    return {{"--json", "", "print JSON instead of text", &json_},
            {"--html", "FILE", "write one page as well, with the timeline", &html_},
            {"-f,--force", "", "overwrite FILE", &force_},
            {"--top", "N", "how many chains to print (default 10)", &top_},
            {"--step", "N", "only the step ProfilerStep#N", &step_},
            {"--rules", "FILE", "a file of more rules (docs/rulebook.md)", &rules_},
            {"--fail-above", "SHARE", "exit status 1 when more than SHARE of the time could go: 5%",
             &fail_above_},
            {"-v,--verbose", "", "print how long each stage took", &verbose_}};
  }

  int run(const std::vector<std::string>& words) override {
    if (words.empty())
      return usage_error("analyze: expected a trace file, as in `opfuse analyze trace.json`");
    double limit = 0;
    if (!parse_share(&limit))
      return usage_error("analyze: --fail-above: expected a share such as 5%, found '" +
                         fail_above_ + "'");
    if (!html_.empty() && !force_ && std::filesystem::exists(html_))
      return usage_error("analyze: " + html_ + " exists; -f overwrites it");
    const Result<TraceOptions> options = trace_options(step_);
    if (!options.ok()) return usage_error("analyze: " + options.error().message);
    // The rules take about as long to lower as a small file to read: both at once, but a mistake in
    // a file of the user's is told before anything is read.
    const Rules rules = std::async([files = rule_files()] {
      return match::load_rulebook(files, graph::SchemaTable::builtin());
    });
    if (!rules_.empty() && !rules.get().ok())
      return usage_error("analyze: " + rules.get().error().message);
    return analyze_all(words, *options, rules, limit);
  }

 private:
  using Rules = std::shared_future<Result<match::Rulebook>>;

  int analyze_all(const std::vector<std::string>& paths, const TraceOptions& options,
                  const Rules& rules, double limit) const {
    std::vector<report::TraceReport> reports;
    std::vector<TraceAnalysis> shown;  // for the page: the others are let go
    std::vector<std::string> skipped;
    const trace::ReadOptions reading{
        .threads = options.threads,
        .on_skip = [&](const std::string& path) { skipped.push_back(path); }};
    const Status status =
        trace::for_each_trace_of(paths, reading, [&](trace::TraceFile file) -> Status {
          if (!rules.get().ok()) return rules.get().error();
          StageLog log;
          OPFUSE_TRY(TraceAnalysis analysis,
                     analyze_trace_file(std::move(file), options, *rules.get(), &log));
          if (!json_) print_text(analysis.report, reports.empty());
          if (verbose_) print_times(log);
          reports.push_back(analysis.report);
          if (!html_.empty()) shown.push_back(std::move(analysis));
          return ok_status();
        });
    say_skipped(skipped);
    if (!status.ok()) {
      say("analyze: " + status.error().message);
      return report::kExitDamagedInput;
    }
    if (!html_.empty() && !write_page(shown)) return 1;
    if (json_) print_json(reports);
    if (!json_ && reports.size() > 1)
      std::fputs(report::traces_text(reports, top()).c_str(), stdout);
    bool damaged = false, above = false;
    for (const report::TraceReport& found : reports) {
      damaged = damaged || found.losses.damaged();
      above = above || (!fail_above_.empty() && report::possible_share(found) > limit);
    }
    if (damaged) return report::kExitDamagedInput;
    return above ? kAboveThreshold : 0;
  }

  static void say_skipped(const std::vector<std::string>& paths) {
    constexpr size_t kNamed = 10;
    if (paths.empty()) return;
    std::string names;
    for (size_t i = 0; i < paths.size() && i < kNamed; ++i)
      names += (i ? ", " : "") + std::filesystem::path(paths[i]).filename().string();
    if (paths.size() > kNamed) names += fmt::format(" and {} more", paths.size() - kNamed);
    say(fmt::format("analyze: passed over what is no trace: {}", names));
  }

  bool write_page(const std::vector<TraceAnalysis>& analyses) const {
    std::vector<report::TraceView> views;
    for (const TraceAnalysis& a : analyses)
      views.push_back({&a.file, &a.calls, &a.events, &a.report});
    std::ofstream file(html_, std::ios::binary);
    file << report::render_trace_html(views);
    file.close();
    say("analyze: " + html_ + (file ? ": written" : ": could not be written"));
    return static_cast<bool>(file);
  }

  size_t top() const { return static_cast<size_t>(std::max<int64_t>(top_, 0)); }

  void print_text(const report::TraceReport& found, bool first) const {
    if (!first) std::fputs("\n", stdout);
    std::fputs(report::trace_text(found, {top(), use_color("auto")}).c_str(), stdout);
  }

  static void print_json(const std::vector<report::TraceReport>& reports) {
    std::string list;
    for (const report::TraceReport& found : reports)
      list += (list.empty() ? "" : ",\n") + report::trace_json(found);
    std::fputs((reports.size() == 1 ? list : "[" + list + "]\n").c_str(), stdout);
  }

  std::vector<std::string> rule_files() const {
    return rules_.empty() ? std::vector<std::string>{} : std::vector{rules_};
  }

  static void print_times(const StageLog& log) {
    for (const auto& [stage, seconds] : log.seconds)
      say(fmt::format("{:<8} {:.3f} s", stage, seconds));
  }

  bool parse_share(double* share) const {
    if (fail_above_.empty()) return true;
    const char* last = fail_above_.data() + fail_above_.size();
    const auto [end, error] = std::from_chars(fail_above_.data(), last, *share);
    if (error != std::errc() || *share < 0) return false;
    if (end == last) return *share <= 1;
    *share /= 100;
    return end + 1 == last && *end == '%';
  }

  bool json_ = false, verbose_ = false, force_ = false;
  int64_t top_ = 10;
  std::string step_, fail_above_, rules_, html_;
};

}  // namespace

std::unique_ptr<Verb> make_analyze() { return std::make_unique<Analyze>(); }

}  // namespace opfuse::cli
