#pragma once
// The torch side of ops/depthwise_conv2d.

#include "opfuse/ops/depthwise_conv2d/depthwise_conv2d.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>

#include "opfuse/torch/ops/depthwise_formula.h"
#include "opfuse/torch/ops/operator.h"

namespace opfuse::torch_ops {

struct DepthwiseConv2dBackward {
  static constexpr const char* schema =
      "depthwise_conv2d_backward(Tensor grad, Tensor x, Tensor weight, int[2] stride, "
      "int[4] padding, bool[2] wanted) -> (Tensor, Tensor)";
  using Result = std::tuple<Tensor, Tensor>;

  static Result composite(const Tensor& grad, const Tensor& x, const Tensor& weight,
                          at::IntArrayRef stride, at::IntArrayRef padding,
                          std::array<bool, 2> wanted) {
    return depthwise_gradients(grad, x, weight, stride, padding, wanted);
  }
  static bool eligible(const Tensor& grad, const Tensor& x, const Tensor& weight,
                       at::IntArrayRef stride, at::IntArrayRef padding, std::array<bool, 2>) {
    return depthwise_eligible(x, weight, stride, padding) && is_plain(grad) && grad.dim() == 4 &&
           grad.scalar_type() == x.scalar_type() &&
           is_depthwise_result(grad, x, weight, stride, padding);
  }
  static Result meta(const Tensor&, const Tensor& x, const Tensor& weight, at::IntArrayRef,
                     at::IntArrayRef, std::array<bool, 2> wanted) {
    return {wanted[0] ? at::empty_symint(x.sym_sizes(), x.options(), x.suggest_memory_format())
                      : Tensor(),
            wanted[1] ? at::empty_like(weight) : Tensor()};
  }
  static Result cpu(const Tensor& grad, const Tensor& given, const Tensor& weight,
                    at::IntArrayRef stride, at::IntArrayRef padding, std::array<bool, 2> wanted) {
    const Tensor x = channels_last(given), d = channels_last(grad);
    const auto shape = depthwise_shape(x, weight.size(2), stride[0], padding);
    const Tensor scratch = workspace(ops::depthwise_workspace_bytes(shape));
    const auto& kernels = ops::depthwise_conv2d_kernels(isa());
    Tensor grad_x, grad_weight;
    if (wanted[0]) {
      const Tensor filters = kernel_filters(weight);
      grad_x = at::empty(x.sizes(), x.options(), at::MemoryFormat::ChannelsLast);
      kernels.grad_x(exec(), shape, data(d), data(filters), data_out(grad_x), data_out(scratch));
      if (!is_last(given)) grad_x = at::empty(x.sizes(), given.options()).copy_(grad_x);
    }
    if (wanted[1]) {
      const Tensor sums =
          at::empty({shape.kernel * shape.kernel, shape.channels},
                    x.options().dtype(compute_type(x.scalar_type())).memory_format(std::nullopt));
      kernels.grad_filters(exec(), shape, data(d), data(x), data_out(sums), data_out(scratch));
      grad_weight = at::empty_like(weight).copy_(sums.t().reshape(weight.sizes()));
    }
    return {grad_x, grad_weight};
  }
};

struct DepthwiseConv2d {
  static constexpr const char* schema =
      "depthwise_conv2d(Tensor x, Tensor weight, Tensor? bias, int[2] stride, int[4] padding) "
      "-> Tensor";
  using Backward = DepthwiseConv2dBackward;

  static Tensor composite(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                          at::IntArrayRef stride, at::IntArrayRef padding) {
    check_depthwise("depthwise_conv2d", stride, padding);
    return depthwise_formula(x, weight, bias, stride, padding);
  }
  static bool eligible(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                       at::IntArrayRef stride, at::IntArrayRef padding) {
    return depthwise_eligible(x, weight, stride, padding) &&
           (!has(bias) ||
            (is_plain(*bias) && bias->dim() == 1 && bias->scalar_type() == x.scalar_type() &&
             bias->sym_size(0) == x.sym_size(1)));
  }
  // conv2d lays out its result on the meta device otherwise than on the CPU.
  static Tensor meta(const Tensor& x, const Tensor& weight, const OptionalTensor&,
                     at::IntArrayRef stride, at::IntArrayRef padding) {
    return empty_depthwise(x, weight, stride, padding, is_last(x) || is_last(weight));
  }
  static Tensor cpu(const Tensor& given, const Tensor& weight, const OptionalTensor& bias,
                    at::IntArrayRef stride, at::IntArrayRef padding) {
    const Tensor x = channels_last(given), filters = kernel_filters(weight);
    const auto s = depthwise_shape(x, weight.size(2), stride[0], padding);
    const Tensor y = at::empty({s.samples, s.channels, s.out_height, s.out_width}, x.options(),
                               at::MemoryFormat::ChannelsLast);
    ops::depthwise_conv2d_kernels(isa()).forward(exec(), s, data(x), data(filters), data_out(y));
    if (has(bias)) y.add_(bias->view({1, -1, 1, 1}));
    // Not contiguous(): a tensor of one position is so already, with other strides.
    return is_last(given) || is_last(weight) ? y : at::empty(y.sizes(), y.options()).copy_(y);
  }
  static std::tuple<Tensor, Tensor, OptionalTensor, at::IntArrayRef, at::IntArrayRef> autocast(
      const Tensor& x, const Tensor& weight, const OptionalTensor& bias, at::IntArrayRef stride,
      at::IntArrayRef padding) {
    const auto type = at::autocast::get_autocast_dtype(at::kCPU);
    const auto cast = [&](const Tensor& t) {
      return at::autocast::cached_cast(type, t, c10::DeviceType::CPU);
    };
    return {cast(x), cast(weight), has(bias) ? OptionalTensor(cast(*bias)) : std::nullopt, stride,
            padding};
  }
  static void save(AutogradContext* context, const variable_list&, const Tensor& x,
                   const Tensor& weight, const OptionalTensor& bias, at::IntArrayRef stride,
                   at::IntArrayRef padding) {
    context->save_for_backward({x, weight});
    context->saved_data["stride"] = stride.vec();
    context->saved_data["padding"] = padding.vec();
    context->saved_data["bias"] = has(bias);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const auto stride = context->saved_data["stride"].toIntVector();
    const auto padding = context->saved_data["padding"].toIntVector();
    const std::array wanted{context->needs_input_grad(0), context->needs_input_grad(1)};
    Tensor grad_x, grad_weight, grad_bias;
    if (wanted[0] || wanted[1])
      std::tie(grad_x, grad_weight) = call_backward<DepthwiseConv2dBackward>(
          grads[0], saved[0], saved[1], at::IntArrayRef(stride), at::IntArrayRef(padding), wanted);
    if (context->saved_data["bias"].toBool() && context->needs_input_grad(2))
      grad_bias = at::sum(grads[0], {0, 2, 3});
    return {grad_x, grad_weight, grad_bias, Tensor(), Tensor()};
  }
};

}  // namespace opfuse::torch_ops

OPFUSE_OPERATOR(DepthwiseConv2d)
