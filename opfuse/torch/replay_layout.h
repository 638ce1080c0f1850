#pragma once
// A recorded step with its convolution weights in channels_last: does it run, and does it compute
// the same? What `model.to(memory_format=torch.channels_last)` would meet is met in a replay.

#include "opfuse/base/result.h"
#include "opfuse/graph/graph.h"
#include "opfuse/torch/record.h"
#include "opfuse/torch/replay.h"
#include "opfuse/verify/step_verdict.h"

namespace opfuse::torch_bridge {

// Is this node a view that PyTorch's own code asked for as a reshape, which copies where strides
// do not allow a view? A view that a program asks for itself is an error there.
bool reshapes(const graph::Graph& graph, const graph::Node& node);

// An operator that reads memory by strides that the program gives, or nobody knows how: a sentence
// that names it. "" when there is none.
std::string layout_problem(const graph::Graph& graph);

// The record must have values. `seconds`: as StepProofOptions. The verdict's reason says what does
// not run or what is not the same.
verify::StepVerdict prove_layout(const Record& record, const graph::Graph& graph,
                                 const ReplayLimits& limits, double seconds);

}  // namespace opfuse::torch_bridge
