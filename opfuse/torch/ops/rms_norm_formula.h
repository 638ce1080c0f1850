#pragma once
// What rms_norm and add_rms_norm share: the composition, its gradient, and which arguments the
// kernels take.

#include <ATen/ops/empty_like.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sum.h>

#include <numeric>
#include <string_view>
#include <vector>

#include "opfuse/torch/ops/operator.h"

namespace opfuse::torch_ops {

// Where the casts of low precision inputs stand.
//   "output"  x is raised to f32, the product with the weight (raised too) is rounded once: Gemma,
//             torch.nn.functional.rms_norm
//   "input"   x is raised to f32, x / root is rounded to x's dtype, then multiplied by the weight
//   in
//             the dtype that torch promotes to: Llama, Qwen, T5
//   "none"    no casts
inline bool is_cast(std::string_view cast) {
  return cast == "output" || cast == "input" || cast == "none";
}

inline void check_cast(const char* name, std::string_view cast) {
  TORCH_CHECK_VALUE(is_cast(cast), name, ": expected cast 'output', 'input' or 'none', found '",
                    cast, "'");
}

// f32 for everything but f64 and complex numbers, as `.float()` would be used with them.
inline c10::ScalarType raised_type(const Tensor& x) {
  return x.scalar_type() == at::kDouble || x.is_complex() ? x.scalar_type() : at::kFloat;
}

inline Tensor inverse_root(const Tensor& x, double eps) {
  return at::rsqrt(at::mean(x * x, {-1}, true) + eps);
}

inline Tensor rms_norm_formula(const Tensor& x, const OptionalTensor& weight, double eps,
                               double offset, std::string_view cast) {
  const bool raise = cast != "none";
  const Tensor raised = raise ? x.to(raised_type(x)) : x;
  Tensor h = raised * inverse_root(raised, eps);
  if (cast == "input") h = h.to(x.scalar_type());
  if (has(weight)) {
    Tensor w = cast == "output" ? weight->to(raised_type(x)) : *weight;
    if (offset != 0) w = w + offset;
    h = h * w;
  }
  return cast == "output" ? h.to(x.scalar_type()) : h;
}

// Gradients of y; `added` is the gradient that reaches x beside y's, undefined for none.
inline std::tuple<Tensor, Tensor> rms_norm_gradient(const Tensor& grad, const Tensor& x,
                                                    const OptionalTensor& weight, double eps,
                                                    double offset, const Tensor& added,
                                                    std::array<bool, 2> wanted) {
  const c10::ScalarType type = raised_type(x);
  const Tensor d = grad.to(type), v = x.to(type);
  const Tensor root = inverse_root(v, eps);
  Tensor grad_x, grad_weight;
  if (wanted[0]) {
    Tensor weighted = d;
    if (has(weight)) weighted = d * (weight->to(type) + offset);
    grad_x = weighted * root - v * (root * root * root * at::mean(weighted * v, {-1}, true));
    if (added.defined()) grad_x = grad_x + added.to(type);
    grad_x = grad_x.to(x.scalar_type());
  }
  if (wanted[1] && has(weight)) {
    const Tensor product = d * (v * root);
    std::vector<int64_t> dims(x.dim() - 1);
    std::iota(dims.begin(), dims.end(), 0);
    grad_weight = (dims.empty() ? product : at::sum(product, dims)).to(weight->scalar_type());
  }
  return {grad_x, grad_weight};
}

inline bool rms_norm_eligible(const Tensor& x, const OptionalTensor& weight, double offset,
                              std::string_view cast) {
  if (!is_cast(cast) || !is_plain(x) || x.dim() < 1) return false;
  if (!has(weight)) return offset == 0;
  if (!is_plain(*weight) || weight->dim() != 1 || weight->sym_size(0) != x.sym_size(-1))
    return false;
  return cast == "output" || weight->scalar_type() == x.scalar_type();
}

// The weight as kernels read it.
inline Tensor kernel_weight(const OptionalTensor& weight, const Tensor& x) {
  return has(weight) ? contiguous_as(*weight, compute_type(x.scalar_type())) : Tensor();
}

inline const void* data_or_null(const Tensor& t) { return t.defined() ? data(t) : nullptr; }

}  // namespace opfuse::torch_ops
