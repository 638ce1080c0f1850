#pragma once
// What shape and dtype an operator's first result has, from its arguments: for graphs whose source
// does not record results. Only operators whose rule is certain; unknown otherwise.

#include "opfuse/graph/graph.h"

namespace opfuse::graph {

// `inputs`: the metas of the tensor arguments in schema order (unknown metas for absent ones).
TensorMeta infer_result(const Node& node, const std::vector<TensorMeta>& inputs);

}  // namespace opfuse::graph
