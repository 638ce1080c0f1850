#pragma once
// The torch side of ops/dropout_add_layer_norm.

#include "opfuse/ops/dropout_add_layer_norm/dropout_add_layer_norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sum.h>

#include <numeric>
#include <vector>

#include "opfuse/torch/ops/operator.h"

namespace opfuse::torch_ops {

// Like x in dtype and shape, or absent.
inline bool is_like(const OptionalTensor& t, const Tensor& x) {
  return !has(t) ||
         (is_plain(*t) && t->scalar_type() == x.scalar_type() && t->sym_sizes() == x.sym_sizes());
}

inline bool layer_norm_eligible(const Tensor& x, const OptionalTensor& weight,
                                const OptionalTensor& bias) {
  const auto is_parameter = [&](const OptionalTensor& t) {
    return !has(t) || (is_plain(*t) && t->dim() == 1 && t->sym_size(0) == x.sym_size(-1) &&
                       (t->scalar_type() == x.scalar_type() ||
                        t->scalar_type() == compute_type(x.scalar_type())));
  };
  return is_plain(x) && x.dim() > 0 && x.sym_numel() != 0 && is_parameter(weight) &&
         is_parameter(bias) &&
         (!has(weight) || !has(bias) || weight->scalar_type() == bias->scalar_type());
}

struct DropoutAddLayerNormBackward {
  static constexpr const char* schema =
      "dropout_add_layer_norm_backward(Tensor grad_y, Tensor? grad_sum, Tensor sum, Tensor? noise, "
      "Tensor? weight, Tensor? bias, float eps, bool[4] wanted) "
      "-> (Tensor, Tensor, Tensor, Tensor)";
  using Result = std::tuple<Tensor, Tensor, Tensor, Tensor>;
  using Wanted = std::array<bool, 4>;  // x, residual, weight, bias

  static Result composite(const Tensor& grad_y, const OptionalTensor& grad_sum, const Tensor& sum,
                          const OptionalTensor& noise, const OptionalTensor& weight,
                          const OptionalTensor& bias, double eps, Wanted wanted) {
    const auto type = compute_type(sum.scalar_type()), own = sum.scalar_type();
    const Tensor h = sum.to(type), d = grad_y.to(type);
    const Tensor centered = h - at::mean(h, {-1}, true);
    const Tensor root = at::rsqrt(at::mean(centered * centered, {-1}, true) + eps);
    const Tensor u = centered * root, weighted = has(weight) ? d * weight->to(type) : d;
    Tensor g =
        (weighted - at::mean(weighted, {-1}, true) - u * at::mean(weighted * u, {-1}, true)) * root;
    if (has(grad_sum)) g = g + grad_sum->to(type);
    const auto over_rows = [&](const Tensor& t, const Tensor& model) {
      std::vector<int64_t> dims(t.dim() - 1);
      std::iota(dims.begin(), dims.end(), 0);
      return (dims.empty() ? t : at::sum(t, dims)).to(model.scalar_type());
    };
    return {wanted[0] ? (has(noise) ? g * noise->to(type) : g).to(own) : Tensor(),
            wanted[1] ? g.to(own) : Tensor(),
            wanted[2] && has(weight) ? over_rows(d * u, *weight) : Tensor(),
            wanted[3] && has(bias) ? over_rows(d, *bias) : Tensor()};
  }
  static bool eligible(const Tensor& grad_y, const OptionalTensor& grad_sum, const Tensor& sum,
                       const OptionalTensor& noise, const OptionalTensor& weight,
                       const OptionalTensor& bias, double, Wanted) {
    return layer_norm_eligible(sum, weight, bias) && is_like(grad_y, sum) &&
           is_like(grad_sum, sum) && is_like(noise, sum);
  }
  static Result meta(const Tensor&, const OptionalTensor&, const Tensor& sum, const OptionalTensor&,
                     const OptionalTensor& weight, const OptionalTensor& bias, double,
                     Wanted wanted) {
    const auto like = [](bool is_wanted, const OptionalTensor& t) {
      return is_wanted && has(t) ? at::empty_symint(t->sym_sizes(), t->options()) : Tensor();
    };
    return {wanted[0] ? at::empty_like(sum) : Tensor(), wanted[1] ? at::empty_like(sum) : Tensor(),
            like(wanted[2], weight), like(wanted[3], bias)};
  }
  static Result cpu(const Tensor& grad_y, const OptionalTensor& grad_sum, const Tensor& given,
                    const OptionalTensor& noise, const OptionalTensor& weight,
                    const OptionalTensor& bias, double eps, Wanted wanted) {
    if (!has_dense_rows(given)) {
      auto [grad_x, grad_r, grad_w, grad_b] =
          cpu(grad_y, grad_sum, given.contiguous(), noise, weight, bias, eps, wanted);
      if (wanted[0]) grad_x = at::empty_like(given).copy_(grad_x);
      if (wanted[1]) grad_r = at::empty_like(given).copy_(grad_r);
      return {grad_x, grad_r, grad_w, grad_b};
    }
    const auto type = compute_type(given.scalar_type());
    const auto dense = [&](const OptionalTensor& t) {
      return has(t) ? laid_out_as(*t, given) : Tensor();
    };
    const auto raised = [&](const OptionalTensor& t) {
      return has(t) ? contiguous_as(*t, type) : Tensor();
    };
    const Tensor d = laid_out_as(grad_y, given), added = dense(grad_sum), n = dense(noise);
    const Tensor w = raised(weight);
    const int64_t cols = given.size(-1), rows = given.numel() / cols;
    const auto options = given.options().dtype(type).memory_format(std::nullopt);
    const auto vector = [&](bool is_wanted, const OptionalTensor& t) {
      return is_wanted && has(t) ? at::empty({cols}, options) : Tensor();
    };
    const Tensor grad_x = wanted[0] ? at::empty_like(given) : Tensor();
    const Tensor grad_r = wanted[1] ? at::empty_like(given) : Tensor();
    Tensor grad_w = vector(wanted[2], weight), grad_b = vector(wanted[3], bias);
    const Tensor scratch = workspace(ops::layer_norm_workspace_bytes(rows, cols));
    const auto pointer = [](const Tensor& t) { return t.defined() ? t.const_data_ptr() : nullptr; };
    ops::DropoutAddLayerNormBackwardArgs args{};
    args.dtype = dtype_of(given);
    args.rows = rows;
    args.cols = cols;
    args.grad_y = data(d);
    args.grad_sum = pointer(added);
    args.sum = data(given);
    args.noise = pointer(n);
    args.weight = pointer(w);
    args.eps = eps;
    args.grad_x = data_out(grad_x);
    args.grad_residual = data_out(grad_r);
    args.grad_weight = data_out(grad_w);
    args.grad_bias = data_out(grad_b);
    args.workspace = data_out(scratch);
    ops::dropout_add_layer_norm_kernels(isa()).backward(exec(), args);
    if (grad_w.defined()) grad_w = grad_w.to(weight->scalar_type());
    if (grad_b.defined()) grad_b = grad_b.to(bias->scalar_type());
    return {grad_x, grad_r, grad_w, grad_b};
  }
};

struct DropoutAddLayerNorm {
  static constexpr const char* schema =
      "dropout_add_layer_norm(Tensor x, Tensor residual, Tensor? noise, Tensor? weight, "
      "Tensor? bias, float eps) -> (Tensor, Tensor)";
  using Backward = DropoutAddLayerNormBackward;
  using Result = std::tuple<Tensor, Tensor>;

