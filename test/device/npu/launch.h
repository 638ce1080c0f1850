// How an operator of the stand-in's torch_npu is written: a kernel by small CPU operators, queued,
// and a Function that saves what its backward operator takes.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>
#include <vector>

#include "queue.h"
#include "tensors.h"

namespace standin {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// Queues `compute` on the host's views of `inputs`; its results fill `outputs`.
template <typename Compute>
void launch(const char* name, const Tensors& inputs, const Tensors& outputs, Compute compute) {
  Tensors from;
  Tensors to;
  for (const Tensor& input : inputs) {
    from.push_back(host_view(input));
  }
  for (const Tensor& output : outputs) {
    to.push_back(host_view(output));
  }
  enqueue(name, [from, to, compute = std::move(compute)] {
    const Tensors results = compute(from);
    for (size_t i = 0; i < to.size(); ++i) {
      Tensor(to[i]).copy_(results[i]);
    }
  });
}

template <typename Signature>
auto operation(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace standin
