#pragma once
// What an operator's schema says of memory: which input a result is a view of, what is written.

#include "opfuse/graph/graph.h"
#include "opfuse/graph/schema.h"

namespace opfuse::graph {

// The input whose storage result `output` of `node` shares by its schema.
struct Alias {
  ValueId input = kNone;  // kNone: the result is fresh, or the schema is not known
  bool written = false;   // the node wrote it: the result is the input after the write
};
Alias schema_alias(const Node& node, int output);

// What ran in a scope by default: grad mode outside of Functions, a graph task in the backward
// pass.
uint16_t default_flags(const Graph& graph, int32_t scope);

// Row-major strides of a shape.
std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& shape);

}  // namespace opfuse::graph
