#pragma once
// What matching needs of a graph beside the graph: its canonical form and a few indexes, made once.

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "opfuse/graph/canonical.h"
#include "opfuse/match/match.h"

namespace opfuse::match {

struct Context {
  explicit Context(const graph::Graph& graph);

  const graph::Graph& graph;
  graph::CanonicalForm form;
  std::vector<std::vector<graph::NodeId>> writers;                         // by storage, in order
  std::unordered_map<int64_t, std::vector<graph::NodeId>> backward_nodes;  // by sequence number
  std::vector<int32_t> function_sizes;  // by scope: nodes inside a Function's forward

  const graph::Node& node(graph::NodeId id) const { return graph.nodes[id]; }
  const graph::Value& value(graph::ValueId id) const { return graph.values[id]; }
  bool is_number(graph::ValueId id) const;
  // Flattened tensor inputs of a node, without undefined ones.
  std::vector<graph::ValueId> operands(graph::NodeId id) const;
};

// "aten.sigmoid at utils.py:67", for sentences.
std::string where(const graph::Graph& graph, graph::NodeId node);

// A pattern bound to canonical nodes -> the match on the original ones: dropped no-op operators
// between its operators belong to it, inputs are the values that the chain really reads.
struct Pattern;
class Solver;
Match expand_match(const Context& context, const Pattern& pattern, const Solver& solver);

// Fills function_scope and backward.
void join_backward(const Context& context, Match* match);

}  // namespace opfuse::match
