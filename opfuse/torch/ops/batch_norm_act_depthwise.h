#pragma once
// The torch side of ops/batch_norm_act_depthwise.

#include "opfuse/ops/batch_norm_act_depthwise/batch_norm_act_depthwise.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <string>

#include "opfuse/torch/ops/depthwise_formula.h"
#include "opfuse/torch/ops/norm_formula.h"
#include "opfuse/torch/ops/operator.h"

namespace opfuse::torch_ops {

inline bool norm_depthwise_eligible(const Tensor& x, const OptionalTensor& weight,
                                    const OptionalTensor& bias, const OptionalTensor& mean,
                                    const OptionalTensor& var, std::string_view activation,
                                    const Tensor& filters, at::IntArrayRef stride,
                                    at::IntArrayRef padding) {
  return batch_norm_eligible(x, weight, bias, mean, var) && activation_named(activation) &&
         depthwise_eligible(x, filters, stride, padding) && filters.sym_size(2) <= ops::kMostKernel;
}

struct BatchNormActDepthwiseBackward {
  static constexpr const char* schema =
      "batch_norm_act_depthwise_backward(Tensor grad, Tensor x, Tensor? weight, Tensor? bias, "
      "Tensor mean, Tensor var, float eps, bool training, str activation, Tensor filters, int[2] "
      "stride, int[4] padding, bool[4] wanted) -> (Tensor, Tensor, Tensor, Tensor)";
  using Result = std::tuple<Tensor, Tensor, Tensor, Tensor>;
  using Wanted = std::array<bool, 4>;

  static Result composite(const Tensor& grad, const Tensor& x, const OptionalTensor& weight,
                          const OptionalTensor& bias, const Tensor& mean, const Tensor& var,
                          double eps, bool training, std::string_view activation,
                          const Tensor& filters, at::IntArrayRef stride, at::IntArrayRef padding,
                          Wanted wanted) {
    const auto act = checked_activation("batch_norm_act_depthwise_backward", activation);
    const NormValues norm(x, weight, bias, mean, var, eps, training);
    const auto [inner, grad_filters] =
        depthwise_gradients(grad.to(norm.type), activate(norm.z, act), filters.to(norm.type),
                            stride, padding, {true, true});
    const auto [grad_x, grad_weight, grad_bias] =
        norm.gradients(activation_gradient(norm.z, inner, act), x, weight, bias, training,
                       {wanted[0], wanted[1], wanted[2]});
    return {grad_x, grad_weight, grad_bias,
            wanted[3] ? grad_filters.to(filters.scalar_type()) : Tensor()};
  }

  static bool eligible(const Tensor& grad, const Tensor& x, const OptionalTensor& weight,
                       const OptionalTensor& bias, const Tensor& mean, const Tensor& var, double,
                       bool, std::string_view activation, const Tensor& filters,
                       at::IntArrayRef stride, at::IntArrayRef padding, Wanted) {
    return norm_depthwise_eligible(x, weight, bias, mean, var, activation, filters, stride,
                                   padding) &&
           is_plain(grad) && grad.scalar_type() == x.scalar_type() &&
           is_depthwise_result(grad, x, filters, stride, padding);
  }

  static Result meta(const Tensor&, const Tensor& x, const OptionalTensor& weight,
                     const OptionalTensor& bias, const Tensor&, const Tensor&, double, bool,
                     std::string_view, const Tensor& filters, at::IntArrayRef, at::IntArrayRef,
                     Wanted wanted) {
    return {wanted[0] ? empty_norm(x) : Tensor(), empty_like_if(wanted[1], weight),
            empty_like_if(wanted[2], bias), wanted[3] ? at::empty_like(filters) : Tensor()};
  }

  static Result cpu(const Tensor& grad, const Tensor& given, const OptionalTensor& weight,
                    const OptionalTensor& bias, const Tensor& given_mean, const Tensor& given_var,
                    double eps, bool training, std::string_view activation, const Tensor& filters,
                    at::IntArrayRef stride, at::IntArrayRef padding, Wanted wanted) {
    const Tensor x = channels_last(given), d = channels_last(grad);
    const auto type = compute_type(x.scalar_type());
    const Tensor w = raise(weight, type), b = raise(bias, type), taps = kernel_filters(filters);
    const Tensor mean = contiguous_as(given_mean, type), var = contiguous_as(given_var, type);
    const Tensor grad_x = at::empty(x.sizes(), x.options(), at::MemoryFormat::ChannelsLast);
    const Tensor grad_taps = at::empty_like(taps);
    Tensor grad_w = wanted[1] && w.defined() ? at::empty_like(mean) : Tensor();
    Tensor grad_b = wanted[2] && b.defined() ? at::empty_like(mean) : Tensor();
    ops::BatchNormActDepthwiseBackwardArgs args{};
    args.shape = depthwise_shape(x, filters.size(2), stride[0], padding);
    args.act = *activation_named(activation);
    args.eps = eps;
    args.training = training;
    const Tensor scratch = workspace(ops::norm_depthwise_workspace_bytes(args.shape));
    args.grad = data(d);
    args.x = data(x);
    args.weight = pointer(w);
    args.bias = pointer(b);
    args.filters = data(taps);
    args.mean = data(mean);
    args.var = data(var);
    args.grad_x = data_out(grad_x);
    args.grad_filters = data_out(grad_taps);
    args.grad_weight = data_out(grad_w);
    args.grad_bias = data_out(grad_b);
    args.workspace = data_out(scratch);
    ops::batch_norm_act_depthwise_kernels(isa()).backward(exec(), args);
    if (grad_w.defined()) grad_w = grad_w.to(weight->scalar_type());
    if (grad_b.defined()) grad_b = grad_b.to(bias->scalar_type());
    return {!wanted[0] ? Tensor() : as_given(grad_x, given), grad_w, grad_b,
            wanted[3] ? at::empty_like(filters).copy_(grad_taps.t().reshape(filters.sizes()))
                      : Tensor()};
  }

