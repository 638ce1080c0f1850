// The graph that the running program must become.

#include <fmt/format.h>

#include "opfuse/rewrite/graph_rewriter.h"

namespace opfuse::rewrite {
namespace {

const match::Target& target_of(const match::Rule& rule, const Replacement& replacement) {
  for (const match::Target& target : rule.targets)
    if (target.op == replacement.target) return target;
  OPFUSE_CHECK(false,
               fmt::format("rule {} has the target {} of the plan", rule.name, replacement.target));
  return rule.targets.front();
}

}  // namespace

Graph rewrite_graph(const Graph& graph, const match::MatchReport& report,
                    const std::vector<match::Site>& sites, const Plan& plan,
                    const MatchTraces& traces) {
  GraphRewriter rewriter(graph);
  for (const Replacement& replacement : plan.replacements)
    for (const match::Site& site : sites) {
      if (site.id != replacement.site) continue;
      for (const int index : site.matches) {
        const auto trace = traces.find(index);
        if (trace == traces.end())
          rewriter.replace(report.matches[index], target_of(*site.rule, replacement));
        else
          rewriter.splice(report.matches[index], trace->second);
      }
    }
  return rewriter.finish();
}

}  // namespace opfuse::rewrite
