#pragma once
// The torch side of ops/scale_mask_softmax.

#include "opfuse/ops/scale_mask_softmax/scale_mask_softmax.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sum.h>

#include <cmath>

#include "opfuse/torch/ops/operator.h"

namespace opfuse::torch_ops {

inline bool is_boolean(const OptionalTensor& mask) {
  return has(mask) && mask->scalar_type() == at::kBool;
}

// Which scores take part: the boolean mask and the causal one, lower left from the first row on, as
// in scaled_dot_product_attention. Undefined: all.
inline Tensor taking_part(const Tensor& x, const OptionalTensor& mask, bool causal) {
  Tensor part = is_boolean(mask) ? *mask : Tensor();
  if (!causal) return part;
  const Tensor lower =
      at::ones_symint({x.sym_size(-2), x.sym_size(-1)}, x.options().dtype(at::kBool)).tril();
  return part.defined() ? at::logical_and(part, lower) : lower;
}

// A mask that kernels read: broadcast over all but the last dimension, and contiguous in that.
inline bool is_mask_of(const OptionalTensor& mask, const Tensor& x) {
  if (!has(mask)) return true;
  const Tensor& m = *mask;
  if (m.layout() != at::kStrided || !(m.is_cpu() || m.is_meta()) || m.is_neg()) return false;
  if (m.scalar_type() != at::kBool && m.scalar_type() != x.scalar_type()) return false;
  if (m.dim() < 1 || m.dim() > x.dim() || m.sym_size(-1) != x.sym_size(-1)) return false;
  for (int64_t dim = 2; dim <= m.dim(); ++dim)
    if (m.sym_size(-dim) != 1 && m.sym_size(-dim) != x.sym_size(-dim)) return false;
  return true;
}

inline bool softmax_eligible(const Tensor& x, const OptionalTensor& mask, bool causal) {
  return is_plain(x) && x.dim() >= (causal ? 2 : 1) && x.dim() <= ops::kMaskDims &&
         x.sym_numel() != 0 && is_mask_of(mask, x);
}

// The score of what takes no part; a schema knows no infinity as default.
inline double fill_score(std::optional<double> fill) { return fill.value_or(-HUGE_VAL); }

// Is `fill` a number of that dtype? Otherwise masked_fill refuses it.
inline bool holds(c10::ScalarType type, double fill) {
  const double most = type == at::kHalf     ? 65504.0
                      : type == at::kDouble ? HUGE_VAL
                                            : 3.4028234663852886e38;
  return !std::isfinite(fill) || std::abs(fill) <= most;
}

// The mask by the rows of x; `held` keeps what is read alive.
inline ops::RowMask row_mask(const OptionalTensor& mask, const Tensor& x, Tensor* held) {
  ops::RowMask rows;
  if (!has(mask)) return rows;
  *held = mask->stride(-1) == 1 || mask->size(-1) == 1 ? *mask : mask->contiguous();
  const Tensor wide = held->expand(x.sizes());
  rows.data = held->const_data_ptr();
  rows.additive = mask->scalar_type() != at::kBool;
  rows.dims = static_cast<int>(x.dim() - 1);
  for (int dim = 0; dim < rows.dims; ++dim) {
    rows.size[dim] = x.size(dim);
    rows.stride[dim] = wide.stride(dim);
  }
  return rows;
}

struct ScaleMaskSoftmaxBackward {
  static constexpr const char* schema =
      "scale_mask_softmax_backward(Tensor grad, Tensor y, Tensor? mask, float scale, bool causal) "
      "-> Tensor";

