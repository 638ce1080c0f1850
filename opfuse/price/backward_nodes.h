#pragma once
// The backward operators of a chain in a trace: those below autograd nodes with the sequence
// numbers of the chain's operators, or of the autograd.Function around them. Never by thread:
// backward may run on the forward's own.

#include <unordered_map>
#include <vector>

#include "opfuse/graph/graph.h"
#include "opfuse/match/match.h"

namespace opfuse::price {

class BackwardNodes {
 public:
  // Operators that are in a match of their own belong to that one.
  BackwardNodes(const graph::Graph& graph, const match::MatchReport& matches);

  std::vector<graph::NodeId> of(const match::Match& match) const;  // in order, each once

 private:
  const graph::Graph& graph_;
  std::unordered_map<int64_t, std::vector<graph::NodeId>> by_sequence_;
};

}  // namespace opfuse::price
