#pragma once
// The torch side of ops/batch_norm_act.

#include "opfuse/ops/batch_norm_act/batch_norm_act.h"

#include <ATen/ops/batch_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/hardswish.h>
#include <ATen/ops/hardtanh.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/where.h>

#include <string_view>
#include <vector>

#include "opfuse/torch/ops/operator.h"

namespace opfuse::torch_ops {

inline std::optional<ops::Activation> activation_named(std::string_view name) {
  using ops::Activation;
  if (name == "none") return Activation::kNone;
  if (name == "silu") return Activation::kSilu;
  if (name == "relu") return Activation::kRelu;
  if (name == "relu6") return Activation::kRelu6;
  if (name == "hardswish") return Activation::kHardswish;
  if (name == "gelu") return Activation::kGelu;
  return std::nullopt;
}

inline ops::Activation checked_activation(const char* op, std::string_view name) {
  const auto found = activation_named(name);
  TORCH_CHECK_VALUE(found, op,
                    ": expected activation 'none', 'silu', 'relu', 'relu6', 'hardswish' or 'gelu', "
                    "found '",
                    name, "'");
  return *found;
}

inline Tensor activate(const Tensor& z, ops::Activation act) {
  switch (act) {
    case ops::Activation::kSilu:
      return at::silu(z);
    case ops::Activation::kRelu:
      return at::relu(z);
    case ops::Activation::kRelu6:
      return at::hardtanh(z, 0, 6);
    case ops::Activation::kHardswish:
      return at::hardswish(z);
    case ops::Activation::kGelu:
      return at::gelu(z);
    default:
      return z;
  }
}

// g * act'(z), of operators that have derivatives themselves.
inline Tensor activation_gradient(const Tensor& z, const Tensor& g, ops::Activation act) {
  switch (act) {
    case ops::Activation::kSilu: {
      const Tensor s = at::sigmoid(z);
      return g * (s * (z * at::rsub(s, 1) + 1));
    }
    case ops::Activation::kRelu:
      return at::where(z <= 0, 0, g);
    case ops::Activation::kRelu6:
      return at::where(z <= 0, 0, at::where(z >= 6, 0, g));
    case ops::Activation::kHardswish:
      return at::where(z <= -3, 0, at::where(z < 3, g * (z * (1.0 / 3) + 0.5), g));
    case ops::Activation::kGelu:
      return g * ((at::erf(z * 0.70710678118654752) + 1) * 0.5 +
                  z * at::exp(z * z * -0.5) * 0.39894228040143268);
    default:
      return g;
  }
}

// All dimensions but the channel's.
inline std::vector<int64_t> reduced_dims(const Tensor& x) {
  std::vector<int64_t> dims;
  for (int64_t dim = 0; dim < x.dim(); ++dim)
    if (dim != 1) dims.push_back(dim);
  return dims;
}

// A vector over dimension `dim` of x, to be broadcast.
inline Tensor along(const Tensor& vector, int64_t dim, const Tensor& x) {
  std::vector<c10::SymInt> shape(x.dim(), 1);
  shape[dim] = vector.sym_size(0);
  return vector.view_symint(shape);
}

inline Tensor raise(const OptionalTensor& t, c10::ScalarType type) {
  return has(t) ? t->to(type) : Tensor();
}
inline const void* pointer(const Tensor& t) { return t.defined() ? t.const_data_ptr() : nullptr; }

inline bool is_vector(const OptionalTensor& t, const Tensor& x, const c10::SymInt& size) {
  return !has(t) || (is_plain(*t) && t->dim() == 1 && t->sym_size(0) == size &&
                     (t->scalar_type() == x.scalar_type() ||
                      t->scalar_type() == compute_type(x.scalar_type())));
}

inline bool batch_norm_eligible(const Tensor& x, const OptionalTensor& weight,
                                const OptionalTensor& bias, const OptionalTensor& mean,
                                const OptionalTensor& var) {
  return is_plain(x) && x.dim() >= 2 && x.dim() <= 5 && x.sym_numel() != 0 &&
         is_vector(weight, x, x.sym_size(1)) && is_vector(bias, x, x.sym_size(1)) &&
         is_vector(mean, x, x.sym_size(1)) && is_vector(var, x, x.sym_size(1)) &&
         (!has(weight) || !has(bias) || weight->scalar_type() == bias->scalar_type());
}

// x as torch's batch_norm lays out its result.
inline Tensor norm_layout(const Tensor& x) { return x.contiguous(x.suggest_memory_format()); }

inline ops::BatchNormShape norm_shape(const Tensor& x) {
  const bool last = x.dim() == 2 || x.suggest_memory_format() != at::MemoryFormat::Contiguous;
  return {dtype_of(x), x.size(0), x.size(1), x.numel() / (x.size(0) * x.size(1)), last};
}

inline Tensor empty_norm(const Tensor& x) {
  return at::empty_symint(x.sym_sizes(), x.options(), x.suggest_memory_format());
}

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
    const auto type = given_mean.scalar_type();
    const Tensor v = x.to(type);
    const auto dims = reduced_dims(x);
    Tensor mean = given_mean, var = given_var;
    if (training) std::tie(var, mean) = at::var_mean(v, dims, std::optional<at::Scalar>(0), false);
    const Tensor root = at::rsqrt(var + eps), w = raise(weight, type), b = raise(bias, type);
    const Tensor normal = (v - along(mean, 1, x)) * along(root, 1, x);
    Tensor z = w.defined() ? normal * along(w, 1, x) : normal;
    if (b.defined()) z = z + along(b, 1, x);
    Tensor g = grad.to(type);
    if (has(scale)) g = g * along(scale->to(type), 0, x);
    g = activation_gradient(z, g, checked_activation("batch_norm_act_backward", activation));
    const Tensor sum = at::sum(g, dims), product = at::sum(g * normal, dims);
    Tensor grad_x, grad_weight, grad_bias;
    if (wanted[0]) {
      const Tensor slope = w.defined() ? w * root : root;
      Tensor inner = g;
      if (training) {
        const c10::SymFloat count = (x.sym_numel() / x.sym_size(1));
        inner = g - (along(sum, 1, x) + normal * along(product, 1, x)) / at::Scalar(count);
      }
      grad_x = (along(slope, 1, x) * inner).to(x.scalar_type());
    }
    if (wanted[1] && has(weight)) grad_weight = product.to(weight->scalar_type());
    if (wanted[2] && has(bias)) grad_bias = sum.to(bias->scalar_type());
    return {grad_x, grad_weight, grad_bias};
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
    const auto like = [](const OptionalTensor& t) {
      return at::empty_symint(t->sym_sizes(), t->options());
    };
    return {wanted[0] ? empty_norm(x) : Tensor(),
            wanted[1] && has(weight) ? like(weight) : Tensor(),
            wanted[2] && has(bias) ? like(bias) : Tensor()};
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
    const auto type = compute_type(x.scalar_type());
    if (!training)
      return {y, at::empty({0}, x.options().dtype(type).memory_format(std::nullopt)),
              at::empty({0}, x.options().dtype(type).memory_format(std::nullopt))};
    const Tensor v = x.detach().to(type);
    const auto [batch_var, batch_mean] =
        at::var_mean(v, reduced_dims(x), std::optional<at::Scalar>(0), false);
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
