#pragma once
// What quick_gelu and swish_beta share: x * sigmoid(beta * x) and its gradients.

#include "opfuse/ops/quick_gelu/quick_gelu.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/sigmoid.h>

#include "opfuse/torch/ops/operator.h"

namespace opfuse::torch_ops {

// The derivative after x, in operators that have derivatives; `inner` is beta * x.
inline Tensor swish_slope(const Tensor& inner) {
  const Tensor s = at::sigmoid(inner);
  return s * (inner * at::rsub(s, 1) + 1);
}

inline bool swish_backward_eligible(const Tensor& grad, const Tensor& x) {
  return is_plain(grad) && is_plain(x) && grad.scalar_type() == x.scalar_type() &&
         grad.sym_sizes() == x.sym_sizes();
}

// For x without gaps.
inline Tensor swish_forward(const Tensor& x, double beta) {
  const Tensor y = empty_as(x);
  ops::quick_gelu_kernels(isa()).forward(exec(), dtype_of(x), x.numel(), beta, data(x),
                                         data_out(y));
  return y;
}

// The gradient of x where it is wanted, laid out as x; that of beta through `grad_beta`, unless
// null.
inline Tensor swish_backward(const Tensor& grad, const Tensor& given, double beta, bool wanted,
                             double* grad_beta) {
  if (!given.is_non_overlapping_and_dense()) {
    const Tensor grad_x = swish_backward(grad, given.contiguous(), beta, wanted, grad_beta);
    return wanted ? at::empty_like(given).copy_(grad_x) : grad_x;
  }
  const Tensor d = laid_out_as(grad, given), grad_x = wanted ? at::empty_like(given) : Tensor();
  const Tensor scratch = workspace(ops::quick_gelu_workspace_bytes());
  ops::QuickGeluBackwardArgs args{};
  args.dtype = dtype_of(given);
  args.n = given.numel();
  args.beta = beta;
  args.grad = data(d);
  args.x = data(given);
  args.grad_x = data_out(grad_x);
  args.grad_beta = grad_beta;
  args.workspace = data_out(scratch);
  ops::quick_gelu_kernels(isa()).backward(exec(), args);
  return grad_x;
}

}  // namespace opfuse::torch_ops
