#pragma once
// What operators with a depthwise convolution share: the formulas in ATen operators, which
// arguments kernels take, layouts.

#include "opfuse/ops/depthwise_conv2d/depthwise_conv2d.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>

#include <array>
#include <tuple>

#include "opfuse/torch/ops/runtime.h"

namespace opfuse::torch_ops {

// `padding` is (left, right, top, bottom), as of F.pad.
inline void check_depthwise(const char* op, at::IntArrayRef stride, at::IntArrayRef padding) {
  TORCH_CHECK_VALUE(stride.size() == 2 && padding.size() == 4, op,
                    ": expected 2 strides and 4 paddings (left, right, top, bottom), "
                    "found ",
                    stride.size(), " and ", padding.size());
}

inline Tensor depthwise_padded(const Tensor& x, at::IntArrayRef padding) {
  const bool none = !padding[0] && !padding[1] && !padding[2] && !padding[3];
  return none ? x : at::constant_pad_nd(x, padding, 0);
}

inline c10::SymInt depthwise_size(const c10::SymInt& size, int64_t before, int64_t after,
                                  const c10::SymInt& kernel, int64_t stride) {
  return (size + before + after - kernel) / stride + 1;
}

inline bool depthwise_eligible(const Tensor& x, const Tensor& weight, at::IntArrayRef stride,
                               at::IntArrayRef padding) {
  if (!is_plain(x) || !is_plain(weight) || x.dim() != 4 || weight.dim() != 4 ||
      x.scalar_type() != weight.scalar_type() || stride.size() != 2 || padding.size() != 4)
    return false;
  const c10::SymInt kernel = weight.sym_size(2);
  if (stride[0] != stride[1] || stride[0] < 1 || weight.sym_size(1) != 1 ||
      weight.sym_size(0) != x.sym_size(1) || weight.sym_size(3) != kernel || x.sym_numel() == 0)
    return false;
  for (int64_t p : padding)
    if (p < 0 || p >= kernel) return false;
  return x.sym_size(2) + padding[2] + padding[3] >= kernel &&
         x.sym_size(3) + padding[0] + padding[1] >= kernel;
}

inline ops::DepthwiseShape depthwise_shape(const Tensor& x, int64_t kernel, int64_t stride,
                                           at::IntArrayRef padding) {
  ops::DepthwiseShape s{};
  s.dtype = dtype_of(x);
  s.samples = x.size(0);
  s.channels = x.size(1);
  s.height = x.size(2);
  s.width = x.size(3);
  s.kernel = kernel;
  s.stride = stride;
  s.pad_left = padding[0];
  s.pad_top = padding[2];
  s.out_height = (s.height + padding[2] + padding[3] - kernel) / stride + 1;
  s.out_width = (s.width + padding[0] + padding[1] - kernel) / stride + 1;
  return s;
}

// [C, 1, K, K] as kernels read it: [K * K, C] of the compute type.
inline Tensor kernel_filters(const Tensor& weight) {
  return weight.reshape({weight.size(0), -1})
      .t()
      .to(compute_type(weight.scalar_type()))
      .contiguous();
}

inline bool is_last(const Tensor& t) {
  return t.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
}
inline Tensor channels_last(const Tensor& t) {
  return t.contiguous(at::MemoryFormat::ChannelsLast);
}

inline Tensor depthwise_formula(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                                at::IntArrayRef stride, at::IntArrayRef padding) {
  return at::conv2d_symint(depthwise_padded(x, padding), weight, bias,
                           c10::fromIntArrayRefSlow(stride), c10::SymIntArrayRef{0, 0},
                           c10::SymIntArrayRef{1, 1}, x.sym_size(1));
}

// Of x and the weight.
inline std::tuple<Tensor, Tensor> depthwise_gradients(const Tensor& grad, const Tensor& x,
                                                      const Tensor& weight, at::IntArrayRef stride,
                                                      at::IntArrayRef padding,
                                                      std::array<bool, 2> wanted) {
  const Tensor padded = depthwise_padded(x, padding);
  auto [grad_x, grad_weight, unused] = at::convolution_backward_symint(
      grad, padded, weight, at::OptionalSymIntArrayRef(std::nullopt),
      c10::fromIntArrayRefSlow(stride), c10::SymIntArrayRef{0, 0}, c10::SymIntArrayRef{1, 1}, false,
      c10::SymIntArrayRef{0, 0}, x.sym_size(1), {wanted[0], wanted[1], false});
  if (wanted[0] && !padded.is_same(x))
    grad_x = grad_x.narrow_symint(2, padding[2], x.sym_size(2))
                 .narrow_symint(3, padding[0], x.sym_size(3));
  return {grad_x, grad_weight};
}

inline c10::SymInt depthwise_height(const Tensor& x, const Tensor& weight, at::IntArrayRef stride,
                                    at::IntArrayRef padding) {
  return depthwise_size(x.sym_size(2), padding[2], padding[3], weight.sym_size(2), stride[0]);
}
inline c10::SymInt depthwise_width(const Tensor& x, const Tensor& weight, at::IntArrayRef stride,
                                   at::IntArrayRef padding) {
  return depthwise_size(x.sym_size(3), padding[0], padding[1], weight.sym_size(3), stride[1]);
}
inline bool is_depthwise_result(const Tensor& t, const Tensor& x, const Tensor& weight,
                                at::IntArrayRef stride, at::IntArrayRef padding) {
  return t.dim() == 4 && t.sym_size(0) == x.sym_size(0) && t.sym_size(1) == x.sym_size(1) &&
         t.sym_size(2) == depthwise_height(x, weight, stride, padding) &&
         t.sym_size(3) == depthwise_width(x, weight, stride, padding);
}
inline Tensor empty_depthwise(const Tensor& x, const Tensor& weight, at::IntArrayRef stride,
                              at::IntArrayRef padding, bool last) {
  return at::empty_symint(
      {x.sym_size(0), x.sym_size(1), depthwise_height(x, weight, stride, padding),
       depthwise_width(x, weight, stride, padding)},
      x.options(), last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
}

}  // namespace opfuse::torch_ops
