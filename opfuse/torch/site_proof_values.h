#pragma once
// What a chain gives for given inputs and a cotangent: its result and the gradients by autograd.

#include <ATen/core/Tensor.h>

#include <vector>

#include "opfuse/torch/site_proof_chain.h"

namespace opfuse::torch_bridge {

struct ChainValues {
  at::Tensor y;
  std::vector<at::Tensor> gradients;  // by input; undefined where none is wanted
};

// The result, and with a defined cotangent the gradients of the inputs that are `wanted`, under
// ordinary eager autograd, whatever the thread's dispatch state is. An exception says which input
// has no gradient. `raise`: casts to floating dtypes give double.
ChainValues differentiate(const Chain& chain, const std::vector<at::Tensor>& inputs,
                          const at::Tensor& cotangent, const std::vector<bool>& wanted,
                          bool raise = false);

// Floating tensors in double, others as they are.
std::vector<at::Tensor> in_double(const std::vector<at::Tensor>& tensors);

at::Tensor sum_of(const std::vector<at::Tensor>& terms);

}  // namespace opfuse::torch_bridge
