#pragma once
// An operator over lists of tensors as the operators that it runs on each: the row "foreach" of
// the canonical form.

#include <vector>

#include "opfuse/graph/graph.h"

namespace opfuse::graph {

// `aten._foreach_mul_.Scalar([a, b], 2)` -> `aten.mul.Scalar(a, 2)`, `aten.mul.Scalar(b, 2)`, each
// with the value that it makes as its output. Empty where `node` is no such operator, or where its
// lists do not agree in length or are not known.
std::vector<Node> foreach_nodes(const Node& node);

}  // namespace opfuse::graph
