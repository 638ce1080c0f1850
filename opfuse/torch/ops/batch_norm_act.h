#pragma once
// The torch side of ops/batch_norm_act.

#include "opfuse/ops/batch_norm_act/batch_norm_act.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <string>

#include "opfuse/torch/ops/norm_formula.h"
#include "opfuse/torch/ops/operator.h"

namespace opfuse::torch_ops {

struct BatchNormActBackward {
  static constexpr const char* schema =
      "batch_norm_act_backward(Tensor grad, Tensor x, Tensor? weight, Tensor? bias, Tensor mean, "
      "Tensor var, float eps, bool training, str activation, Tensor? scale, bool[3] wanted) "
      "-> (Tensor, Tensor, Tensor)";
  using Result = std::tuple<Tensor, Tensor, Tensor>;

  static Result composite(const Tensor& grad, const Tensor& x, const OptionalTensor& weight,
                          const OptionalTensor& bias, const Tensor& given_mean,
                          const Tensor& given_var, double eps, bool training,
                          std::string_view activation, const OptionalTensor& scale,
                          std::array<bool, 3> wanted) {
    const auto act = checked_activation("batch_norm_act_backward", activation);
    const NormValues norm(x, weight, bias, given_mean, given_var, eps, training);
    Tensor g = grad.to(norm.type);
    if (has(scale)) g = g * along(scale->to(norm.type), 0, x);
    return norm.gradients(activation_gradient(norm.z, g, act), x, weight, bias, training, wanted);
  }

  static bool eligible(const Tensor& grad, const Tensor& x, const OptionalTensor& weight,
                       const OptionalTensor& bias, const Tensor& mean, const Tensor& var, double,
                       bool, std::string_view activation, const OptionalTensor& scale,
                       std::array<bool, 3>) {
    return batch_norm_eligible(x, weight, bias, mean, var) && activation_named(activation) &&
           is_vector(scale, x, x.sym_size(0)) && is_plain(grad) &&
           grad.scalar_type() == x.scalar_type() && grad.sym_sizes() == x.sym_sizes();
  }

  static Result meta(const Tensor&, const Tensor& x, const OptionalTensor& weight,
                     const OptionalTensor& bias, const Tensor&, const Tensor&, double, bool,
                     std::string_view, const OptionalTensor&, std::array<bool, 3> wanted) {
    return {wanted[0] ? empty_norm(x) : Tensor(), empty_like_if(wanted[1], weight),
            empty_like_if(wanted[2], bias)};
  }

  static Result cpu(const Tensor& grad, const Tensor& given, const OptionalTensor& weight,
                    const OptionalTensor& bias, const Tensor& given_mean, const Tensor& given_var,
                    double eps, bool training, std::string_view activation,
                    const OptionalTensor& scale, std::array<bool, 3> wanted) {
    const Tensor x = norm_layout(given), d = grad.contiguous(x.suggest_memory_format());
    const auto type = compute_type(x.scalar_type());
    const Tensor w = raise(weight, type), b = raise(bias, type), k = raise(scale, type);
    const Tensor mean = contiguous_as(given_mean, type), var = contiguous_as(given_var, type);
    // The kernel works in grad_x, wanted or not.
    const Tensor grad_x = at::empty(x.sizes(), x.options(), x.suggest_memory_format());
    Tensor grad_w = wanted[1] && w.defined() ? at::empty_like(mean) : Tensor();
    Tensor grad_b = wanted[2] && b.defined() ? at::empty_like(mean) : Tensor();
    ops::BatchNormActBackwardArgs args{};
    args.shape = norm_shape(x);
    args.act = *activation_named(activation);
    args.eps = eps;
    args.training = training;
    const Tensor scratch = workspace(ops::batch_norm_workspace_bytes(args.shape));
    args.grad = data(d);
    args.x = data(x);
    args.weight = pointer(w);
    args.bias = pointer(b);
    args.scale = pointer(k);
    args.mean = data(mean);
    args.var = data(var);
    args.grad_x = data_out(grad_x);
    args.grad_weight = data_out(grad_w);
    args.grad_bias = data_out(grad_b);
    args.workspace = data_out(scratch);
    ops::batch_norm_act_kernels(isa()).backward(exec(), args);
    if (grad_w.defined()) grad_w = grad_w.to(weight->scalar_type());
    if (grad_b.defined()) grad_b = grad_b.to(bias->scalar_type());
    return {wanted[0] ? grad_x : Tensor(), grad_w, grad_b};
  }
};

struct BatchNormAct {
  // mean and var given: evaluation, and the second and third results are empty.
  static constexpr const char* schema =
      "batch_norm_act(Tensor x, Tensor? weight, Tensor? bias, Tensor? mean, Tensor? var, float "
      "eps, "
      "str activation='none', Tensor? scale=None, Tensor? residual=None) -> (Tensor, Tensor, "
      "Tensor)";
  using Backward = BatchNormActBackward;
  using Result = std::tuple<Tensor, Tensor, Tensor>;

  static Result composite(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                          const OptionalTensor& mean, const OptionalTensor& var, double eps,
                          std::string_view activation, const OptionalTensor& scale,
                          const OptionalTensor& residual) {
    const auto act = checked_activation("batch_norm_act", activation);
    TORCH_CHECK(has(mean) == has(var), "batch_norm_act: expected both mean and var or none");
    const bool training = !has(mean);
    Tensor y = activate(at::batch_norm(x, weight, bias, mean, var, training, 0, eps, true), act);
    if (has(scale)) y = y * along(*scale, 0, x);
    if (has(residual)) y = y + *residual;
    const auto [batch_mean, batch_var] = batch_statistics(x, training);
    return {y, batch_mean, batch_var};
  }

