// The report as a Markdown section, for an issue or a commit message.
#include <fmt/format.h>

#include "opfuse/report/format.h"

namespace opfuse::report {
namespace {

// Inside a table cell.
std::string cell(std::string_view text) {
  std::string escaped;
  for (char c : text) {
    if (c == '\n' || c == '\r') c = ' ';
    if (std::string_view("|<>*_`\\[]").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

// A fence longer than any run of backticks inside.
std::string fenced(const std::string& text, std::string_view language) {
  size_t longest = 2, run = 0;
  for (char c : text) {
    run = c == '`' ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  const std::string fence(longest + 1, '`');
  return fence + std::string(language) + "\n" + text + (text.ends_with('\n') ? "" : "\n") + fence +
         "\n";
}

std::string sites_table(const Report& report) {
  if (report.sites.empty()) return "";
  std::string text =
      "| chain | site | calls | now | becomes | same function | error |\n"
      "|---|---|---:|---|---|---|---|\n";
  for (const Site& site : report.sites)
    text += fmt::format(
        "| {} | {} | {} | {} | {} | {} | {} |\n", cell(site.rule), cell(place_of(site)),
        format_count(site.calls), cell(site.now), cell(site.becomes),
        cell(site.refusal ? "refused: " + site.refusal->reason : proof_text(report, site)),
        cell(error_text(report, site)));
  return text + "\n";
}

std::string times_table(const Report& report) {
  if (report.old_side.steps == 0 || report.new_side.steps == 0) return "";
  std::string text = "| | original | replaced |\n|---|---:|---:|\n";
  const SideTimes &a = report.old_side, &b = report.new_side;
  text += fmt::format("| TIME, median | {} | {} |\n", format_seconds(a.time_median_s),
                      format_seconds(b.time_median_s));
  text += fmt::format("| TIME, mean | {} | {} |\n", format_seconds(a.time_mean_s),
                      format_seconds(b.time_mean_s));
  text += fmt::format("| DATA, mean | {} | {} |\n", format_seconds(a.data_mean_s),
                      format_seconds(b.data_mean_s));
  if (a.images_per_s > 0 && b.images_per_s > 0)
    text += fmt::format("| images/s | {} | {} |\n", format_rate(a.images_per_s),
                        format_rate(b.images_per_s));
  return text + "\n";
}

}  // namespace

std::string markdown_text(const Report& report) {
  std::string text = "## opfuse: " + cell(verdict_sentence(report)) + "\n\n";
  if (const auto ratio = headline_ratio(report))
    text += fmt::format("Step ratio {} ({}).\n\n", cell(format_interval(*ratio)),
                        plural(ratio->pairs, "pair"));
  text += times_table(report) + sites_table(report);
  for (const Diff& diff : report.diffs)
    if (!diff.diff.empty()) text += fenced(diff.diff, "diff") + "\n";
  text += fenced(shell_quoted(report.run.command), "sh") + "\n";
  text += fmt::format("{}, {}, torch {}, python {}, opfuse {}\n",
                      cell(report.machine.cpu.empty() ? "unknown CPU" : report.machine.cpu),
                      plural(report.run.threads, "thread"), cell(report.versions.torch),
                      cell(report.versions.python), cell(report.versions.opfuse));
  for (const std::string& step : next_steps(report)) text += "- " + step + "\n";
  return text;
}

}  // namespace opfuse::report
