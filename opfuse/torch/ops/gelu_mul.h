#pragma once
// The torch side of ops/gelu_mul.

#include "opfuse/ops/gelu_mul/gelu_mul.h"

#include <ATen/ops/erf.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/gelu.h>

#include "opfuse/torch/ops/gated_operator.h"

namespace opfuse::torch_ops {

struct GeluMulTraits {
  static constexpr const char* schema = "gelu_mul(Tensor gate, Tensor up) -> Tensor";
  static constexpr const char* backward_schema =
      "gelu_mul_backward(Tensor grad, Tensor gate, Tensor up, bool[2] wanted) -> (Tensor, Tensor)";

  static const ops::GatedKernels& kernels(ops::Isa isa) { return ops::gelu_mul_kernels(isa); }
  static Tensor activation(const Tensor& gate) { return at::gelu(gate); }
  static Tensor slope(const Tensor& gate) {
    const Tensor cdf = (at::erf(gate * 0.70710678118654752) + 1) * 0.5;
    return cdf + gate * at::exp(gate * gate * -0.5) * 0.39894228040143268;
  }
};
using GeluMul = Gated<GeluMulTraits>;

}  // namespace opfuse::torch_ops

OPFUSE_OPERATOR(GeluMul)
