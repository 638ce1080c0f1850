#pragma once
// The torch side of ops/batch_norm_act_se.

#include "opfuse/ops/batch_norm_act_se/batch_norm_act_se.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/hardsigmoid.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mm.h>

#include <string>

#include "opfuse/torch/ops/norm_formula.h"
#include "opfuse/torch/ops/operator.h"

namespace opfuse::torch_ops {

// The weight of a 1x1 convolution as a matrix.
inline Tensor as_matrix(const Tensor& weight) {
  return weight.view_symint({weight.sym_size(0), weight.sym_size(1)});
}

inline void check_layer(const Tensor& weight) {
  TORCH_CHECK(weight.dim() == 4 && weight.sym_size(2) == 1 && weight.sym_size(3) == 1,
              "batch_norm_act_se: expected a weight of 1x1 convolutions, (out, in, 1, 1), found ",
              weight.sym_sizes());
}

inline Tensor gate_of(const Tensor& logits, bool hard) {
  return hard ? at::hardsigmoid(logits) : at::sigmoid(logits);
}
inline Tensor gate_gradient(const Tensor& logits, const Tensor& grad, bool hard) {
  if (!hard) {
    const Tensor s = at::sigmoid(logits);
    return grad * s * at::rsub(s, 1);
  }
  return at::where(logits > -3, at::where(logits < 3, grad * (1.0 / 6), 0), 0);
}

// The two layers backwards, all of [samples, …] and of one dtype.
struct LayerGradients {
  Tensor pooled, reduce, reduce_bias, expand, expand_bias;

  LayerGradients(const Tensor& grad_logits, const Tensor& pooled_values, const Tensor& before,
                 const Tensor& reduce_matrix, const Tensor& expand_matrix, ops::Activation act) {
    const Tensor grad_before = activation_gradient(before, at::mm(grad_logits, expand_matrix), act);
    pooled = at::mm(grad_before, reduce_matrix);
    reduce = at::mm(grad_before.t(), pooled_values);
    reduce_bias = at::sum(grad_before, {0});
    expand = at::mm(grad_logits.t(), activate(before, act));
    expand_bias = at::sum(grad_logits, {0});
  }
};

struct BatchNormActSeBackward {
  static constexpr const char* schema =
      "batch_norm_act_se_backward(Tensor grad, Tensor x, Tensor? weight, Tensor? bias, Tensor "
      "reduce, Tensor? reduce_bias, Tensor expand, Tensor? expand_bias, Tensor mean, Tensor var, "
      "Tensor pooled, Tensor before, Tensor logits, float eps, bool training, str activation, "
      "str reduce_activation, bool hard, bool[7] wanted) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)";
  using Result = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
  using Wanted = std::array<bool, 7>;

  // pooled, before and logits are functions of x and the parameters: computed again.
  static Result composite(const Tensor& grad, const Tensor& x, const OptionalTensor& weight,
                          const OptionalTensor& bias, const Tensor& reduce,
                          const OptionalTensor& reduce_bias, const Tensor& expand,
                          const OptionalTensor& expand_bias, const Tensor& mean, const Tensor& var,
                          const Tensor&, const Tensor&, const Tensor&, double eps, bool training,
                          std::string_view activation, std::string_view reduce_activation,
                          bool hard, Wanted wanted) {
    const auto act = checked_activation("batch_norm_act_se_backward", activation);
    const auto inner = checked_activation("batch_norm_act_se_backward", reduce_activation);
    const NormValues norm(x, weight, bias, mean, var, eps, training);
    const auto matrix = [&](const Tensor& t) { return as_matrix(t).to(norm.type); };
    const Tensor a = activate(norm.z, act), d = grad.to(norm.type);
    const Tensor pooled = at::mean(a, {2, 3});
    const Tensor before = at::linear(pooled, matrix(reduce), raise(reduce_bias, norm.type));
    const Tensor logits =
        at::linear(activate(before, inner), matrix(expand), raise(expand_bias, norm.type));
    const Tensor gate = gate_of(logits, hard).unsqueeze(2).unsqueeze(3);
    const LayerGradients layers(gate_gradient(logits, at::sum(d * a, {2, 3}), hard), pooled, before,
                                matrix(reduce), matrix(expand), inner);
    const c10::SymFloat space = x.sym_size(2) * x.sym_size(3);
    const Tensor share = (layers.pooled / at::Scalar(space)).unsqueeze(2).unsqueeze(3);
    const auto [grad_x, grad_weight, grad_bias] =
        norm.gradients(activation_gradient(norm.z, d * gate + share, act), x, weight, bias,
                       training, {wanted[0], wanted[1], wanted[2]});
    return with_layers(grad_x, grad_weight, grad_bias, layers, reduce, reduce_bias, expand,
                       expand_bias, wanted);
  }

