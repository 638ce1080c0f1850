// One row for each site, then one for the step; RFC 4180, so that a spreadsheet reads it.
#include <fmt/format.h>

#include "opfuse/report/format.h"

namespace opfuse::report {
namespace {

std::string field(std::string_view text) {
  const bool plain = text.find_first_of(",\"\r\n") == std::string_view::npos;
  if (plain) return std::string(text);
  std::string quoted = "\"";
  for (char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string row(const std::vector<std::string>& fields) {
  std::string text;
  for (size_t i = 0; i < fields.size(); ++i) text += (i ? "," : "") + field(fields[i]);
  return text + "\r\n";
}

std::string number(double value) { return value > 0 ? fmt::format("{:.9g}", value) : ""; }

std::string kept_text(const Site& site) {
  if (site.refusal) return "refused";
  if (!site.kept) return "not measured";
  return *site.kept ? "kept" : "not kept";
}

}  // namespace

std::string csv_text(const Report& report) {
  std::string text =
      row({"kind", "rule", "file", "line", "calls", "now", "becomes", "status", "equivalence",
           "forward_ms", "backward_ms", "old_s", "new_s", "ratio", "low", "high", "pairs"});
  for (const Site& site : report.sites)
    text +=
        row({"site", site.rule, site.file, std::to_string(site.line), std::to_string(site.calls),
             site.now, site.becomes, kept_text(site), site.equivalence, number(site.forward_ms),
             number(site.backward_ms), "", "", "", "", "", ""});
  const auto ratio = headline_ratio(report);
  const auto interval = ratio.value_or(verify::RatioInterval{});
  return text + row({"step", "", "", "", "", "", "", std::string(outcome_name(report.outcome)), "",
                     "", "", number(report.speed.old_step_s), number(report.speed.new_step_s),
                     number(interval.ratio), number(interval.low), number(interval.high),
                     ratio ? std::to_string(ratio->pairs) : ""});
}

}  // namespace opfuse::report