  // A result in channels_last, laid out as batch_norm lays out one for `given`.
  static Tensor as_given(const Tensor& result, const Tensor& given) {
    if (is_last(given)) return result;
    return at::empty(result.sizes(), result.options()).copy_(result);
  }
};

struct BatchNormActDepthwise {
  // mean and var given: evaluation, and the second and third results are empty. The last two: mean
  // and biased variance of the first.
  static constexpr const char* schema =
      "batch_norm_act_depthwise(Tensor x, Tensor? weight, Tensor? bias, Tensor? mean, Tensor? var, "
      "float eps, str activation, Tensor filters, int[2] stride, int[4] padding) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor)";
  using Backward = BatchNormActDepthwiseBackward;
  using Result = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

  static Result composite(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                          const OptionalTensor& mean, const OptionalTensor& var, double eps,
                          std::string_view activation, const Tensor& filters,
                          at::IntArrayRef stride, at::IntArrayRef padding) {
    const auto act = checked_activation("batch_norm_act_depthwise", activation);
    check_depthwise("batch_norm_act_depthwise", stride, padding);
    TORCH_CHECK(has(mean) == has(var),
                "batch_norm_act_depthwise: expected both mean and var or none");
    const bool training = !has(mean);
    const Tensor a =
        activate(at::batch_norm(x, weight, bias, mean, var, training, 0, eps, true), act);
    const Tensor y = depthwise_formula(a, filters, std::nullopt, stride, padding);
    const auto [x_mean, x_var] = batch_statistics(x, training);
    const auto [y_mean, y_var] = batch_statistics(y, true);
    return {y, x_mean, x_var, y_mean, y_var};
  }

  static bool eligible(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                       const OptionalTensor& mean, const OptionalTensor& var, double,
                       std::string_view activation, const Tensor& filters, at::IntArrayRef stride,
                       at::IntArrayRef padding) {
    return norm_depthwise_eligible(x, weight, bias, mean, var, activation, filters, stride,
                                   padding) &&
           has(mean) == has(var);
  }
  static bool differentiable(const Tensor&, const OptionalTensor&, const OptionalTensor&,
                             const OptionalTensor& mean, const OptionalTensor& var, double,
                             std::string_view, const Tensor&, at::IntArrayRef, at::IntArrayRef) {
    return !needs_grad(mean) && !needs_grad(var);
  }

  // conv2d lays out its result on the meta device otherwise than on the CPU.
  static Result meta(const Tensor& x, const OptionalTensor&, const OptionalTensor&,
                     const OptionalTensor& mean, const OptionalTensor&, double, std::string_view,
                     const Tensor& filters, at::IntArrayRef stride, at::IntArrayRef padding) {
    const auto options =
        x.options().dtype(compute_type(x.scalar_type())).memory_format(std::nullopt);
    const auto vector = [&](bool is_there) {
      return at::empty_symint({is_there ? x.sym_size(1) : c10::SymInt(0)}, options);
    };
    return {empty_depthwise(x, filters, stride, padding, is_last(x) || is_last(filters)),
            vector(!has(mean)), vector(!has(mean)), vector(true), vector(true)};
  }

