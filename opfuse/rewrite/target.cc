#include "opfuse/rewrite/target.h"

#include <fmt/format.h>

#include <algorithm>

namespace opfuse::rewrite {
namespace {

using Refused = std::optional<match::Refusal>;

Refused refuse(int row, std::string reason) {
  return match::Refusal{row, std::move(reason), graph::kNone};
}

bool takes_dtypes(const match::Target& target, const graph::Graph& graph,
                  const match::MatchReport& report, const match::Site& site) {
  if (target.dtypes.empty()) return true;
  for (const int index : site.matches)
    for (const graph::ValueId input : report.matches[index].inputs) {
      if (input == graph::kNone) continue;
      const DType dtype = graph.values[input].meta.dtype;
      if (std::find(target.dtypes.begin(), target.dtypes.end(), dtype) == target.dtypes.end())
        return false;
    }
  return true;
}

}  // namespace

int target_kind(const match::Target& target) {
  return target.op.starts_with("aten.") ? 0 : target.op.starts_with("opfuse.") ? 1 : 2;
}

const match::Target* vendor_target(const match::Rule& rule, std::string_view vendor) {
  for (const match::Target& target : rule.targets)
    if (target.python.starts_with(fmt::format("{}.", vendor))) return &target;
  return nullptr;
}

const std::string& callee_of(const match::Target& target, const PlanOptions& options) {
  return options.captured && !target.graph.empty() ? target.graph : target.python;
}

const std::vector<std::string>& written_arguments(const match::Target& target,
                                                  const PlanOptions& options) {
  const auto& written =
      options.captured && !target.graph.empty() ? target.graph_arguments : target.python_arguments;
  return written.empty() ? target.arguments : written;
}

const match::Target* choose_target(const graph::Graph& graph, const match::MatchReport& report,
                                   const match::Site& site, const PlanOptions& options,
                                   Refused* refusal) {
  const match::Rule& rule = *site.rule;
  const match::Target* best = nullptr;
  bool own = false;  // it has one of opfuse's, which is not to be used
  const match::Target* const asked = vendor_target(rule, options.target_vendor);
  for (const match::Target& target : rule.targets) {
    const int kind = target_kind(target);
    // Ours run small operators where they have no kernel: they win nothing there.
    const bool here = target.device.empty() ? kind == 0 || (kind == 1 && options.device == "cpu")
                                            : target.device == options.device;
    const bool unasked = kind == 1 && !options.own_operators && !target.python.empty();
    own = own || (here && unasked);
    if (!here || unasked) continue;
    // A native target raises outside the rule's domain; an own one runs the composition there.
    const bool total = kind == 1 || rule.domain.empty();
    if (options.strict && !total) {
      *refusal =
          refuse(14, fmt::format("--strict: {} is only for {} inputs, where the chain takes any",
                                 target.op, rule.domain));
      continue;
    }
    if (!takes_dtypes(target, graph, report, site)) continue;
    if (&target == asked) return asked;
    if (!best || kind < target_kind(*best)) best = &target;
  }
  if (!best && !*refusal && own)
    *refusal =
        refuse(0, "it becomes an operator of opfuse's library; --levers ops,library takes it");
  if (!best && !*refusal)
    *refusal = refuse(
        18, fmt::format("{} has no target for {} and these dtypes", rule.name, options.device));
  if (best && callee_of(*best, options).empty()) {
    *refusal = refuse(0, fmt::format("{} has no Python name", best->op));
    return nullptr;
  }
  return best;
}

Refused refusal_from_matches(const match::MatchReport& report, const match::Site& site,
                             const PlanOptions& options, match::Equivalence* weakest) {
  for (const int index : site.matches) {
    const match::Match& match = report.matches[index];
    if (!match.refusals.empty()) return match.refusals.front();
    *weakest = std::max(*weakest, match.equivalence);
  }
  // Silently another value at infinities: never without being asked for.
  if (site.rule->domain.ends_with("finite")) {
    *weakest = std::max(*weakest, match::Equivalence::kE2);
    if (*weakest > options.allow && *weakest < match::Equivalence::kE3)
      return refuse(28,
                    "infinities, and numbers near the dtype's largest, would become another "
                    "infinity or NaN; --allow E2 takes it");
  }
  if (*weakest >= match::Equivalence::kE3)
    return refuse(29, fmt::format("written like this it is another function at some inputs (class "
                                  "{}), which no flag allows",
                                  match::equivalence_name(*weakest)));
  if (*weakest > options.allow)
    return refuse(
        0, fmt::format("the replacement is of class {}; --allow {} takes it",
                       match::equivalence_name(*weakest), match::equivalence_name(*weakest)));
  return {};
}

}  // namespace opfuse::rewrite
