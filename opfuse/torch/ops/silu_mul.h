#pragma once
// The torch side of ops/silu_mul.

#include "opfuse/ops/silu_mul/silu_mul.h"

#include <ATen/ops/rsub.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>

#include "opfuse/torch/ops/gated_operator.h"

namespace opfuse::torch_ops {

struct SiluMulTraits {
  static constexpr const char* schema = "silu_mul(Tensor gate, Tensor up) -> Tensor";
  static constexpr const char* backward_schema =
      "silu_mul_backward(Tensor grad, Tensor gate, Tensor up, bool[2] wanted) -> (Tensor, Tensor)";

  static const ops::GatedKernels& kernels(ops::Isa isa) { return ops::silu_mul_kernels(isa); }
  static Tensor activation(const Tensor& gate) { return at::silu(gate); }
  static Tensor slope(const Tensor& gate) {
    const Tensor s = at::sigmoid(gate);
    return s * (gate * at::rsub(s, 1) + 1);
  }
};
using SiluMul = Gated<SiluMulTraits>;

}  // namespace opfuse::torch_ops

OPFUSE_OPERATOR(SiluMul)
