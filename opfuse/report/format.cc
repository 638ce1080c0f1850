#include "opfuse/report/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <ctime>

namespace opfuse::report {

std::string format_count(int64_t count) {
  std::string digits = std::to_string(count);
  const int first = digits.starts_with('-') ? 1 : 0;
  for (int at = static_cast<int>(digits.size()) - 3; at > first; at -= 3) digits.insert(at, ",");
  return digits;
}

std::string format_seconds(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  if (seconds == 0) return "0 s";
  struct Unit {
    double scale;
    const char* name;
  };
  for (const Unit unit : {Unit{1, "s"}, Unit{1e3, "ms"}, Unit{1e6, "us"}}) {
    const double value = seconds * unit.scale;
    if (value >= 99.95) return fmt::format("{:.0f} {}", value, unit.name);
    if (value >= 9.995) return fmt::format("{:.1f} {}", value, unit.name);
    if (value >= 0.9995) return fmt::format("{:.2f} {}", value, unit.name);
  }
  return fmt::format("{:.0f} ns", seconds * 1e9);
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole >= 3600) return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
  if (whole >= 60) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return seconds < 10 ? format_seconds(seconds) : fmt::format("{} s", whole);
}

std::string format_rate(double per_second) {
  if (per_second >= 999.5) return format_count(std::llround(per_second));
  return fmt::format("{:.{}f}", per_second, per_second >= 99.95 ? 0 : per_second >= 0.95 ? 1 : 2);
}

std::string format_ratio(double ratio) { return fmt::format("{:.2f}x", ratio); }

std::string format_interval(const verify::RatioInterval& interval) {
  if (interval.high <= 0) return fmt::format("{:.2f}x", interval.ratio);  // too few pairs for one
  return fmt::format("{:.2f}x [{:.2f}, {:.2f}]", interval.ratio, interval.low, interval.high);
}

std::string format_error(double error) {
  if (error == 0) return "0";
  return std::isfinite(error) ? fmt::format("{:.1e}", error) : std::string("not finite");
}

std::string format_bytes(int64_t bytes) {
  if (bytes >= (int64_t{1} << 30)) return fmt::format("{:.1f} GiB", std::ldexp(bytes, -30));
  return fmt::format("{:.0f} MiB", std::ldexp(bytes, -20));
}

std::string plural(int64_t count, std::string_view noun) {
  std::string text = format_count(count) + " " + std::string(noun);
  if (count == 1) return text;
  if (noun.ends_with("ss")) return text + "es";
  return text + "s";
}

std::string file_name(std::string_view path) {
  const size_t slash = path.find_last_of('/');
  return std::string(slash == std::string_view::npos ? path : path.substr(slash + 1));
}

std::string shell_quoted(const std::vector<std::string>& command) {
  std::string line;
  for (const std::string& word : command) {
    const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
      return std::isalnum(c) || std::string_view("_@%+=:,./-*").find(c) != std::string_view::npos;
    });
    if (!line.empty()) line += ' ';
    if (plain) {
      line += word;
      continue;
    }
    line += '\'';
    for (char c : word) line += c == '\'' ? std::string("'\\''") : std::string(1, c);
    line += '\'';
  }
  return line;
}

std::string utc_time(double unix_s) {
  if (unix_s <= 0) return "";
  const auto time = static_cast<std::time_t>(unix_s);
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &parts);
  return text;
}

bool is_inference(const Report& report) { return report.step.boundary_kind == "root"; }

std::string place_of(const Site& site) {
  std::string place = file_name(site.file) + ":" + std::to_string(site.line);
  if (site.chain_line < 0 || (site.chain_file == site.file && site.chain_line == site.line))
    return place;
  const std::string other = site.chain_file == site.file ? "" : file_name(site.chain_file);
  return place + " (via " + other + ":" + std::to_string(site.chain_line) + ")";
}

std::string equivalence_text(const Site& site) {
  const std::string& name = site.equivalence;
  const char* meaning = name == "E0"   ? "bit-identical"
                        : name == "E1" ? "same formula, other roundings"
                        : name == "E2" ? "same formula, casts at other places"
                        : name == "E3" ? "another function, allowed by you"
                        : name == "E4" ? "random numbers of another stream"
                                       : "";
  return *meaning ? fmt::format("{} ({})", meaning, name) : name;
}

const verify::SiteVerdict* verdict_of(const Report& report, int site) {
  for (const auto& verdict : report.verdict.sites)
    if (verdict.site == site) return &verdict;
  return nullptr;
}

std::string proof_text(const Report& report, const Site& site) {
  if (site.refusal) return "refused";
  const auto* verdict = verdict_of(report, site.id);
  if (verdict == nullptr) return "not proved";
  return verdict->accepted ? "proved, " + site.equivalence : "refused";
}

std::string error_text(const Report& report, const Site& site) {
  const auto* verdict = verdict_of(report, site.id);
  if (verdict == nullptr || verdict->captured.empty()) return "-";
  double worst = 0;
  for (const auto& error : verdict->captured) {
    if (error.error_new == 0) continue;
    if (error.error_old == 0) return format_error(error.error_new);
    worst = std::max(worst, error.error_new / error.error_old);
  }
  return worst == 0 ? "none" : fmt::format("{:.1f}x old", worst);
}

}  // namespace opfuse::report