  // `mask` is boolean or absent.
  static Tensor composite(const Tensor& grad, const Tensor& y, const OptionalTensor& mask,
                          double scale, bool causal) {
    const auto type = compute_type(y.scalar_type());
    const Tensor d = grad.to(type), p = y.to(type);
    Tensor g = (d - at::sum(d * p, {-1}, true)) * p * scale;
    const Tensor part = taking_part(y, mask, causal);
    if (part.defined()) g = g.masked_fill(at::logical_not(part), 0);
    return g.to(y.scalar_type());
  }
  static bool eligible(const Tensor& grad, const Tensor& y, const OptionalTensor& mask, double,
                       bool causal) {
    return softmax_eligible(y, mask, causal) && (!has(mask) || is_boolean(mask)) &&
           is_plain(grad) && grad.scalar_type() == y.scalar_type() &&
           grad.sym_sizes() == y.sym_sizes();
  }
  static Tensor meta(const Tensor&, const Tensor& y, const OptionalTensor&, double, bool) {
    return at::empty_symint(y.sym_sizes(), y.options());
  }
  static Tensor cpu(const Tensor& grad, const Tensor& given, const OptionalTensor& mask,
                    double scale, bool causal) {
    const Tensor y = given.contiguous(), d = grad.contiguous();
    const Tensor grad_x = at::empty(y.sizes(), y.options().memory_format(std::nullopt));
    Tensor held;
    ops::ScaleMaskSoftmaxBackwardArgs args{};
    args.dtype = dtype_of(y);
    args.cols = y.size(-1);
    args.rows = y.numel() / args.cols;
    args.queries = causal ? y.size(-2) : 0;
    args.grad = data(d);
    args.y = data(y);
    args.mask = row_mask(mask, y, &held);
    args.scale = scale;
    args.grad_x = data_out(grad_x);
    ops::scale_mask_softmax_kernels(isa()).backward(exec(), args);
    return grad_x;
  }
};

struct ScaleMaskSoftmax {
  static constexpr const char* schema =
      "scale_mask_softmax(Tensor x, Tensor? mask, float scale, bool causal=False, "
      "float? fill=None) -> Tensor";
  using Backward = ScaleMaskSoftmaxBackward;

  static Tensor composite(const Tensor& x, const OptionalTensor& mask, double scale, bool causal,
                          std::optional<double> fill) {
    Tensor s = x * scale;
    if (has(mask) && !is_boolean(mask)) s = s + *mask;
    const Tensor part = taking_part(x, mask, causal);
    if (part.defined()) s = s.masked_fill(at::logical_not(part), fill_score(fill));
    return at::softmax(s, -1);
  }
  static bool eligible(const Tensor& x, const OptionalTensor& mask, double, bool causal,
                       std::optional<double> fill) {
    return softmax_eligible(x, mask, causal) && holds(x.scalar_type(), fill_score(fill));
  }
  static bool differentiable(const Tensor&, const OptionalTensor& mask, double, bool,
                             std::optional<double>) {
    return !needs_grad(mask);
  }
  static Tensor cpu(const Tensor& given, const OptionalTensor& mask, double scale, bool causal,
                    std::optional<double> fill) {
    const Tensor x = given.contiguous();  // softmax gives contiguous results
    const Tensor y = at::empty(x.sizes(), x.options().memory_format(std::nullopt));
    Tensor held;
    ops::ScaleMaskSoftmaxArgs args{};
    args.dtype = dtype_of(x);
    args.cols = x.size(-1);
    args.rows = x.numel() / args.cols;
    args.queries = causal ? x.size(-2) : 0;
    args.x = data(x);
    args.mask = row_mask(mask, x, &held);
    args.scale = scale;
    args.fill = fill_score(fill);
    args.y = data_out(y);
    ops::scale_mask_softmax_kernels(isa()).forward(exec(), args);
    return y;
  }
  static void save(AutogradContext* context, const variable_list& results, const Tensor&,
                   const OptionalTensor& mask, double scale, bool causal, std::optional<double>) {
    context->save_for_backward({results[0], is_boolean(mask) ? *mask : Tensor()});
    context->saved_data["scale"] = scale;
    context->saved_data["causal"] = causal;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    return {call_backward<ScaleMaskSoftmaxBackward>(
                grads[0], saved[0], saved[1].defined() ? OptionalTensor(saved[1]) : std::nullopt,
                context->saved_data["scale"].toDouble(), context->saved_data["causal"].toBool()),
            Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace opfuse::torch_ops

OPFUSE_OPERATOR(ScaleMaskSoftmax)
