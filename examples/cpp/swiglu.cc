// The gate of a Llama-like block with opfuse::silu_mul, against the two operators that it replaces:
// values, and the gradients of both inputs.

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>

#include <cstdio>
#include <utility>

#include "opfuse/torch.h"

namespace {

// The gradients of gate and up after a backward pass from `y`.
std::pair<at::Tensor, at::Tensor> gradients(const at::Tensor& y, at::Tensor gate, at::Tensor up) {
  y.sum().backward();
  auto found = std::pair(gate.grad().clone(), up.grad().clone());
  gate.mutable_grad().reset();
  up.mutable_grad().reset();
  return found;
}

}  // namespace

int main() {
  at::Tensor gate = at::randn({64, 256}), up = at::randn({64, 256});
  gate.requires_grad_(true);
  up.requires_grad_(true);

  const at::Tensor fused = opfuse::silu_mul(gate, up), small = at::silu(gate) * up;
  const auto [fused_gate, fused_up] = gradients(fused, gate, up);
  const auto [small_gate, small_up] = gradients(small, gate, up);

  const bool same = at::allclose(fused, small, 1e-5, 1e-6) &&
                    at::allclose(fused_gate, small_gate, 1e-5, 1e-6) &&
                    at::allclose(fused_up, small_up, 1e-5, 1e-6);
  std::printf("opfuse::silu_mul on level %s: %s\n", opfuse_ops_isa(),
              same ? "as the small operators" : "DIFFERENT from the small operators");
  return same ? 0 : 1;
}
