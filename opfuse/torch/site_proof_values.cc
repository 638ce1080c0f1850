#include "opfuse/torch/site_proof_values.h"

#include <ATen/TensorOperators.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>

#include "opfuse/torch/host_memory.h"

namespace opfuse::torch_bridge {

ChainValues differentiate(const Chain& chain, const std::vector<at::Tensor>& inputs,
                          const at::Tensor& cotangent, const std::vector<bool>& wanted,
                          bool raise) {
  c10::impl::ForceDispatchKeyGuard keys{c10::default_included_set, c10::default_excluded_set};
  c10::AutoGradMode grad{cotangent.defined()};
  std::vector<at::Tensor> given, leaves;
  for (size_t i = 0; i < inputs.size(); ++i) {
    at::Tensor leaf = inputs[i].defined() ? inputs[i].detach() : at::Tensor();
    if (cotangent.defined() && wanted[i]) leaves.push_back(leaf.requires_grad_(true));
    given.push_back(std::move(leaf));
  }
  ChainValues values;
  values.y = chain.run(given, raise)[0];
  values.gradients.resize(inputs.size());
  if (!cotangent.defined()) return values;
  const std::vector<at::Tensor> gradients =
      torch::autograd::grad({values.y}, leaves, {cotangent.to(values.y.scalar_type())});
  for (size_t i = 0, next = 0; i < inputs.size(); ++i)
    if (wanted[i]) values.gradients[i] = gradients[next++];
  values.y = values.y.detach();
  return values;
}

std::vector<at::Tensor> in_double(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> raised;
  for (const at::Tensor& t : tensors)
    raised.push_back(t.defined() && t.is_floating_point() ? on_host(t).to(c10::kDouble)
                                                          : on_host(t));
  return raised;
}

at::Tensor sum_of(const std::vector<at::Tensor>& terms) {
  at::Tensor total = terms[0];
  for (size_t i = 1; i < terms.size(); ++i) total = total + terms[i];
  return total;
}

}  // namespace opfuse::torch_bridge
