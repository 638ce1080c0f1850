// What the rules find in a graph that Dynamo captured (opfuse.backend): no record, no plan.

#include <chrono>

#include "opfuse/graph/text.h"
#include "opfuse/graph/validate.h"
#include "opfuse/rewrite/captured.h"
#include "opfuse/torch/session.h"

namespace opfuse::torch_bridge {
namespace {

Json chain_json(const rewrite::CapturedChain& chain) {
  return {{"rule", chain.rule},
          {"target", chain.target},
          {"class", match::equivalence_name(chain.equivalence)},
          {"domain", chain.domain},
          {"nodes", chain.nodes},
          {"inputs", chain.inputs},
          {"outputs", chain.outputs},
          {"python", chain.python},
          {"arguments", chain.arguments},
          {"uses_sizes", chain.uses_sizes},
          {"place", chain.place},
          {"refusal", chain.refusal}};
}

match::Equivalence allowed_class(const Json& request) {
  return request.value("allow", "E1") == "E2" ? match::Equivalence::kE2 : match::Equivalence::kE1;
}

}  // namespace

Result<Json> Session::match_captured(const Json& request) {
  const auto start = std::chrono::steady_clock::now();
  const graph::SchemaTable& schemas = graph::SchemaTable::builtin();
  const auto files = request.value("rules", std::vector<std::string>{});
  if (!captured_rulebook_ || files != captured_rules_) {
    OPFUSE_TRY(match::Rulebook rulebook, match::load_rulebook(files, schemas));
    captured_rulebook_ = rewrite::captured_rulebook(std::move(rulebook));
    captured_rules_ = files;
  }
  OPFUSE_TRY(const graph::Graph graph,
             graph::parse_graph(request.at("text").get<std::string>(), schemas));
  OPFUSE_TRY_STATUS(graph::validate_graph(graph));
  const match::MatchReport report = match::find_matches(graph, *captured_rulebook_);
  rewrite::PlanOptions options;
  options.device = request.value("device", "cpu");
  options.own_operators = true;
  options.allow = allowed_class(request);
  Json chains = Json::array();
  for (const rewrite::CapturedChain& chain : rewrite::captured_chains(graph, report, options))
    chains.push_back(chain_json(chain));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  return Json{{"chains", chains}, {"operators", graph.nodes.size()}, {"seconds", took.count()}};
}

}  // namespace opfuse::torch_bridge
