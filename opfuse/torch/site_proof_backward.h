#pragma once
// What a hand-written backward must look like before its values are compared: linear in the
// cotangent, nothing chosen by value that the composition's gradient does not choose by value.

#include <optional>
#include <string>

#include "opfuse/graph/graph.h"
#include "opfuse/match/match.h"

namespace opfuse::torch_bridge {

// A sentence that names the operator, or nothing when the backward is fit to be compared.
std::optional<std::string> backward_problem(const graph::Graph& graph, const match::Match& match);

}  // namespace opfuse::torch_bridge
