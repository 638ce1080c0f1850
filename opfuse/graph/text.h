#pragma once
// The readable text form of a Graph, printed and parsed:
//   %1: f32[16,32,112,112]                                            (an external value)
//   %2: f32[16,32,112,112] = aten.sigmoid(%1)        @ utils.py:67:21-37  1.35ms
//   %3: f32[16,32,112,112] = aten.mul.Tensor(%1, %2) @ utils.py:67:17-37  0.93ms
//   return %3
// Parsing derives storages and versions from the schemas (views share, `!` writes).

#include <string>
#include <string_view>

#include "opfuse/base/result.h"
#include "opfuse/graph/graph.h"
#include "opfuse/graph/schema.h"

namespace opfuse::graph {

std::string print_graph(const Graph& graph);
std::string print_node(const Graph& graph, NodeId node);
std::string print_attr(const Attr& attr);
Result<Graph> parse_graph(std::string_view text, const SchemaTable& schemas);

}  // namespace opfuse::graph
