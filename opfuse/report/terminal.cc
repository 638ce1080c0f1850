// The table that a run ends with, and two reports side by side.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "opfuse/report/advice.h"
#include "opfuse/report/format.h"

namespace opfuse::report {
namespace {

enum class Style { kPlain, kBold, kGood, kWarning, kDim };

struct Cell {
  std::string text;
  bool right = false;
  Style style = Style::kPlain;
};
using Row = std::vector<Cell>;

// Columns on a terminal: code points, since everything that is printed is narrow.
size_t columns_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

// Control characters of foreign text must not reach the terminal.
std::string printable(std::string_view text) {
  std::string clean;
  for (char c : text) clean += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
  return clean;
}

class Writer {
 public:
  explicit Writer(const TerminalOptions& options) : options_(options) {}

  std::string styled(const std::string& text, Style style) const {
    if (!options_.color || style == Style::kPlain) return text;
    const char* code = style == Style::kBold      ? "1"
                       : style == Style::kGood    ? "1;32"
                       : style == Style::kWarning ? "33"
                                                  : "2";
    return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
  }

  void line(const std::string& text, Style style = Style::kPlain) {
    out_ += styled(printable(text), style) + "\n";
  }

  // Wraps at spaces; lines after the first start under `text`.
  void wrapped(const std::string& label, const std::string& text, Style style = Style::kPlain) {
    const size_t indent = columns_of(label);
    const size_t width = std::max<size_t>(static_cast<size_t>(std::max(options_.width, 40)), 40);
    std::string current = label;
    size_t used = indent, words = 0;
    const std::string clean = printable(text);
    for (size_t at = 0; at < clean.size();) {
      const size_t space = std::min(clean.find(' ', at), clean.size());
      const std::string word = clean.substr(at, space - at);
      at = space + 1;
      if (word.empty()) continue;
      if (words > 0 && used + 1 + columns_of(word) > width) {
        out_ += styled(current, style) + "\n";
        current = std::string(indent, ' ');
        used = indent;
        words = 0;
      }
      if (words++ > 0) {
        current += ' ';
        ++used;
      }
      current += word;
      used += columns_of(word);
    }
    out_ += styled(current, style) + "\n";
  }

  void table(const std::vector<Row>& rows) {
    std::vector<size_t> widths;
    for (const Row& row : rows)
      for (size_t i = 0; i < row.size(); ++i) {
        if (i >= widths.size()) widths.push_back(0);
        widths[i] = std::max(widths[i], columns_of(row[i].text));
      }
    for (const Row& row : rows) {
      std::string text = " ";
      for (size_t i = 0; i < row.size(); ++i) {
        const std::string cell = printable(row[i].text);
        const std::string pad(widths[i] - columns_of(row[i].text), ' ');
        const bool last = i + 1 == row.size();
        text += ' ';
        if (row[i].right) text += pad;
        text += styled(cell, row[i].style);
        if (!row[i].right && !last) text += pad;
        if (!last) text += ' ';
      }
      while (text.ends_with(' ')) text.pop_back();
      out_ += text + "\n";
    }
  }

  std::string arrow() const { return options_.unicode ? "→" : "->"; }
  std::string take() { return std::move(out_); }

