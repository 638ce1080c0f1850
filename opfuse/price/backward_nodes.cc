#include "opfuse/price/backward_nodes.h"

#include <algorithm>
#include <set>

namespace opfuse::price {

using graph::kNone;
using graph::NodeId;
using graph::ScopeKind;

BackwardNodes::BackwardNodes(const graph::Graph& graph, const match::MatchReport& matches)
    : graph_(graph) {
  std::vector<char> taken(graph.nodes.size(), 0);
  for (const match::Match& match : matches.matches)
    for (NodeId node : match.nodes) taken[node] = 1;
  for (NodeId node = 0; node < static_cast<NodeId>(graph.nodes.size()); ++node) {
    if (taken[node]) continue;
    for (int32_t at = graph.nodes[node].scope; at != kNone; at = graph.scopes[at].parent)
      if (graph.scopes[at].kind == ScopeKind::kAutogradNode && graph.scopes[at].sequence >= 0) {
        by_sequence_[graph.scopes[at].sequence].push_back(node);
        break;
      }
  }
}

std::vector<NodeId> BackwardNodes::of(const match::Match& match) const {
  std::set<int64_t> sequences;
  std::set<NodeId> nodes;
  for (NodeId node : match.nodes) {
    if (graph_.nodes[node].forward_sequence >= 0)
      sequences.insert(graph_.nodes[node].forward_sequence);
    for (int32_t at = graph_.nodes[node].scope; at != kNone; at = graph_.scopes[at].parent) {
      if (graph_.scopes[at].kind == ScopeKind::kAutogradNode) return {};  // is backward itself
      if (graph_.scopes[at].kind == ScopeKind::kFunction && graph_.scopes[at].sequence >= 0)
        sequences.insert(graph_.scopes[at].sequence);
    }
  }
  for (const int64_t sequence : sequences)
    if (const auto it = by_sequence_.find(sequence); it != by_sequence_.end())
      nodes.insert(it->second.begin(), it->second.end());
  return {nodes.begin(), nodes.end()};
}

}  // namespace opfuse::price