  static Result cpu(const Tensor& given, const OptionalTensor& weight, const OptionalTensor& bias,
                    const OptionalTensor& given_mean, const OptionalTensor& given_var, double eps,
                    std::string_view activation, const Tensor& filters, at::IntArrayRef stride,
                    at::IntArrayRef padding) {
    const Tensor x = channels_last(given), taps = kernel_filters(filters);
    const auto type = compute_type(x.scalar_type());
    const auto options = x.options().dtype(type).memory_format(std::nullopt);
    const Tensor w = raise(weight, type), b = raise(bias, type);
    ops::BatchNormActDepthwiseArgs args{};
    args.shape = depthwise_shape(x, filters.size(2), stride[0], padding);
    args.act = *activation_named(activation);
    args.eps = eps;
    args.training = !has(given_mean);
    const auto vector = [&] { return at::empty({x.size(1)}, options); };
    const Tensor mean = args.training ? vector() : contiguous_as(*given_mean, type);
    const Tensor var = args.training ? vector() : contiguous_as(*given_var, type);
    const Tensor y_mean = vector(), y_var = vector();
    const Tensor y = empty_depthwise(x, filters, stride, padding, true);
    const Tensor scratch = workspace(ops::norm_depthwise_workspace_bytes(args.shape));
    args.x = data(x);
    args.weight = pointer(w);
    args.bias = pointer(b);
    args.filters = data(taps);
    args.mean = const_cast<void*>(data(mean));
    args.var = const_cast<void*>(data(var));
    args.y = data_out(y);
    args.y_mean = data_out(y_mean);
    args.y_var = data_out(y_var);
    args.workspace = data_out(scratch);
    ops::batch_norm_act_depthwise_kernels(isa()).forward(exec(), args);
    const Tensor result =
        is_last(given) || is_last(filters) ? y : at::empty(y.sizes(), y.options()).copy_(y);
    if (args.training) return {result, mean, var, y_mean, y_var};
    return {result, at::empty({0}, options), at::empty({0}, options), y_mean, y_var};
  }

  // The filters are a convolution's: they follow the autocast dtype. So would what is convolved,
  // after the norm: where x is not of that dtype already, no cast of arguments says so.
  static bool autocast_inside(const Tensor& x, const OptionalTensor&, const OptionalTensor&,
                              const OptionalTensor&, const OptionalTensor&, double,
                              std::string_view, const Tensor&, at::IntArrayRef, at::IntArrayRef) {
    return x.scalar_type() != at::autocast::get_autocast_dtype(at::kCPU);
  }
  static std::tuple<Tensor, OptionalTensor, OptionalTensor, OptionalTensor, OptionalTensor, double,
                    std::string_view, Tensor, at::IntArrayRef, at::IntArrayRef>
  autocast(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
           const OptionalTensor& mean, const OptionalTensor& var, double eps,
           std::string_view activation, const Tensor& filters, at::IntArrayRef stride,
           at::IntArrayRef padding) {
    const auto type = at::autocast::get_autocast_dtype(at::kCPU);
    return {
        x,      weight, bias,       mean,
        var,    eps,    activation, at::autocast::cached_cast(type, filters, c10::DeviceType::CPU),
        stride, padding};
  }

  static void save(AutogradContext* context, const variable_list& results, const Tensor& x,
                   const OptionalTensor& weight, const OptionalTensor& bias,
                   const OptionalTensor& mean, const OptionalTensor& var, double eps,
                   std::string_view activation, const Tensor& filters, at::IntArrayRef stride,
                   at::IntArrayRef padding) {
    const bool training = !has(mean);
    context->mark_non_differentiable({results[1], results[2], results[3], results[4]});
    context->save_for_backward({x, weight.value_or(Tensor()), bias.value_or(Tensor()), filters,
                                training ? results[1] : *mean, training ? results[2] : *var});
    context->saved_data["eps"] = eps;
    context->saved_data["training"] = training;
    context->saved_data["activation"] = std::string(activation);
    context->saved_data["stride"] = stride.vec();
    context->saved_data["padding"] = padding.vec();
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const auto optional = [](const Tensor& t) {
      return t.defined() ? OptionalTensor(t) : std::nullopt;
    };
    const auto stride = context->saved_data["stride"].toIntVector();
    const auto padding = context->saved_data["padding"].toIntVector();
    const bool training = context->saved_data["training"].toBool();
    // needs_input_grad counts the tensors that are there.
    size_t index = 0;
    BatchNormActDepthwiseBackward::Wanted wanted{};
    for (size_t i = 0; i < 4; ++i) {
      if (i == 3 && !training) index += 2;
      wanted[i] = saved[i].defined() && context->needs_input_grad(index++);
    }
    const std::string activation = context->saved_data["activation"].toStringRef();
    const auto [grad_x, grad_weight, grad_bias, grad_filters] =
        call_backward<BatchNormActDepthwiseBackward>(
            grads[0], saved[0], optional(saved[1]), optional(saved[2]), saved[4], saved[5],
            context->saved_data["eps"].toDouble(), training, std::string_view(activation), saved[3],
            at::IntArrayRef(stride), at::IntArrayRef(padding), wanted);
    const Tensor none;
    return {grad_x, grad_weight, grad_bias, none, none, none, none, grad_filters, none, none};
  }
};

}  // namespace opfuse::torch_ops

OPFUSE_OPERATOR(BatchNormActDepthwise)