  static bool eligible(const Tensor& grad, const Tensor& x, const OptionalTensor& weight,
                       const OptionalTensor& bias, const Tensor& reduce,
                       const OptionalTensor& reduce_bias, const Tensor& expand,
                       const OptionalTensor& expand_bias, const Tensor& mean, const Tensor& var,
                       const Tensor& pooled, const Tensor& before, const Tensor& logits, double,
                       bool, std::string_view activation, std::string_view reduce_activation, bool,
                       Wanted) {
    return batch_norm_eligible(x, weight, bias, mean, var) && activation_named(activation) &&
           activation_named(reduce_activation) && is_plain(grad) &&
           layers_eligible(x, reduce, reduce_bias, expand, expand_bias) &&
           grad.scalar_type() == x.scalar_type() && grad.sym_sizes() == x.sym_sizes() &&
           is_small(pooled, x, x.sym_size(1)) && is_small(before, x, reduce.sym_size(0)) &&
           is_small(logits, x, x.sym_size(1));
  }

  static Result meta(const Tensor&, const Tensor& x, const OptionalTensor& weight,
                     const OptionalTensor& bias, const Tensor& reduce,
                     const OptionalTensor& reduce_bias, const Tensor& expand,
                     const OptionalTensor& expand_bias, const Tensor&, const Tensor&, const Tensor&,
                     const Tensor&, const Tensor&, double, bool, std::string_view, std::string_view,
                     bool, Wanted wanted) {
    return {wanted[0] ? empty_norm(x) : Tensor(),  empty_like_if(wanted[1], weight),
            empty_like_if(wanted[2], bias),        wanted[3] ? at::empty_like(reduce) : Tensor(),
            empty_like_if(wanted[4], reduce_bias), wanted[5] ? at::empty_like(expand) : Tensor(),
            empty_like_if(wanted[6], expand_bias)};
  }

