#include "opfuse/match/words.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "opfuse/graph/schema.h"
#include "opfuse/match/rule_functions.h"
#include "opfuse/match/targets.h"

namespace opfuse::match {
namespace {

size_t indentation(std::string_view line) { return line.find_first_not_of(' '); }

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    text = end == text.npos ? std::string_view() : text.substr(end + 1);
  }
  return lines;
}

std::string class_words(Equivalence equivalence) {
  if (equivalence == Equivalence::kE2) return " (class E2: rounds elsewhere, needs --allow E2)";
  if (equivalence == Equivalence::kE3) return " (class E3: differs somewhere, never replaced)";
  return "";
}

std::string spellings_text(const Rule& rule) {
  std::vector<std::string> parts;
  for (const Spelling& spelling : rule.spellings)
    parts.push_back(fmt::format("\"{}\"{}", spelling.name, class_words(spelling.equivalence)));
  if (!rule.alternatives.empty())
    parts.push_back(
        fmt::format("{} more ways that follow from these by algebra", rule.alternatives.size()));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string number_words(const RuleParameter& parameter) {
  return fmt::format("{}: {}{}{}", parameter.name, parameter.random ? "random " : "",
                     parameter.type, parameter.optional ? ", may be absent" : "");
}

}  // namespace

std::vector<std::string> formula_lines(const Rule& rule) {
  std::vector<std::string> result;
  bool inside = false;
  size_t clause = 0, body = 0;
  for (const std::string& line : lines_of(rule.source)) {
    const size_t column = indentation(line);
    if (column == std::string::npos || line[column] == '#') continue;
    if (inside && column <= clause) break;
    if (inside) {
      if (body == 0) body = column;
      result.push_back(line.substr(std::min(body, column)));
    }
    if (line.substr(column) == "composition") inside = true, clause = column;
  }
  return result;
}

std::string targets_text(const Rule& rule) {
  std::vector<std::string> parts;
  for (const Target& target : rule.targets) {
    std::string text = target.python.empty() ? target.op : target.python;
    if (!target.device.empty()) text += " on " + target.device;
    parts.push_back(std::move(text));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string found_only(const Rule& rule) {
  if (!rule.only_found.empty()) return rule.only_found;
  if (!rule.mode.empty())
    return fmt::format("it is for {} alone, which a record does not hold",
                       rule.mode == "eval" ? "evaluation" : rule.mode);
  if (rule.composition.graph.results.size() != 1)
    return "edits and proofs are for chains of one result so far";
  for (const graph::Node& node : rule.composition.graph.nodes)
    if (node.op == kReshape)
      return "its composition leaves shapes open, which the proof does not do yet";
  return "";
}

std::string never_replaced(const Rule& rule, std::string_view device) {
  if (std::string reason = found_only(rule); !reason.empty()) return reason;
  const auto callable = [](const Target& target) {
    return !target.python.empty() && target.written_only.empty();
  };
  const auto here = [&](const Target& target) { return device.empty() || runs_on(target, device); };
  const auto in_graph = [&](const Target& target) { return !target.graph.empty() && here(target); };
  const auto in_source = [&](const Target& target) { return callable(target) && here(target); };
  if (std::ranges::any_of(rule.targets, in_source)) return "";
  if (std::ranges::any_of(rule.targets, in_graph))
    return "replaced in captured graphs alone (opfuse.backend.optimize)";
  if (std::ranges::none_of(rule.targets, callable))
    return "no target has a Python name that an edit could call";
  return fmt::format("no target has a Python name that an edit could call on {}", device);
}

bool replaced_in_captured_graphs(const Rule& rule) {
  const auto in_graph = [](const Target& target) { return !target.graph.empty(); };
  return found_only(rule).empty() && std::ranges::any_of(rule.targets, in_graph);
}

bool needs_permission(const Rule& rule) { return rule.domain.ends_with("finite"); }

std::vector<std::string> describe_rule(const Rule& rule) {
  std::vector<std::string> text;
  std::vector<std::string> parameters;
  for (const RuleParameter& parameter : rule.parameters)
    parameters.push_back(number_words(parameter));
  text.push_back(fmt::format("{}({}), version {}, {}:{}", rule.name, fmt::join(parameters, "; "),
                             rule.version, rule.file, rule.line));
  text.push_back("  computes");
  for (const std::string& line : formula_lines(rule)) text.push_back("    " + line);
  text.push_back("  becomes   " + targets_text(rule));
  if (const std::string ways = spellings_text(rule); !ways.empty())
    text.push_back("  also as   " + ways);
  for (const NearNeighbour& near : rule.near)
    text.push_back(
        fmt::format("  is not    {}{}{}", near.title, near.why.empty() ? "" : ": ", near.why));
  if (!rule.dtypes.empty()) {
    std::vector<std::string> names;
    for (DType dtype : rule.dtypes) names.emplace_back(dtype_name(dtype));
    text.push_back(fmt::format("  only for  {}", fmt::join(names, ", ")));
  }
  if (rule.domain.starts_with("floating"))
    text.push_back("  domain    floating types: the target raises on others, the chain does not");
  if (needs_permission(rule))
    text.push_back(
        "  domain    finite inputs, up to the root of the dtype's largest number (in f16 an eighth "
        "of "
        "it):\n            beyond them the target may give another infinity or NaN than the chain");
  const std::string reason = never_replaced(rule);
  text.push_back(
      reason.empty()
          ? "  replaced  where source and data flow allow it and the proof in fp64 agrees"
          : "  found     and reported, not replaced: " + reason);
  return text;
}

}  // namespace opfuse::match
