#include "opfuse/rewrite/target.h"

#include <fmt/format.h>

#include <algorithm>

#include "opfuse/match/targets.h"
#include "opfuse/match/versions.h"

namespace opfuse::rewrite {
namespace {

using match::target_kind;
using Refused = std::optional<match::Refusal>;

Refused refuse(int row, std::string reason) {
  return match::Refusal{row, std::move(reason), graph::kNone};
}

bool takes_dtypes(const match::Target& target, const graph::Graph& graph,
                  const match::MatchReport& report, const match::Site& site) {
  if (target.dtypes.empty()) return true;
  for (const int index : site.matches)
    for (size_t i = 0; i < report.matches[index].inputs.size(); i++) {
      const graph::ValueId input = report.matches[index].inputs[i];
      // A mask is a bool whatever the others are: its type says so.
      if (input == graph::kNone || site.rule->parameters[i].tensor.dtype != DType::kUnknown)
        continue;
      const DType dtype = graph.values[input].meta.dtype;
      if (std::find(target.dtypes.begin(), target.dtypes.end(), dtype) == target.dtypes.end())
        return false;
    }
  return true;
}

// Refused for what the target is, whoever calls it.
Refused unfit(const match::Target& target, const match::Rule& rule, const PlanOptions& options) {
  // A native target raises outside the rule's domain; an own one runs the composition there.
  const bool total = target_kind(target) == 1 || rule.domain.empty();
  if (options.strict && !total)
    return refuse(14, fmt::format("--strict: {} is only for {} inputs, where the chain takes any",
                                  target.op, rule.domain));
  if (!target.package.empty()) {
    const auto package = options.packages.find(target.package);
    if (package == options.packages.end())
      return refuse(0, fmt::format("{} is not installed here", target.package));
    if (!match::version_in(package->second, target.versions))
      return refuse(0, fmt::format("{} is for {} {}, here is {}", target.op, target.package,
                                   target.versions, package->second));
  }
  if (target.equivalence > options.allow)
    return refuse(0, fmt::format("{} is of class {}; --allow {} takes it", target.op,
                                 match::equivalence_name(target.equivalence),
                                 match::equivalence_name(target.equivalence)));
  if (target.python.empty()) return refuse(0, fmt::format("{} has no Python name", target.op));
  return {};
}

// Refused for an optional parameter that is absent in some call.
Refused lacks(const match::Target& target, const match::MatchReport& report,
              const match::Site& site) {
  const std::vector<match::RuleParameter>& parameters = site.rule->parameters;
  for (const int index : site.matches)
    for (size_t i = 0; i < parameters.size(); i++)
      if (report.matches[index].inputs[i] == graph::kNone &&
          std::ranges::find(target.given, parameters[i].name) != target.given.end())
        return refuse(0, fmt::format("{} takes no call without {}", target.op, parameters[i].name));
  return {};
}

}  // namespace

const match::Target* vendor_target(const match::Rule& rule, std::string_view vendor) {
  for (const match::Target& target : rule.targets)
    if (match::vendor_of(target) == vendor) return &target;
  return nullptr;
}

const std::vector<std::string>& called_with(const match::Target& target) {
  return target.python_arguments.empty() ? target.arguments : target.python_arguments;
}

const match::Target* choose_target(const graph::Graph& graph, const match::MatchReport& report,
                                   const match::Site& site, const PlanOptions& options,
                                   Refused* refusal) {
  const match::Rule& rule = *site.rule;
  const match::Target* best = nullptr;
  bool own = false;  // it has one of opfuse's, which is not to be used
  const std::string& vendor = options.target_vendor;
  for (const match::Target& target : rule.targets) {
    const int kind = target_kind(target);
    const bool here = match::runs_on(target, options.device) && target.written_only.empty();
    const bool unasked = kind == 1 && !options.own_operators && !target.python.empty();
    own = own || (here && unasked);
    if (!here || unasked || !takes_dtypes(target, graph, report, site)) continue;
    Refused problem = unfit(target, rule, options);
    if (!problem) problem = lacks(target, report, site);
    if (problem) {
      *refusal = std::move(problem);
      continue;
    }
    if (!vendor.empty() && match::vendor_of(target) == vendor) return &target;
    if (!best || kind < target_kind(*best)) best = &target;
  }
  if (!best && own && (!*refusal || (*refusal)->row != 14))
    *refusal =
        refuse(0, "it becomes an operator of opfuse's library; --levers ops,library takes it");
  if (!best && !*refusal)
    *refusal = refuse(
        18, fmt::format("{} has no target for {} and these dtypes", rule.name, options.device));
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
