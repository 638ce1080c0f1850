#include "opfuse/match/targets.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "opfuse/base/dtype.h"
#include "opfuse/match/words.h"

namespace opfuse::match {
namespace {

using Row = std::array<std::string, 6>;

// A native target raises outside of the rule's domain; ours runs the composition there.
std::string domain_text(const Rule& rule, const Target& target) {
  if (target_kind(target) != 1) return rule.domain.empty() ? "any" : rule.domain;
  return rule.domain.ends_with("finite") ? "finite" : "any";
}

std::string dtypes_text(const Target& target) {
  std::vector<std::string_view> names;
  for (const DType dtype : target.dtypes) names.push_back(dtype_name(dtype));
  return names.empty() ? "any" : fmt::format("{}", fmt::join(names, " "));
}

// What must be asked for: ours, and a vendor's where PyTorch has one (`native`).
std::string asked_by(const Target& target, bool native) {
  if (target_kind(target) == 1) return "--levers ops,library";
  const std::string vendor = vendor_of(target);
  if (!target.written_only.empty()) return "written only, --target " + vendor;
  return native && !vendor.empty() ? "--target " + vendor : "";
}

void add_rows(const Rule& rule, std::string_view device, std::vector<Row>* rows) {
  const std::vector<const Target*> targets = targets_on(rule, device);
  bool first = true;
  for (const Target* target : targets) {
    const std::string versions =
        target->package.empty() ? "" : target->package + " " + target->versions;
    rows->push_back({first ? rule.name : "", target->python, dtypes_text(*target),
                     std::string(equivalence_name(target->equivalence)), domain_text(rule, *target),
                     versions});
    if (const std::string asked = asked_by(*target, target_kind(*targets.front()) == 0);
        !asked.empty())
      rows->back()[1] += " (" + asked + ")";
    first = false;
  }
}

std::string line_of(const Row& row, const std::array<size_t, 6>& widths) {
  std::string line;
  for (size_t i = 0; i < row.size(); ++i)
    line += fmt::format("{:<{}}{}", row[i], widths[i], i + 1 < row.size() ? "  " : "");
  return line.substr(0, line.find_last_not_of(' ') + 1);
}

}  // namespace

int target_kind(const Target& target) {
  return target.op.starts_with("aten.") ? 0 : target.op.starts_with("opfuse.") ? 1 : 2;
}

bool runs_on(const Target& target, std::string_view device) {
  if (!target.device.empty()) return target.device == device;
  const int kind = target_kind(target);
  return kind == 0 || (kind == 1 && device == "cpu");
}

std::vector<const Target*> targets_on(const Rule& rule, std::string_view device) {
  std::vector<const Target*> list;
  if (!found_only(rule).empty()) return list;
  for (const Target& target : rule.targets)
    if (runs_on(target, device) && !target.python.empty()) list.push_back(&target);
  std::ranges::stable_sort(list, {}, [](const Target* target) { return target_kind(*target); });
  return list;
}

std::string vendor_of(const Target& target) {
  return target_kind(target) < 2 ? "" : target.python.substr(0, target.python.find('.'));
}

std::vector<std::string> targets_table(const Rulebook& book, std::string_view device) {
  std::vector<Row> rows = {
      {"rule", fmt::format("becomes on {}", device), "dtypes", "class", "domain", "versions"}};
  size_t without = 0;
  for (const Rule& rule : book.rules) {
    const size_t before = rows.size();
    add_rows(rule, device, &rows);
    if (rows.size() == before) ++without;
  }
  std::array<size_t, 6> widths = {};
  for (const Row& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::vector<std::string> lines;
  for (const Row& row : rows) lines.push_back(line_of(row, widths));
  lines.push_back(
      fmt::format("{} rules more have no target that an edit could call on {}", without, device));
  return lines;
}

}  // namespace opfuse::match
