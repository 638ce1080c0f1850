#pragma once
// The torch side of ops/gelu_tanh_mul.

#include "opfuse/ops/gelu_tanh_mul/gelu_tanh_mul.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/tanh.h>

#include "opfuse/torch/ops/gated_operator.h"

namespace opfuse::torch_ops {

struct GeluTanhMulTraits {
  static constexpr const char* schema = "gelu_tanh_mul(Tensor gate, Tensor up) -> Tensor";
  static constexpr const char* backward_schema =
      "gelu_tanh_mul_backward(Tensor grad, Tensor gate, Tensor up, bool[2] wanted) -> (Tensor, "
      "Tensor)";

  static const ops::GatedKernels& kernels(ops::Isa isa) { return ops::gelu_tanh_mul_kernels(isa); }
  static Tensor activation(const Tensor& gate) { return at::gelu(gate, "tanh"); }
  static Tensor slope(const Tensor& gate) {
    const Tensor square = gate * gate;
    const Tensor t = at::tanh(gate * (square * 0.044715 + 1) * 0.79788456080286536);
    const Tensor steep = (square * (3 * 0.044715) + 1) * 0.79788456080286536;
    return (t + 1) * 0.5 + gate * at::rsub(t * t, 1) * steep * 0.5;
  }
};
using GeluTanhMul = Gated<GeluTanhMulTraits>;

}  // namespace opfuse::torch_ops

OPFUSE_OPERATOR(GeluTanhMul)
