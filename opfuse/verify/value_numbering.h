#pragma once
// Gives every node of a Graph a 128-bit term: operator, arguments, region and the terms of what it
// reads, where a tensor's term is the content of its storage (a term as well) and its view of it.
// Two steps compute the same if and only if their multisets of node terms are equal. In: a graph
// and how its externals are named; out: terms in node order. Owns nothing of the graph.

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "opfuse/graph/graph.h"

namespace opfuse::verify {

struct Term {
  uint64_t high = 0, low = 0;
  auto operator<=>(const Term&) const = default;
};

struct TermHash {
  size_t operator()(const Term& term) const { return term.high ^ (term.low * 0x9e3779b97f4a7c15u); }
};

// What both graphs agree on, so that equal things get equal terms in either.
struct SharedNames {
  std::unordered_set<int64_t> session_ids;       // external storages of both
  std::unordered_set<std::string_view> labels;   // labels of externals of both
  std::unordered_set<std::string_view> relaxed;  // operators made by rewriting: region not compared
  bool ignore_shapes = false;
};

SharedNames shared_names(const graph::Graph& expected, const graph::Graph& observed,
                         bool ignore_shapes);

struct NodeTerm {
  graph::NodeId node = graph::kNone;
  Term term;   // everything
  Term reads;  // the tensors that it reads, alone: to find what stands in a node's place
};

struct Numbering {
  std::vector<NodeTerm> terms;  // one per node that counts, execution order
  // Not empty: the graph cannot be compared, and why.
  std::string refusal;
  graph::NodeId refusal_node = graph::kNone;
};

Numbering number_values(const graph::Graph& graph, const SharedNames& names);

}  // namespace opfuse::verify
