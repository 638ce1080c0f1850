#pragma once
// Which contributions of a recorded backward belong to which input of its chain. The record does
// not say where autograd hands a gradient: contributions are told apart by their values, in fp64 on
// made inputs, where their sums must be the gradients of the recorded forward operators.

#include <vector>

#include "opfuse/base/result.h"
#include "opfuse/graph/graph.h"
#include "opfuse/match/match.h"
#include "opfuse/torch/record.h"
#include "opfuse/torch/site_proof_chain.h"

namespace opfuse::torch_bridge {

struct SiteGradients {
  std::vector<bool> wanted;  // by parameter: autograd made its gradient in the record
  // By parameter: indices of BackwardChain::grad_inputs, kCotangent where the cotangent is handed
  // on and summed with them; none where it is handed on alone.
  static constexpr int kCotangent = -1;
  std::vector<std::vector<int>> parts;
};

// The recorded chain of a match: forward alone, and with its backward (inputs: the parameters, then
// the cotangent; outputs: the results, then the contributions).
struct RecordedChain {
  Chain forward, both;
};
Result<RecordedChain> recorded_chain(const Record& record, const graph::Graph& graph,
                                     const match::Match& match);

// An error says which gradient cannot be told.
Result<SiteGradients> site_gradients(const graph::Graph& graph, const match::Match& match,
                                     const RecordedChain& chain);

// Tensors like the match's inputs and its cotangent (the last): shapes, strides and dtypes as
// recorded, or double where `f64`. Floating ones hold fixed ordinary values, others zeros.
std::vector<at::Tensor> tensors_like(const graph::Graph& graph, const match::Match& match,
                                     bool f64);

}  // namespace opfuse::torch_bridge