  static bool eligible(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                       const OptionalTensor& mean, const OptionalTensor& var, double,
                       std::string_view activation, const OptionalTensor& scale,
                       const OptionalTensor& residual) {
    if (!batch_norm_eligible(x, weight, bias, mean, var) || !activation_named(activation) ||
        has(mean) != has(var))
      return false;
    if (has(scale) &&
        (!is_vector(scale, x, x.sym_size(0)) || scale->scalar_type() != x.scalar_type()))
      return false;
    return !has(residual) || (is_plain(*residual) && residual->scalar_type() == x.scalar_type() &&
                              residual->sym_sizes() == x.sym_sizes());
  }
  // The kernel knows no gradient of the scale, nor of given statistics.
  static bool differentiable(const Tensor&, const OptionalTensor&, const OptionalTensor&,
                             const OptionalTensor& mean, const OptionalTensor& var, double,
                             std::string_view, const OptionalTensor& scale, const OptionalTensor&) {
    return !needs_grad(mean) && !needs_grad(var) && !needs_grad(scale);
  }

  static Result cpu(const Tensor& given, const OptionalTensor& weight, const OptionalTensor& bias,
                    const OptionalTensor& given_mean, const OptionalTensor& given_var, double eps,
                    std::string_view activation, const OptionalTensor& scale,
                    const OptionalTensor& residual) {
    const Tensor x = norm_layout(given);
    const auto format = x.suggest_memory_format();
    const auto type = compute_type(x.scalar_type());
    const Tensor w = raise(weight, type), b = raise(bias, type), k = raise(scale, type);
    const Tensor r = has(residual) ? residual->contiguous(format) : Tensor();
    const auto options = x.options().dtype(type).memory_format(std::nullopt);
    ops::BatchNormActArgs args{};
    args.shape = norm_shape(x);
    args.act = *activation_named(activation);
    args.eps = eps;
    args.training = !has(given_mean);
    // Given statistics are only read.
    const Tensor mean =
        args.training ? at::empty({x.size(1)}, options) : contiguous_as(*given_mean, type);
    const Tensor var =
        args.training ? at::empty({x.size(1)}, options) : contiguous_as(*given_var, type);
    const Tensor y = at::empty(x.sizes(), x.options(), format);
    const Tensor scratch = workspace(ops::batch_norm_workspace_bytes(args.shape));
    args.x = data(x);
    args.weight = pointer(w);
    args.bias = pointer(b);
    args.scale = pointer(k);
    args.residual = pointer(r);
    args.mean = const_cast<void*>(data(mean));
    args.var = const_cast<void*>(data(var));
    args.y = data_out(y);
    args.workspace = data_out(scratch);
    ops::batch_norm_act_kernels(isa()).forward(exec(), args);
    if (args.training) return {y, mean, var};
    return {y, at::empty({0}, options), at::empty({0}, options)};
  }

  static void save(AutogradContext* context, const variable_list& results, const Tensor& x,
                   const OptionalTensor& weight, const OptionalTensor& bias,
                   const OptionalTensor& mean, const OptionalTensor& var, double eps,
                   std::string_view activation, const OptionalTensor& scale,
                   const OptionalTensor& residual) {
    const bool training = !has(mean);
    context->mark_non_differentiable({results[1], results[2]});
    context->save_for_backward({x, weight.value_or(Tensor()), bias.value_or(Tensor()),
                                training ? results[1] : *mean, training ? results[2] : *var,
                                scale.value_or(Tensor())});
    context->saved_data["eps"] = eps;
    context->saved_data["training"] = training;
    context->saved_data["activation"] = std::string(activation);
    context->saved_data["present"] =
        std::vector<int64_t>{has(weight), has(bias), has(mean), has(scale), has(residual)};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const auto optional = [](const Tensor& t) {
      return t.defined() ? OptionalTensor(t) : std::nullopt;
    };
    // needs_input_grad counts the tensors that are there.
    const auto present = context->saved_data["present"].toIntVector();
    size_t index = 1;
    const bool want_weight = present[0] && context->needs_input_grad(index);
    index += present[0];
    const bool want_bias = present[1] && context->needs_input_grad(index);
    index += present[1] + 2 * present[2] + present[3];
    const bool want_residual = present[4] && context->needs_input_grad(index);
    const std::array wanted{context->needs_input_grad(0), want_weight, want_bias};
    Tensor grad_x, grad_weight, grad_bias;
    const std::string activation = context->saved_data["activation"].toStringRef();
    if (wanted[0] || wanted[1] || wanted[2])
      std::tie(grad_x, grad_weight, grad_bias) = call_backward<BatchNormActBackward>(
          grads[0], saved[0], optional(saved[1]), optional(saved[2]), saved[3], saved[4],
          context->saved_data["eps"].toDouble(), context->saved_data["training"].toBool(),
          std::string_view(activation), optional(saved[5]), wanted);
    return {grad_x,   grad_weight, grad_bias,
            Tensor(), Tensor(),    Tensor(),
            Tensor(), Tensor(),    want_residual ? grads[0] : Tensor()};
  }
};

}  // namespace opfuse::torch_ops

OPFUSE_OPERATOR(BatchNormAct)
