#pragma once
// The readable text form of a Graph, printed and parsed:
//   %1: f32[16,32,112,112] requires_grad "param:x"                    (an external value)
//   %2: f32[16,32,112,112] = aten.sigmoid(%1)        @ utils.py:67:21-37 (f) < m.py:80  1.35ms
//   %3: f32[16,32,112,112] = aten.mul.Tensor(%1, %2) @ utils.py:67:17-37 (f) < m.py:80  0.93ms
//   backward MulBackward0 #8 {                                        (a scope and its sequence)
//     …
//   }
//   return %3
// Parsing derives storages and versions from the schemas: views share, writes advance; a name read
// after a write is the same view at the new version, so another value. After the type: strides[…]
// (row-major when absent), offset[…], device[…], requires_grad, hooks, escapes[…], alias[%x],
// fresh. After the call: #sequence, {region flags} when not those of the scope (grad; graph_task in
// `backward`; none in `function`), thread[…], @ positions, time. `?` is unknown, `#` a comment.

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
