#include "opfuse/cli/finish.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "opfuse/cli/child.h"
#include "opfuse/cli/run_directory.h"
#include "opfuse/cli/verb.h"
#include "opfuse/report/html.h"

namespace opfuse::cli {
namespace fs = std::filesystem;

namespace {

int terminal_width() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 60) return size.ws_col;
  return 100;
}

bool utf8_locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"})
    if (const char* value = std::getenv(name); value && *value) {
      const std::string text = value;
      return text.find("UTF-8") != std::string::npos || text.find("utf8") != std::string::npos;
    }
  return false;
}

// A hard link where that works: the traces may be large.
void provide(const fs::path& from, const fs::path& to) {
  std::error_code error;
  if (!fs::exists(from, error)) return;
  fs::remove(to, error);
  fs::create_hard_link(from, to, error);
  if (error) fs::copy_file(from, to, fs::copy_options::overwrite_existing, error);
}

void put(const std::string& path, const std::string& text, StateWatcher* watcher) {
  if (Status status = write_file(path, text); !status.ok())
    watcher->print("could not write " + status.error().message);
}

std::string joined_diffs(const report::Report& report) {
  std::string text;
  for (const auto& diff : report.diffs) {
    if (!diff.package.empty()) continue;  // not the user's file: a module to import instead
    // `git apply` and `patch` skip what stands before a diff.
    if (!diff.verified) text += "Not verified on this machine: for a device that is not here.\n";
    text += diff.diff;
  }
  return text;
}

void write_files(const LaunchOptions& options, const report::Report& report,
                 const std::string& run_dir, StateWatcher* watcher) {
  put(run_dir + "/report.json", report::report_to_json(report), watcher);
  if (!report.plan_json.empty()) put(run_dir + "/plan.json", report.plan_json, watcher);
  if (const std::string diffs = joined_diffs(report); !diffs.empty())
    put(run_dir + "/changes.diff", diffs, watcher);
  for (const auto& [name, target] :
       {std::pair{"trace_before", options.verb == "record" ? "trace.json" : "trace_before.json"},
        std::pair{"trace_after", "trace_after.json"},
        std::pair{"step_before", options.verb == "record" ? "step.ofr" : ""}})
    if (auto found = report.files.find(name); found != report.files.end() && *target)
      provide(fs::path(run_dir) / "state" / fs::path(found->second).filename(),
              fs::path(run_dir) / target);
  for (const auto& module : report.patch_modules)
    put(run_dir + "/" + module.name, module.text, watcher);
  put(run_dir + "/report.html", report::render_html(report, run_dir), watcher);
  if (options.markdown) put(run_dir + "/report.md", report::markdown_text(report), watcher);
  if (options.csv) put(run_dir + "/report.csv", report::csv_text(report), watcher);
}

int outcome_code(const LaunchOptions& options, const report::Report& report) {
  if (options.require_gain > 0 && report.outcome == report::Outcome::kTuned) {
    const auto ratio = report::total_ratio(report);
    if (!ratio || ratio->low < options.require_gain) return exit_code(report::Outcome::kNotFaster);
  }
  return exit_code(report.outcome);
}

void open_in_browser(const std::string& path) {
  Result<Child> child = Child::spawn({"xdg-open", path}, {});
  if (!child.ok()) say("--open: " + child.error().message);
}

}  // namespace

bool use_color(const std::string& when) {
  if (when == "always") return true;
  if (when == "never") return false;
  const char* no_color = std::getenv("NO_COLOR");
  return isatty(STDERR_FILENO) && !(no_color && *no_color);
}

int finish_run(const LaunchOptions& options, const std::string& run_dir,
               const std::optional<report::RunEnd>& end, StateWatcher* watcher) {
  Result<report::Report> report = report::build_report(run_dir, end);
  if (!report.ok()) {
    watcher->print("no report: " + report.error().message);
    return report::kExitDamagedInput;
  }
  write_files(options, *report, run_dir, watcher);
  if (watcher->claim_table(std::string(outcome_name(report->outcome)))) {
    report::TerminalOptions terminal;
    terminal.color = use_color(options.color);
    terminal.unicode = utf8_locale();
    terminal.width = terminal_width();
    watcher->print_block(report::terminal_text(*report, terminal));
    if (options.open) open_in_browser(run_dir + "/report.html");
  }
  return outcome_code(options, *report);
}

void remove_empty_run(const std::string& run_dir) {
  std::error_code ignored;
  const fs::path path(run_dir);
  fs::remove_all(path / "state", ignored);
  fs::remove(path / "config.json", ignored);
  if (!fs::is_empty(path, ignored)) return;
  fs::remove(path, ignored);
  const fs::path parent = path.parent_path(), link = parent / "latest";
  if (fs::is_symlink(link, ignored) && !fs::exists(link, ignored)) fs::remove(link, ignored);
  if (parent.filename() == "opfuse-report" && fs::is_empty(parent, ignored))
    fs::remove(parent, ignored);
}

}  // namespace opfuse::cli