  static Result composite(const Tensor& x, const Tensor& residual, const OptionalTensor& noise,
                          const OptionalTensor& weight, const OptionalTensor& bias, double eps) {
    const Tensor sum = (has(noise) ? x * *noise : x) + residual;
    return {at::layer_norm_symint(sum, {sum.sym_size(-1)}, weight, bias, eps), sum};
  }
  static bool eligible(const Tensor& x, const Tensor& residual, const OptionalTensor& noise,
                       const OptionalTensor& weight, const OptionalTensor& bias, double) {
    return layer_norm_eligible(x, weight, bias) && is_like(residual, x) && is_like(noise, x);
  }
  static bool differentiable(const Tensor&, const Tensor&, const OptionalTensor& noise,
                             const OptionalTensor&, const OptionalTensor&, double) {
    return !needs_grad(noise);
  }
  static Result cpu(const Tensor& x, const Tensor& residual, const OptionalTensor& noise,
                    const OptionalTensor& weight, const OptionalTensor& bias, double eps) {
    // layer_norm gives contiguous results.
    if (!x.is_contiguous() || !residual.is_contiguous() || (has(noise) && !noise->is_contiguous()))
      return composite(x, residual, noise, weight, bias, eps);
    const auto type = compute_type(x.scalar_type());
    const Tensor w = has(weight) ? contiguous_as(*weight, type) : Tensor();
    const Tensor b = has(bias) ? contiguous_as(*bias, type) : Tensor();
    const Tensor y = empty_as(x), sum = empty_as(x);
    ops::DropoutAddLayerNormArgs args{};
    args.dtype = dtype_of(x);
    args.cols = x.size(-1);
    args.rows = x.numel() / args.cols;
    args.x = data(x);
    args.residual = data(residual);
    args.noise = has(noise) ? data(*noise) : nullptr;
    args.weight = w.defined() ? data(w) : nullptr;
    args.bias = b.defined() ? data(b) : nullptr;
    args.eps = eps;
    args.y = data_out(y);
    args.sum = data_out(sum);
    ops::dropout_add_layer_norm_kernels(isa()).forward(exec(), args);
    return {y, sum};
  }
  static void save(AutogradContext* context, const variable_list& results, const Tensor&,
                   const Tensor&, const OptionalTensor& noise, const OptionalTensor& weight,
                   const OptionalTensor& bias, double eps) {
    context->save_for_backward(
        {results[1], noise.value_or(Tensor()), weight.value_or(Tensor()), bias.value_or(Tensor())});
    context->set_materialize_grads(false);
    context->saved_data["eps"] = eps;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const auto optional = [](const Tensor& t) {
      return t.defined() ? OptionalTensor(t) : std::nullopt;
    };
    // needs_input_grad counts the tensors that are there.
    size_t index = 2 + saved[1].defined();
    DropoutAddLayerNormBackward::Wanted wanted{context->needs_input_grad(0),
                                               context->needs_input_grad(1)};
    for (size_t i = 2; i < 4; ++i)
      wanted[i] = saved[i].defined() && context->needs_input_grad(index++);
    Tensor grad_x, grad_residual, grad_weight, grad_bias;
    if (!grads[0].defined()) {  // only the sum was used
      if (wanted[1]) grad_residual = grads[1];
      if (wanted[0] && grads[1].defined())
        grad_x = saved[1].defined() ? grads[1] * saved[1] : grads[1];
    } else {
      std::tie(grad_x, grad_residual, grad_weight, grad_bias) =
          call_backward<DropoutAddLayerNormBackward>(
              grads[0], optional(grads[1]), saved[0], optional(saved[1]), optional(saved[2]),
              optional(saved[3]), context->saved_data["eps"].toDouble(), wanted);
    }
    return {grad_x, grad_residual, Tensor(), grad_weight, grad_bias, Tensor()};
  }
};

}  // namespace opfuse::torch_ops

OPFUSE_OPERATOR(DropoutAddLayerNorm)