 private:
  TerminalOptions options_;
  std::string out_;
};

std::string processes_text(const Report& report) {
  const int with_steps = std::max(1, report.run.processes - report.run.launchers);
  return plural(with_steps, "process");
}

std::string title(const Report& report) {
  std::string text = "opfuse  ";
  text += report.step.root.empty() ? (report.run.script.empty() ? "run" : report.run.script)
                                   : report.step.root;
  text += ", " + processes_text(report);
  if (!report.step.boundary_name.empty()) {
    text += ", step = " + report.step.boundary_name;
  } else if (report.step.boundary_kind == "root") {
    text += ", step = forward of the model";
  }
  if (report.step.operators > 0)
    text += ", " + plural(report.step.operators, "operator") + " a step";
  return text;
}

// A chain's own gain is known when it was the only candidate.
std::string gain_text(const Report& report, const Site& site) {
  if (site.refusal) return "-";
  if (site.kept && !*site.kept && report.outcome == Outcome::kTuned) return "not kept";
  const auto tried = std::count_if(report.sites.begin(), report.sites.end(),
                                   [](const Site& other) { return !other.refusal; });
  if (tried == 1 && report.speed.choosing.pairs > 0) return format_interval(report.speed.choosing);
  return report.speed.choosing.pairs > 0 ? "with the others" : "not measured";
}

std::string domain_text(const Site& site) {
  std::string text = fmt::format(
      "{} {}", site.becomes,
      site.domain.starts_with("floating") ? "takes floating only and raises otherwise; " : ": ");
  if (site.domain.ends_with("finite"))
    text += "infinities, and numbers near the dtype's largest, become another infinity or NaN; ";
  return text + "--strict avoids that";
}

void write_sites(const Report& report, Writer* out) {
  std::vector<Row> rows = {{{"chain"},
                            {"site"},
                            {"calls", true},
                            {"now"},
                            {"becomes"},
                            {"same function"},
                            {"error"},
                            {"step"}}};
  for (Cell& cell : rows[0]) cell.style = Style::kDim;
  for (const Site& site : report.sites) {
    if (site.refusal) continue;
    rows.push_back({{site.rule, false, Style::kBold},
                    {place_of(site)},
                    {format_count(site.calls), true},
                    {site.now},
                    {site.becomes},
                    {proof_text(report, site)},
                    {error_text(report, site)},
                    {gain_text(report, site)}});
  }
  if (rows.size() > 1) out->table(rows);
  std::set<std::pair<std::string, std::string>> said;
  for (const Site& site : report.sites)
    if (!site.domain.empty() && !site.refusal && said.emplace(site.becomes, site.domain).second)
      out->wrapped("  domain: ", domain_text(site));
}

void write_step(const Report& report, Writer* out) {
  const auto ratio = headline_ratio(report);
  if (!ratio) return;
  std::string text = "  step  " + format_seconds(report.speed.old_step_s) + " " + out->arrow() +
                     " " + format_seconds(report.speed.new_step_s);
  if (report.old_side.images_per_s > 0 && report.new_side.images_per_s > 0)
    text += "    " + format_rate(report.old_side.images_per_s) + " " + out->arrow() + " " +
            format_rate(report.new_side.images_per_s) + " images/s";
  text += "    " + format_interval(*ratio);
  text += report.speed.headline_wall.pairs > 0
              ? fmt::format("   (fresh {} after the choice)", plural(ratio->pairs, "pair"))
              : fmt::format("   ({}, before the choice)", plural(ratio->pairs, "pair"));
  const bool tuned = report.outcome == Outcome::kTuned;
  out->line(text, tuned ? Style::kGood : Style::kPlain);
  if (report.new_side.steps > 0)
    out->line(fmt::format("  DATA  {} {} {} between steps, not in TIME",
                          format_seconds(report.old_side.data_mean_s), out->arrow(),
                          format_seconds(report.new_side.data_mean_s)),
              Style::kDim);
}

void write_tried(const char* label, const std::vector<Lever>& tried, Writer* out) {
  for (const Lever& lever : tried) {
    const auto ratio = ratio_of(lever.speed);
    const std::string gain =
        ratio ? fmt::format("{} over {}", format_interval(*ratio), plural(ratio->pairs, "pair"))
              : lever.reason;
    const std::string prepared =
        lever.prepare_s >= 0.1 ? fmt::format(" (prepared in {})", format_seconds(lever.prepare_s))
                               : "";
    out->wrapped(
        label,
        fmt::format("{}{}{}: {}{}{}", lever.name, lever.what.empty() ? "" : ", ", lever.what, gain,
                    ratio ? (lever.kept ? ", kept" : ", not kept") : "", ratio ? prepared : ""),
        lever.kept ? Style::kGood : Style::kPlain);
  }
}

void write_levers(const Report& report, Writer* out) {
  write_tried("  lever  ", report.levers, out);
  const auto all = ratio_of(report.together);
  if (!all) return;
  const double old_s = report.together.old_step_s, new_s = report.together.new_step_s;
  std::string text =
      "  all   " + format_seconds(old_s) + " " + out->arrow() + " " + format_seconds(new_s);
  const double batch = static_cast<double>(report.step.batch) * std::max(1, report.run.world_size);
  if (batch > 0 && old_s > 0 && new_s > 0)
    text += "    " + format_rate(batch / old_s) + " " + out->arrow() + " " +
            format_rate(batch / new_s) + " images/s";
  text += fmt::format("    {}   ({}, everything that is kept against the original code)",
                      format_interval(*all), plural(all->pairs, "fresh pair"));
  out->line(text, Style::kGood);
}

void write_left_alone(const Report& report, Writer* out) {
  int64_t chains = 0, calls = 0;
  for (const Site& site : report.sites) {
    if (site.found_only) chains += 1, calls += site.calls;
    if (site.refusal && !site.found_only)
      out->wrapped("  not replaced: ", fmt::format("{} {}: {} ({})", plural(site.calls, "call"),
                                                   site.now, site.refusal->reason, place_of(site)));
  }
  if (chains > 0)
    out->line(fmt::format("  found only: {} ({}) of rules that replace nothing yet, in report.html",
                          plural(chains, "chain"), plural(calls, "call")));
  constexpr size_t kShown = 5;
  for (size_t i = 0; i < std::min(kShown, report.near_misses.size()); ++i) {
    const NearMiss& miss = report.near_misses[i];
    const std::string place =
        miss.file.empty() ? "" : fmt::format(" ({}:{})", file_name(miss.file), miss.line);
    out->wrapped("  near miss: ", fmt::format("{} {}: {}{}", plural(miss.calls, "call"), miss.rule,
                                              miss.reason, place));
  }
  if (report.near_misses.size() > kShown)
    out->line(
        fmt::format("  near miss: {} more in report.html", report.near_misses.size() - kShown));
}

void write_candidates(const Report& report, Writer* out) {
  constexpr size_t kShown = 3;
  for (size_t i = 0; i < std::min(kShown, report.candidates.size()); ++i)
    out->wrapped("  no rule knows: ", candidate_sentence(report.candidates[i]), Style::kDim);
}

void write_advice(const Report& report, Writer* out) {
  for (const Advice& one : advice_of(report))
    out->wrapped("  advice: ",
                 fmt::format("{} (predicted: at most {})", one.text, format_ratio(one.at_most)));
}

void write_trouble(const Report& report, Writer* out) {
  for (const std::string& text : report.trouble) out->wrapped("  trouble: ", text, Style::kWarning);
  for (const auto& [name, count] : report.losses)
    out->wrapped("  lost: ", fmt::format("{} x {}", format_count(count), name), Style::kWarning);
}

void write_costs(const Report& report, Writer* out) {
  if (report.costs.total_in_plain_steps <= 0) return;
  std::string text = fmt::format("  cost  recording and proof took {:.1f} plain steps' time",
                                 report.costs.total_in_plain_steps);
  if (report.costs.memory_peak_mb > 0)
    text += ", peak memory " +
            format_bytes(static_cast<int64_t>(report.costs.memory_peak_mb * 1048576));
  out->line(text, Style::kDim);
}

std::string files_line(const Report& report) {
  std::string text = report.run.report_dir + "/: report.html";
  const auto is_file = [](const Diff& diff) { return diff.package.empty(); };
  if (std::any_of(report.diffs.begin(), report.diffs.end(), is_file)) text += " changes.diff";
  if (!report.plan_json.empty()) text += " plan.json";
  text += " report.json";
  const bool recorded_only = report.run.verb == "record";
  if (report.files.contains("trace_before"))
    text += recorded_only ? " trace.json step.ofr" : " trace_before.json";
  if (report.files.contains("trace_after")) text += " trace_after.json";
  for (const PatchModule& module : report.patch_modules) text += " " + module.name;
  return text;
}

}  // namespace

std::string terminal_text(const Report& report, const TerminalOptions& options) {
  Writer out(options);
  out.line(title(report), Style::kBold);
  write_sites(report, &out);
  write_tried("  kind   ", report.search, &out);
  write_step(report, &out);
  write_levers(report, &out);
  if (!report.versus.name.empty()) out.wrapped("  versus ", versus_sentence(report), Style::kPlain);
  if (report.outcome != Outcome::kTuned || report.speed.outcome != "tuned")
    out.wrapped("  ", verdict_sentence(report), Style::kBold);
  write_left_alone(report, &out);
  write_candidates(report, &out);
  write_advice(report, &out);
  write_trouble(report, &out);
  write_costs(report, &out);
  for (const std::string& step : next_steps(report)) out.wrapped("  next: ", step);
  if (!report.run.report_dir.empty()) out.wrapped("  ", files_line(report));
  return out.take();
}

namespace {

using Pair = std::pair<std::string, std::string>;

std::string side_text(const SideTimes& side) {
  return side.steps == 0 ? "-"
                         : fmt::format("{} (median of {})", format_seconds(side.time_median_s),
                                       plural(side.steps, "step"));
}

std::string rate_text(const SideTimes& side) {
  return side.images_per_s > 0 ? format_rate(side.images_per_s) : "-";
}

std::string ratio_text(const Report& report) {
  const auto ratio = headline_ratio(report);
  return ratio ? fmt::format("{}, {}", format_interval(*ratio), plural(ratio->pairs, "pair")) : "-";
}

std::string sites_text(const Report& report) {
  std::string text;
  for (const Site& site : report.sites) {
    if (!text.empty()) text += ", ";
    text += fmt::format("{}:{} {} x{}{}", file_name(site.file), site.line, site.rule, site.calls,
                        site.refusal ? " (refused)" : "");
  }
  return text.empty() ? "none" : text;
}

std::string batch_text(const Report& report) {
  return report.step.batch > 0 ? format_count(report.step.batch) : "unknown";
}

// Conditions that must agree before the times of two runs may be compared.
std::vector<std::pair<std::string, Pair>> conditions(const Report& a, const Report& b) {
  return {{"machine", {a.machine.cpu, b.machine.cpu}},
          {"cores", {std::to_string(a.machine.cores), std::to_string(b.machine.cores)}},
          {"threads", {std::to_string(a.run.threads), std::to_string(b.run.threads)}},
          {"torch", {a.versions.torch, b.versions.torch}},
          {"model", {a.step.root, b.step.root}},
          {"batch", {batch_text(a), batch_text(b)}},
          {"processes", {std::to_string(a.run.world_size), std::to_string(b.run.world_size)}}};
}

const SideTimes& original_side(const Report& report) {
  return report.old_side.steps > 0 ? report.old_side : report.plain;
}

// TIME with the code that the run ended with.
const SideTimes& final_side(const Report& report) {
  if (report.outcome == Outcome::kTuned && report.new_side.steps > 0) return report.new_side;
  return original_side(report);
}

}  // namespace

std::string compare_text(const Report& before, const Report& after,
                         const TerminalOptions& options) {
  Writer out(options);
  std::vector<Row> rows = {{{""}, {"before"}, {"after"}, {""}}};
  for (Cell& cell : rows[0]) cell.style = Style::kDim;
  const auto add = [&rows](const std::string& name, const std::string& a, const std::string& b,
                           bool mark) {
    rows.push_back({{name, false, Style::kBold},
                    {a},
                    {b},
                    {mark && a != b ? "differs" : "", false, Style::kWarning}});
  };
  add("report", before.run.report_dir, after.run.report_dir, false);
  add("started", utc_time(before.run.started_unix_s), utc_time(after.run.started_unix_s), false);
  add("outcome", std::string(outcome_name(before.outcome)),
      std::string(outcome_name(after.outcome)), true);
  std::string differing;
  for (const auto& [name, values] : conditions(before, after)) {
    add(name, values.first, values.second, true);
    if (values.first != values.second) differing += (differing.empty() ? "" : ", ") + name;
  }
  add("operators a step", format_count(before.step.operators), format_count(after.step.operators),
      true);
  add("sites", sites_text(before), sites_text(after), true);
  add("TIME, original", side_text(original_side(before)), side_text(original_side(after)), false);
  add("TIME, replaced", side_text(before.new_side), side_text(after.new_side), false);
  add("images/s, original", rate_text(original_side(before)), rate_text(original_side(after)),
      false);
  add("images/s, replaced", rate_text(before.new_side), rate_text(after.new_side), false);
  add("ratio in the run", ratio_text(before), ratio_text(after), false);
  out.table(rows);

  const SideTimes &a = final_side(before), &b = final_side(after);
  if (!differing.empty()) {
    out.wrapped("  ",
                "Not comparable by TIME, because of different " + differing +
                    ". The ratio within each run still holds.",
                Style::kWarning);
  } else if (a.time_median_s > 0 && b.time_median_s > 0) {
    out.wrapped(
        "  ",
        fmt::format("TIME at the end of each run: {} {} {}, {} the speed. Two runs at "
                    "different times: no interval can be given.",
                    format_seconds(a.time_median_s), out.arrow(), format_seconds(b.time_median_s),
                    format_ratio(a.time_median_s / b.time_median_s)));
  }
  return out.take();
}

}  // namespace opfuse::report
