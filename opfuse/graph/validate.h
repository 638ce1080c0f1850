#pragma once
// Checks every rule that graph.h states. Run between stages and in tests; the error names the node
// or value: "node 12 (aten.mul.Tensor): …".

#include "opfuse/base/result.h"
#include "opfuse/graph/graph.h"

namespace opfuse::graph {

Status validate_graph(const Graph& graph);

}  // namespace opfuse::graph