  static Result cpu(const Tensor& grad, const Tensor& given, const OptionalTensor& weight,
                    const OptionalTensor& bias, const Tensor& reduce,
                    const OptionalTensor& reduce_bias, const Tensor& expand,
                    const OptionalTensor& expand_bias, const Tensor& given_mean,
                    const Tensor& given_var, const Tensor& pooled, const Tensor& before,
                    const Tensor& given_logits, double eps, bool training,
                    std::string_view activation, std::string_view reduce_activation, bool hard,
                    Wanted wanted) {
    constexpr auto last = at::MemoryFormat::ChannelsLast;
    const Tensor x = given.contiguous(last), d = grad.contiguous(last);
    const auto type = compute_type(x.scalar_type());
    const Tensor w = raise(weight, type), b = raise(bias, type);
    const Tensor mean = contiguous_as(given_mean, type), var = contiguous_as(given_var, type);
    const Tensor logits = given_logits.contiguous(), grad_logits = at::empty_like(logits);
    const Tensor grad_x = at::empty(x.sizes(), x.options(), last);
    Tensor grad_w = wanted[1] && w.defined() ? at::empty_like(mean) : Tensor();
    Tensor grad_b = wanted[2] && b.defined() ? at::empty_like(mean) : Tensor();
    const auto inner = *activation_named(reduce_activation);
    ops::BatchNormActSeBackwardArgs args{};
    args.shape = squeeze_shape(x, reduce, *activation_named(activation), inner, hard);
    args.eps = eps;
    args.training = training;
    const Tensor scratch = workspace(ops::squeeze_workspace_bytes(args.shape));
    args.grad = data(d);
    args.x = data(x);
    args.weight = pointer(w);
    args.bias = pointer(b);
    args.mean = data(mean);
    args.var = data(var);
    args.logits = data(logits);
    args.grad_logits = data_out(grad_logits);
    args.grad_x = data_out(grad_x);
    args.grad_weight = data_out(grad_w);
    args.grad_bias = data_out(grad_b);
    args.workspace = data_out(scratch);
    const auto& kernels = ops::batch_norm_act_se_kernels(isa());
    kernels.backward_sums(exec(), args);
    const LayerGradients layers(grad_logits, pooled, before, as_matrix(reduce).to(type),
                                as_matrix(expand).to(type), inner);
    const Tensor share = (layers.pooled / static_cast<double>(args.shape.norm.space)).contiguous();
    args.grad_pooled = data(share);
    kernels.backward_apply(exec(), args);
    if (grad_w.defined()) grad_w = grad_w.to(weight->scalar_type());
    if (grad_b.defined()) grad_b = grad_b.to(bias->scalar_type());
    auto result = with_layers(!wanted[0] ? Tensor() : as_given(grad_x, given), grad_w, grad_b,
                              layers, reduce, reduce_bias, expand, expand_bias, wanted);
    // Laid out as the parameters, as DistributedDataParallel's buckets are.
    if (wanted[3]) std::get<3>(result) = at::empty_like(reduce).copy_(std::get<3>(result));
    if (wanted[5]) std::get<5>(result) = at::empty_like(expand).copy_(std::get<5>(result));
    return result;
  }

  static ops::SqueezeShape squeeze_shape(const Tensor& x, const Tensor& reduce, ops::Activation act,
                                         ops::Activation inner, bool hard) {
    ops::SqueezeShape s{};
    s.norm = {dtype_of(x), x.size(0), x.size(1), x.size(2) * x.size(3), true};
    s.hidden = reduce.size(0);
    s.act = act;
    s.hidden_act = inner;
    s.hard = hard;
    return s;
  }

  // A result in channels_last, laid out as batch_norm lays out one for `given`.
  static Tensor as_given(const Tensor& result, const Tensor& given) {
    if (given.suggest_memory_format() == at::MemoryFormat::ChannelsLast) return result;
    return at::empty(result.sizes(), result.options()).copy_(result);
  }

  static bool is_layer(const Tensor& t, const Tensor& x, const c10::SymInt& out,
                       const c10::SymInt& in) {
    return is_plain(t) && t.dim() == 4 && t.scalar_type() == x.scalar_type() &&
           t.sym_size(0) == out && t.sym_size(1) == in && t.sym_size(2) == 1 && t.sym_size(3) == 1;
  }
  static bool layers_eligible(const Tensor& x, const Tensor& reduce,
                              const OptionalTensor& reduce_bias, const Tensor& expand,
                              const OptionalTensor& expand_bias) {
    if (x.dim() != 4 || !reduce.defined() || reduce.dim() != 4) return false;
    const c10::SymInt hidden = reduce.sym_size(0);
    const auto is_bias = [&](const OptionalTensor& t, const c10::SymInt& size) {
      return !has(t) || (is_plain(*t) && t->dim() == 1 && t->sym_size(0) == size &&
                         t->scalar_type() == x.scalar_type());
    };
    return hidden != 0 && is_layer(reduce, x, hidden, x.sym_size(1)) &&
           is_layer(expand, x, x.sym_size(1), hidden) && is_bias(reduce_bias, hidden) &&
           is_bias(expand_bias, x.sym_size(1));
  }

