#pragma once
// The torch side of ops/layer_norm_channels.

#include "opfuse/ops/layer_norm_channels/layer_norm_channels.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/sum.h>

#include "opfuse/torch/ops/norm_formula.h"
#include "opfuse/torch/ops/operator.h"

namespace opfuse::torch_ops {

inline bool is_channel_parameter(const OptionalTensor& t, const Tensor& x) {
  return !has(t) || (is_plain(*t) && t->dim() == 1 && t->sym_size(0) == x.sym_size(1) &&
                     t->scalar_type() == x.scalar_type());
}

inline ops::ImageShape image_shape(const Tensor& x) {
  return {dtype_of(x), x.size(0), x.size(1), x.size(2) * x.size(3), !x.is_contiguous()};
}

struct LayerNormChannelsBackward {
  static constexpr const char* schema =
      "layer_norm_channels_backward(Tensor grad, Tensor x, Tensor? weight, float eps, "
      "bool[3] wanted) -> (Tensor, Tensor, Tensor)";
  using Result = std::tuple<Tensor, Tensor, Tensor>;
  using Wanted = std::array<bool, 3>;  // x, weight, bias

  static Result composite(const Tensor& grad, const Tensor& x, const OptionalTensor& weight,
                          double eps, Wanted wanted) {
    const auto type = compute_type(x.scalar_type()), own = x.scalar_type();
    const Tensor h = x.to(type), d = grad.to(type);
    const Tensor centered = h - at::mean(h, {1}, true);
    const Tensor root = at::rsqrt(at::mean(centered * centered, {1}, true) + eps);
    const Tensor u = centered * root;
    const Tensor dw = has(weight) ? d * along(weight->to(type), 1, x) : d;
    const Tensor g = (dw - at::mean(dw, {1}, true) - u * at::mean(dw * u, {1}, true)) * root;
    return {wanted[0] ? g.to(own) : Tensor(),
            wanted[1] ? at::sum(d * u, {0, 2, 3}).to(own) : Tensor(),
            wanted[2] ? at::sum(d, {0, 2, 3}).to(own) : Tensor()};
  }
  static bool eligible(const Tensor& grad, const Tensor& x, const OptionalTensor& weight, double,
                       Wanted) {
    return is_plain(x) && x.dim() == 4 && x.sym_numel() != 0 && is_channel_parameter(weight, x) &&
           is_plain(grad) && grad.scalar_type() == x.scalar_type() &&
           grad.sym_sizes() == x.sym_sizes();
  }
  static Result meta(const Tensor&, const Tensor& x, const OptionalTensor&, double, Wanted wanted) {
    const auto vector = [&](bool is_wanted) {
      return is_wanted ? at::empty_symint({x.sym_size(1)}, x.options().memory_format(std::nullopt))
                       : Tensor();
    };
    return {wanted[0] ? at::empty_like(x) : Tensor(), vector(wanted[1]), vector(wanted[2])};
  }
  static Result cpu(const Tensor& grad, const Tensor& given, const OptionalTensor& weight,
                    double eps, Wanted wanted) {
    if (!given.is_contiguous() && !given.is_contiguous(at::MemoryFormat::ChannelsLast)) {
      auto [grad_x, grad_w, grad_b] = cpu(grad, given.contiguous(), weight, eps, wanted);
      if (wanted[0]) grad_x = at::empty_like(given).copy_(grad_x);
      return {grad_x, grad_w, grad_b};
    }
    const auto type = compute_type(given.scalar_type());
    const auto options = given.options().dtype(type).memory_format(std::nullopt);
    const Tensor d = laid_out_as(grad, given);
    const Tensor w = has(weight) ? contiguous_as(*weight, type) : Tensor();
    const Tensor grad_x = wanted[0] ? at::empty_like(given) : Tensor();
    Tensor grad_w = wanted[1] ? at::empty({given.size(1)}, options) : Tensor();
    Tensor grad_b = wanted[2] ? at::empty({given.size(1)}, options) : Tensor();
    ops::LayerNormChannelsBackwardArgs args{};
    args.shape = image_shape(given);
    const Tensor scratch = workspace(ops::layer_norm_channels_workspace_bytes(args.shape));
    args.grad = data(d);
    args.x = data(given);
    args.weight = pointer(w);
    args.eps = eps;
    args.grad_x = data_out(grad_x);
    args.grad_weight = data_out(grad_w);
    args.grad_bias = data_out(grad_b);
    args.workspace = data_out(scratch);
    ops::layer_norm_channels_kernels(isa()).backward(exec(), args);
    if (grad_w.defined()) grad_w = grad_w.to(given.scalar_type());
    if (grad_b.defined()) grad_b = grad_b.to(given.scalar_type());
    return {grad_x, grad_w, grad_b};
  }
};

struct LayerNormChannels {
  static constexpr const char* schema =
      "layer_norm_channels(Tensor x, Tensor? weight, Tensor? bias, float eps, "
      "bool channels_last=False) -> Tensor";
  using Backward = LayerNormChannelsBackward;

