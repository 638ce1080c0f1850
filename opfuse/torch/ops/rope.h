#pragma once
// The torch side of ops/rope.

#include "opfuse/ops/rope/rope.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "opfuse/torch/ops/operator.h"

namespace opfuse::torch_ops {

// (-x2, x1) of halves, or of neighbours.
inline Tensor rotate(const Tensor& x, bool interleaved) {
  if (interleaved) {
    const Tensor even = x.slice(-1, 0, INT64_MAX, 2), odd = x.slice(-1, 1, INT64_MAX, 2);
    return at::stack({-odd, even}, -1).flatten(-2);
  }
  const c10::SymInt half = x.sym_size(-1) / 2;
  const Tensor x1 = x.narrow_symint(-1, 0, half);
  const Tensor x2 = x.narrow_symint(-1, half, x.sym_size(-1) - half);
  return at::cat({-x2, x1}, -1);
}

// The first cos.size(-1) elements rotated, the others as they are.
inline Tensor rope_composite(const Tensor& x, const Tensor& cos, const Tensor& sin,
                             bool interleaved, bool transpose) {
  const c10::SymInt rotary = cos.sym_size(-1);
  const bool partial = rotary < x.sym_size(-1);
  const Tensor head = partial ? x.narrow_symint(-1, 0, rotary) : x;
  const Tensor turned =
      transpose ? -rotate(head * sin, interleaved) : rotate(head, interleaved) * sin;
  const Tensor y = head * cos + turned;
  if (!partial) return y;
  return at::cat({y, x.narrow_symint(-1, rotary, x.sym_size(-1) - rotary)}, -1);
}

inline bool rope_eligible(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  if (!is_plain(x) || !is_plain(cos) || !is_plain(sin) || x.dim() < 1 ||
      x.dim() > ops::kRopeDims + 1 || cos.scalar_type() != x.scalar_type() ||
      sin.scalar_type() != x.scalar_type() || cos.dim() < 1 || cos.dim() > x.dim() ||
      cos.sym_sizes() != sin.sym_sizes())
    return false;
  const c10::SymInt rotary = cos.sym_size(-1);
  if (rotary > x.sym_size(-1) || rotary < 2 || rotary % 2 != 0) return false;
  for (int64_t back = 2; back <= cos.dim(); ++back)  // cos expands to x, not the other way round
    if (cos.sym_size(-back) != 1 && cos.sym_size(-back) != x.sym_size(-back)) return false;
  return true;
}

// Strides of a table, expanded to x's rows, in the order in which these lie in memory.
inline void fill_rows(const Tensor& x, const Tensor& table, const std::vector<int64_t>& order,
                      std::array<int64_t, ops::kRopeDims>* strides) {
  strides->fill(0);
  const int64_t lead = static_cast<int64_t>(order.size());
  for (int64_t i = 0; i < lead; ++i) {
    const int64_t dim = order[i] - (x.dim() - table.dim());
    if (dim >= 0 && table.size(dim) != 1) (*strides)[ops::kRopeDims - lead + i] = table.stride(dim);
  }
}

inline Tensor rope_kernel(const Tensor& given, const Tensor& cos_given, const Tensor& sin_given,
                          bool interleaved, bool transpose) {
  const Tensor cos = cos_given.stride(-1) == 1 ? cos_given : cos_given.contiguous();
  const Tensor sin = sin_given.stride(-1) == 1 ? sin_given : sin_given.contiguous();
  const Tensor x =
      has_dense_rows(given) && (cos.size(-1) == given.size(-1) || given.is_contiguous())
          ? given
          : given.contiguous();
  const Tensor y = empty_as(x);
  std::vector<int64_t> order(x.dim() - 1);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return x.stride(a) > x.stride(b); });
  ops::RopeArgs args{};
  args.dtype = dtype_of(x);
  args.sizes.fill(1);
  for (size_t i = 0; i < order.size(); ++i)
    args.sizes[ops::kRopeDims - order.size() + i] = x.size(order[i]);
  fill_rows(x, cos, order, &args.cos_strides);
  fill_rows(x, sin, order, &args.sin_strides);
  args.cols = x.size(-1);
  args.rotary = cos.size(-1);
  args.x = data(x);
  args.cos = data(cos);
  args.sin = data(sin);
  args.interleaved = interleaved;
  args.transpose = transpose;
  args.y = data_out(y);
  ops::rope_kernels(isa()).rotate(exec(), args);
  return y;
}

struct RopeBackward {
  static constexpr const char* schema =
      "rope_backward(Tensor grad, Tensor cos, Tensor sin, bool interleaved) -> Tensor";
  static Tensor composite(const Tensor& grad, const Tensor& cos, const Tensor& sin,
                          bool interleaved) {
    return rope_composite(grad, cos, sin, interleaved, true);
  }
  static bool eligible(const Tensor& grad, const Tensor& cos, const Tensor& sin, bool) {
    return rope_eligible(grad, cos, sin);
  }
  static Tensor meta(const Tensor& grad, const Tensor& cos, const Tensor& sin, bool interleaved) {
    return composite(grad, cos, sin, interleaved);
  }
  static Tensor cpu(const Tensor& grad, const Tensor& cos, const Tensor& sin, bool interleaved) {
    if (!has_dense_rows(grad)) return composite(grad, cos, sin, interleaved);
    return rope_kernel(grad, cos, sin, interleaved, true);
  }
};

struct Rope {
  static constexpr const char* schema =
      "rope(Tensor x, Tensor cos, Tensor sin, bool interleaved=False) -> Tensor";
  using Backward = RopeBackward;
  static Tensor composite(const Tensor& x, const Tensor& cos, const Tensor& sin, bool interleaved) {
    return rope_composite(x, cos, sin, interleaved, false);
  }
  static bool eligible(const Tensor& x, const Tensor& cos, const Tensor& sin, bool) {
    return rope_eligible(x, cos, sin);
  }
  // Tables that are trained are rare: their gradient is the composite's.
  static bool differentiable(const Tensor&, const Tensor& cos, const Tensor& sin, bool) {
    return !cos.requires_grad() && !sin.requires_grad();
  }
  static Tensor cpu(const Tensor& x, const Tensor& cos, const Tensor& sin, bool interleaved) {
    if (!has_dense_rows(x)) return composite(x, cos, sin, interleaved);
    return rope_kernel(x, cos, sin, interleaved, false);
  }
  static void save(AutogradContext* context, const variable_list&, const Tensor&, const Tensor& cos,
                   const Tensor& sin, bool interleaved) {
    context->save_for_backward({cos, sin});
    context->saved_data["interleaved"] = interleaved;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    return {call_backward<RopeBackward>(grads[0], saved[0], saved[1],
                                        context->saved_data["interleaved"].toBool()),
            Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace opfuse::torch_ops

OPFUSE_OPERATOR(Rope)