 private:
  static bool is_small(const Tensor& t, const Tensor& x, const c10::SymInt& columns) {
    return is_plain(t) && t.dim() == 2 && t.scalar_type() == compute_type(x.scalar_type()) &&
           t.sym_size(0) == x.sym_size(0) && t.sym_size(1) == columns;
  }
  static Result with_layers(const Tensor& grad_x, const Tensor& grad_weight,
                            const Tensor& grad_bias, const LayerGradients& layers,
                            const Tensor& reduce, const OptionalTensor& reduce_bias,
                            const Tensor& expand, const OptionalTensor& expand_bias,
                            Wanted wanted) {
    const auto as = [](bool is_wanted, const Tensor& value, const OptionalTensor& model) {
      if (!is_wanted || !has(model)) return Tensor();
      return value.to(model->scalar_type()).reshape_symint(model->sym_sizes());
    };
    return {grad_x,
            grad_weight,
            grad_bias,
            as(wanted[3], layers.reduce, reduce),
            as(wanted[4], layers.reduce_bias, reduce_bias),
            as(wanted[5], layers.expand, expand),
            as(wanted[6], layers.expand_bias, expand_bias)};
  }
};

struct BatchNormActSe {
  // mean and var given: evaluation. batch_mean and batch_var: in training, what the statistics of x
  // are, when that is known already.
  static constexpr const char* schema =
      "batch_norm_act_se(Tensor x, Tensor? weight, Tensor? bias, Tensor? mean, Tensor? var, float "
      "eps, str activation, Tensor reduce, Tensor? reduce_bias, Tensor expand, Tensor? "
      "expand_bias, str reduce_activation='silu', bool hard=False, Tensor? batch_mean=None, "
      "Tensor? batch_var=None) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)";
  using Backward = BatchNormActSeBackward;
  using Result = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

  static Result composite(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                          const OptionalTensor& mean, const OptionalTensor& var, double eps,
                          std::string_view activation, const Tensor& reduce,
                          const OptionalTensor& reduce_bias, const Tensor& expand,
                          const OptionalTensor& expand_bias, std::string_view reduce_activation,
                          bool hard, const OptionalTensor&, const OptionalTensor&) {
    const auto act = checked_activation("batch_norm_act_se", activation);
    const auto inner = checked_activation("batch_norm_act_se", reduce_activation);
    TORCH_CHECK(has(mean) == has(var), "batch_norm_act_se: expected both mean and var or none");
    const bool training = !has(mean);
    const Tensor a =
        activate(at::batch_norm(x, weight, bias, mean, var, training, 0, eps, true), act);
    check_layer(reduce);
    check_layer(expand);
    const Tensor pooled = at::mean(a, {2, 3});
    const Tensor before = at::linear(pooled, as_matrix(reduce), reduce_bias);
    const Tensor logits = at::linear(activate(before, inner), as_matrix(expand), expand_bias);
    const auto [batch_mean, batch_var] = batch_statistics(x, training);
    const auto type = compute_type(x.scalar_type());
    const auto small = [&](const Tensor& t) { return t.detach().to(type, false, true); };
    return {a * gate_of(logits, hard).unsqueeze(2).unsqueeze(3),
            batch_mean,
            batch_var,
            small(pooled),
            small(before),
            small(logits)};
  }

  static bool eligible(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                       const OptionalTensor& mean, const OptionalTensor& var, double,
                       std::string_view activation, const Tensor& reduce,
                       const OptionalTensor& reduce_bias, const Tensor& expand,
                       const OptionalTensor& expand_bias, std::string_view reduce_activation, bool,
                       const OptionalTensor& batch_mean, const OptionalTensor& batch_var) {
    const auto is_known = [&](const OptionalTensor& t) {
      return !has(t) || (is_plain(*t) && t->dim() == 1 && t->sym_size(0) == x.sym_size(1) &&
                         t->scalar_type() == compute_type(x.scalar_type()));
    };
    return batch_norm_eligible(x, weight, bias, mean, var) && activation_named(activation) &&
           activation_named(reduce_activation) && has(mean) == has(var) &&
           has(batch_mean) == has(batch_var) && !(has(mean) && has(batch_mean)) &&
           is_known(batch_mean) && is_known(batch_var) &&
           Backward::layers_eligible(x, reduce, reduce_bias, expand, expand_bias);
  }
  static bool differentiable(const Tensor&, const OptionalTensor&, const OptionalTensor&,
                             const OptionalTensor& mean, const OptionalTensor& var, double,
                             std::string_view, const Tensor&, const OptionalTensor&, const Tensor&,
                             const OptionalTensor&, std::string_view, bool, const OptionalTensor&,
                             const OptionalTensor&) {
    return !needs_grad(mean) && !needs_grad(var);
  }