  static Tensor composite(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                          double eps, bool channels_last) {
    TORCH_CHECK(x.dim() == 4,
                "layer_norm_channels: expected x of 4 dimensions (N, C, H, W), found ", x.dim());
    if (channels_last)
      return at::layer_norm_symint(x.permute({0, 2, 3, 1}), {x.sym_size(1)}, weight, bias, eps)
          .permute({0, 3, 1, 2});
    const Tensor d = x - at::mean(x, {1}, true);
    Tensor y = d / at::sqrt(at::mean(d * d, {1}, true) + eps);
    const auto over_pixels = [](const Tensor& t) { return t.unsqueeze(-1).unsqueeze(-1); };
    if (has(weight)) y = y * over_pixels(*weight);
    if (has(bias)) y = y + over_pixels(*bias);
    return y;
  }
  static bool eligible(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                       double, bool) {
    return is_plain(x) && x.dim() == 4 && x.sym_numel() != 0 && is_channel_parameter(weight, x) &&
           is_channel_parameter(bias, x);
  }
  static Tensor cpu(const Tensor& given, const OptionalTensor& weight, const OptionalTensor& bias,
                    double eps, bool channels_last) {
    constexpr auto kLast = at::MemoryFormat::ChannelsLast;
    if (!channels_last && !given.is_contiguous() && !given.is_contiguous(kLast))
      return composite(given, weight, bias, eps, false);
    const Tensor x = channels_last ? given.contiguous(kLast) : given;
    const auto type = compute_type(x.scalar_type());
    const Tensor w = has(weight) ? contiguous_as(*weight, type) : Tensor();
    const Tensor b = has(bias) ? contiguous_as(*bias, type) : Tensor();
    const Tensor y = channels_last ? at::empty(x.sizes(), x.options(), kLast) : empty_as(x);
    ops::LayerNormChannelsArgs args{};
    args.shape = image_shape(x);
    if (channels_last) args.shape.channels_last = true;
    args.x = data(x);
    args.weight = pointer(w);
    args.bias = pointer(b);
    args.eps = eps;
    args.y = data_out(y);
    ops::layer_norm_channels_kernels(isa()).forward(exec(), args);
    return y;
  }
  static void save(AutogradContext* context, const variable_list&, const Tensor& x,
                   const OptionalTensor& weight, const OptionalTensor& bias, double eps, bool) {
    context->save_for_backward({x, weight.value_or(Tensor())});
    context->saved_data["eps"] = eps;
    context->saved_data["bias"] = has(bias);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    // needs_input_grad counts the tensors that are there.
    const bool weighted = saved[1].defined(), biased = context->saved_data["bias"].toBool();
    const LayerNormChannelsBackward::Wanted wanted{
        context->needs_input_grad(0), weighted && context->needs_input_grad(1),
        biased && context->needs_input_grad(1 + weighted)};
    const auto [grad_x, grad_w, grad_b] = call_backward<LayerNormChannelsBackward>(
        grads[0], saved[0], weighted ? OptionalTensor(saved[1]) : std::nullopt,
        context->saved_data["eps"].toDouble(), wanted);
    return {grad_x, grad_w, grad_b, Tensor(), Tensor()};
  }
};

}  // namespace opfuse::torch_ops

OPFUSE_OPERATOR(LayerNormChannels)
