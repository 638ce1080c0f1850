#include "opfuse/match/versions.h"

#include <algorithm>
#include <charconv>

namespace opfuse::match {
namespace {

// "2.13.0+cpu" -> 2, 13, 0; `rest` is what follows the last number.
std::vector<int> leading_numbers(std::string_view text, std::string_view* rest) {
  std::vector<int> numbers;
  while (!text.empty()) {
    int number = 0;
    const char* const end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, number);
    if (read.ec != std::errc() || number < 0) break;
    numbers.push_back(number);
    text.remove_prefix(static_cast<size_t>(read.ptr - text.data()));
    if (!text.starts_with('.') || text.size() < 2 || text[1] < '0' || text[1] > '9') break;
    text.remove_prefix(1);
  }
  *rest = text;
  return numbers;
}

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

int compare(std::vector<int> a, std::vector<int> b) {
  const size_t size = std::max(a.size(), b.size());
  a.resize(size);
  b.resize(size);
  return a < b ? -1 : a > b ? 1 : 0;
}

bool holds(const VersionBound& bound, int order) {
  if (bound.sign == ">=") return order >= 0;
  if (bound.sign == ">") return order > 0;
  if (bound.sign == "<=") return order <= 0;
  if (bound.sign == "<") return order < 0;
  return order == 0;
}

}  // namespace

std::optional<std::vector<VersionBound>> parse_versions(std::string_view range) {
  std::vector<VersionBound> bounds;
  while (true) {
    const size_t comma = range.find(',');
    std::string_view one = trimmed(range.substr(0, comma));
    VersionBound bound;
    while (!one.empty() && std::string_view("<>=").find(one[0]) != std::string_view::npos) {
      bound.sign += one[0];
      one.remove_prefix(1);
    }
    const bool known = bound.sign == ">=" || bound.sign == ">" || bound.sign == "<=" ||
                       bound.sign == "<" || bound.sign == "==";
    std::string_view rest;
    bound.version = leading_numbers(trimmed(one), &rest);
    if (!known || bound.version.empty() || !rest.empty()) return std::nullopt;
    bounds.push_back(std::move(bound));
    if (comma == range.npos) return bounds;
    range.remove_prefix(comma + 1);
  }
}

bool version_in(std::string_view version, std::string_view range) {
  if (range.empty()) return true;
  std::string_view rest;
  const std::vector<int> numbers = leading_numbers(version, &rest);
  const auto bounds = parse_versions(range);
  return !numbers.empty() && bounds && std::ranges::all_of(*bounds, [&](const VersionBound& bound) {
    return holds(bound, compare(numbers, bound.version));
  });
}

}  // namespace opfuse::match