  static Result cpu(const Tensor& given, const OptionalTensor& weight, const OptionalTensor& bias,
                    const OptionalTensor& given_mean, const OptionalTensor& given_var, double eps,
                    std::string_view activation, const Tensor& reduce,
                    const OptionalTensor& reduce_bias, const Tensor& expand,
                    const OptionalTensor& expand_bias, std::string_view reduce_activation,
                    bool hard, const OptionalTensor& batch_mean, const OptionalTensor& batch_var) {
    constexpr auto last = at::MemoryFormat::ChannelsLast;
    const Tensor x = given.contiguous(last);
    const auto type = compute_type(x.scalar_type());
    const auto options = x.options().dtype(type).memory_format(std::nullopt);
    const Tensor w = raise(weight, type), b = raise(bias, type);
    const Tensor rb = raise(reduce_bias, type), eb = raise(expand_bias, type);
    const Tensor r = contiguous_as(as_matrix(reduce), type);
    const Tensor e = contiguous_as(as_matrix(expand).t(), type);
    ops::BatchNormActSeArgs args{};
    args.shape = Backward::squeeze_shape(x, reduce, *activation_named(activation),
                                         *activation_named(reduce_activation), hard);
    args.eps = eps;
    const bool training = !has(given_mean);
    args.measure = training && !has(batch_mean);
    const auto statistic = [&](const OptionalTensor& evaluation, const OptionalTensor& known) {
      if (!training) return contiguous_as(*evaluation, type);
      // A copy: what is returned must not be an argument.
      return has(known) ? known->clone() : at::empty({x.size(1)}, options);
    };
    const Tensor mean = statistic(given_mean, batch_mean), var = statistic(given_var, batch_var);
    const Tensor pooled = at::empty({x.size(0), x.size(1)}, options);
    const Tensor before = at::empty({x.size(0), reduce.size(0)}, options);
    const Tensor logits = at::empty({x.size(0), x.size(1)}, options);
    const Tensor y = at::empty(x.sizes(), x.options(), last);
    const Tensor scratch = workspace(ops::squeeze_workspace_bytes(args.shape));
    args.x = data(x);
    args.weight = pointer(w);
    args.bias = pointer(b);
    args.reduce = data(r);
    args.reduce_bias = pointer(rb);
    args.expand = data(e);
    args.expand_bias = pointer(eb);
    args.mean = const_cast<void*>(data(mean));
    args.var = const_cast<void*>(data(var));
    args.pooled = data_out(pooled);
    args.before = data_out(before);
    args.logits = data_out(logits);
    args.y = data_out(y);
    args.workspace = data_out(scratch);
    ops::batch_norm_act_se_kernels(isa()).forward(exec(), args);
    // One position is contiguous and channels_last: a product has the strides of the first.
    const Tensor result = given.is_contiguous() ? at::empty(y.sizes(), y.options()).copy_(y)
                                                : Backward::as_given(y, given);
    if (training) return {result, mean, var, pooled, before, logits};
    return {result, at::empty({0}, options), at::empty({0}, options), pooled, before, logits};
  }

  // The two layers are convolutions: their parameters follow the autocast dtype, and so would what
  // is pooled. Where x is not of that dtype already, no cast of arguments says so.
  static bool autocast_inside(const Tensor& x, const OptionalTensor&, const OptionalTensor&,
                              const OptionalTensor&, const OptionalTensor&, double,
                              std::string_view, const Tensor&, const OptionalTensor&, const Tensor&,
                              const OptionalTensor&, std::string_view, bool, const OptionalTensor&,
                              const OptionalTensor&) {
    return x.scalar_type() != at::autocast::get_autocast_dtype(at::kCPU);
  }
  static std::tuple<Tensor, OptionalTensor, OptionalTensor, OptionalTensor, OptionalTensor, double,
                    std::string_view, Tensor, OptionalTensor, Tensor, OptionalTensor,
                    std::string_view, bool, OptionalTensor, OptionalTensor>
  autocast(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
           const OptionalTensor& mean, const OptionalTensor& var, double eps,
           std::string_view activation, const Tensor& reduce, const OptionalTensor& reduce_bias,
           const Tensor& expand, const OptionalTensor& expand_bias,
           std::string_view reduce_activation, bool hard, const OptionalTensor& batch_mean,
           const OptionalTensor& batch_var) {
    const auto type = at::autocast::get_autocast_dtype(at::kCPU);
    const auto cast = [&](const Tensor& t) {
      return at::autocast::cached_cast(type, t, c10::DeviceType::CPU);
    };
    const auto cast_optional = [&](const OptionalTensor& t) {
      return has(t) ? OptionalTensor(cast(*t)) : t;
    };
    return {x,
            weight,
            bias,
            mean,
            var,
            eps,
            activation,
            cast(reduce),
            cast_optional(reduce_bias),
            cast(expand),
            cast_optional(expand_bias),
            reduce_activation,
            hard,
            batch_mean,
            batch_var};
  }

  static void save(AutogradContext* context, const variable_list& results, const Tensor& x,
                   const OptionalTensor& weight, const OptionalTensor& bias,
                   const OptionalTensor& mean, const OptionalTensor& var, double eps,
                   std::string_view activation, const Tensor& reduce,
                   const OptionalTensor& reduce_bias, const Tensor& expand,
                   const OptionalTensor& expand_bias, std::string_view reduce_activation, bool hard,
                   const OptionalTensor&, const OptionalTensor&) {
    const bool training = !has(mean);
    context->mark_non_differentiable({results[1], results[2], results[3], results[4], results[5]});
    const auto or_none = [](const OptionalTensor& t) { return t.value_or(Tensor()); };
    context->save_for_backward({x, or_none(weight), or_none(bias), reduce, or_none(reduce_bias),
                                expand, or_none(expand_bias), training ? results[1] : *mean,
                                training ? results[2] : *var, results[3], results[4], results[5]});
    context->saved_data["eps"] = eps;
    context->saved_data["training"] = training;
    context->saved_data["activation"] = std::string(activation);
    context->saved_data["reduce_activation"] = std::string(reduce_activation);
    context->saved_data["hard"] = hard;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const auto optional = [](const Tensor& t) {
      return t.defined() ? OptionalTensor(t) : std::nullopt;
    };
    // needs_input_grad counts the tensors that are there.
    size_t index = 0;
    const auto next = [&](const Tensor& t) {
      return t.defined() && context->needs_input_grad(index++);
    };
    const bool training = context->saved_data["training"].toBool();
    BatchNormActSeBackward::Wanted wanted{};
    for (size_t i = 0; i < 3; ++i) wanted[i] = next(saved[i]);
    if (!training) index += 2;
    for (size_t i = 3; i < 7; ++i) wanted[i] = next(saved[i]);
    const std::string activation = context->saved_data["activation"].toStringRef();
    const std::string inner = context->saved_data["reduce_activation"].toStringRef();
    const auto g = call_backward<BatchNormActSeBackward>(
        grads[0], saved[0], optional(saved[1]), optional(saved[2]), saved[3], optional(saved[4]),
        saved[5], optional(saved[6]), saved[7], saved[8], saved[9], saved[10], saved[11],
        context->saved_data["eps"].toDouble(), training, std::string_view(activation),
        std::string_view(inner), context->saved_data["hard"].toBool(), wanted);
    const Tensor none;
    return {std::get<0>(g), std::get<1>(g), std::get<2>(g), none, none, none, none, std::get<3>(g),
            std::get<4>(g), std::get<5>(g), std::get<6>(g), none, none, none, none};
  }
};

}  // namespace opfuse::torch_ops

OPFUSE_OPERATOR(BatchNormActSe)
