#pragma once
// The torch side of ops/add_rms_norm.

#include "opfuse/ops/add_rms_norm/add_rms_norm.h"

#include <ATen/ops/empty.h>

#include "opfuse/ops/rms_norm/rms_norm.h"
#include "opfuse/torch/ops/rms_norm_formula.h"

namespace opfuse::torch_ops {

struct AddRmsNormBackward {
  static constexpr const char* schema =
      "add_rms_norm_backward(Tensor grad_y, Tensor? grad_sum, Tensor sum, Tensor? weight, float "
      "eps, "
      "float offset, bool[2] wanted) -> (Tensor, Tensor)";
  using Result = std::tuple<Tensor, Tensor>;

  static Result composite(const Tensor& grad_y, const OptionalTensor& grad_sum, const Tensor& sum,
                          const OptionalTensor& weight, double eps, double offset,
                          std::array<bool, 2> wanted) {
    return rms_norm_gradient(grad_y, sum, weight, eps, offset, grad_sum.value_or(Tensor()), wanted);
  }
  static bool eligible(const Tensor& grad_y, const OptionalTensor& grad_sum, const Tensor& sum,
                       const OptionalTensor& weight, double, double offset, std::array<bool, 2>) {
    const auto fits = [&](const Tensor& t) {
      return is_plain(t) && t.scalar_type() == sum.scalar_type() &&
             t.sym_sizes() == sum.sym_sizes();
    };
    return rms_norm_eligible(sum, weight, offset, "output") && fits(grad_y) &&
           (!has(grad_sum) || fits(*grad_sum));
  }
  static Result meta(const Tensor&, const OptionalTensor&, const Tensor& sum,
                     const OptionalTensor& weight, double, double, std::array<bool, 2> wanted) {
    const bool weighted = wanted[1] && has(weight);
    return {wanted[0] ? at::empty_like(sum) : Tensor(),
            weighted ? at::empty_symint(weight->sym_sizes(), weight->options()) : Tensor()};
  }
  static Result cpu(const Tensor& grad_y, const OptionalTensor& grad_sum, const Tensor& given,
                    const OptionalTensor& weight, double eps, double offset,
                    std::array<bool, 2> wanted) {
    if (!has_dense_rows(given)) {
      auto [grad_x, grad_weight] =
          cpu(grad_y, grad_sum, given.contiguous(), weight, eps, offset, wanted);
      if (wanted[0]) grad_x = at::empty_like(given).copy_(grad_x);
      return {grad_x, grad_weight};
    }
    Tensor grad_x = wanted[0] ? at::empty_like(given) : Tensor();
    const Tensor d = laid_out_as(grad_y, given), w = kernel_weight(weight, given);
    const Tensor added = has(grad_sum) ? laid_out_as(*grad_sum, given) : Tensor();
    Tensor grad_w = wanted[1] && has(weight) ? at::empty_like(w) : Tensor(), scratch;
    ops::AddRmsNormBackwardArgs args{};
    args.dtype = dtype_of(given);
    args.cols = given.size(-1);
    args.rows = args.cols ? given.numel() / args.cols : 0;
    if (grad_w.defined())
      scratch = workspace(ops::rms_norm_workspace_bytes(args.dtype, args.rows, args.cols));
    args.grad_y = data(d);
    args.grad_sum = data_or_null(added);
    args.sum = data(given);
    args.weight = data_or_null(w);
    args.eps = eps;
    args.offset = offset;
    args.grad_x = data_out(grad_x);
    args.grad_weight = data_out(grad_w);
    args.workspace = data_out(scratch);
    ops::add_rms_norm_kernels(isa()).backward(exec(), args);
    if (grad_w.defined()) grad_w = grad_w.to(weight->scalar_type());
    return {grad_x, grad_w};
  }
};

struct AddRmsNorm {
  static constexpr const char* schema =
      "add_rms_norm(Tensor x, Tensor residual, Tensor? weight, float eps, float offset=0., "
      "str cast='output') -> (Tensor, Tensor)";
  using Backward = AddRmsNormBackward;
  using Result = std::tuple<Tensor, Tensor>;

  static Result composite(const Tensor& x, const Tensor& residual, const OptionalTensor& weight,
                          double eps, double offset, std::string_view cast) {
    check_cast("add_rms_norm", cast);
    const Tensor sum = x + residual;
    return {rms_norm_formula(sum, weight, eps, offset, cast), sum};
  }
  static bool eligible(const Tensor& x, const Tensor& residual, const OptionalTensor& weight,
                       double, double offset, std::string_view cast) {
    return rms_norm_eligible(x, weight, offset, cast) && is_plain(residual) &&
           residual.scalar_type() == x.scalar_type() && residual.sym_sizes() == x.sym_sizes();
  }
  static Result cpu(const Tensor& x, const Tensor& residual, const OptionalTensor& weight,
                    double eps, double offset, std::string_view cast) {
    if (!has_dense_rows(x) || residual.strides() != x.strides())
      return composite(x, residual, weight, eps, offset, cast);
    const Tensor y = empty_as(x), sum = empty_as(x), w = kernel_weight(weight, x);
    ops::AddRmsNormArgs args{};
    args.dtype = dtype_of(x);
    args.cols = x.size(-1);
    args.rows = args.cols ? x.numel() / args.cols : 0;
    args.x = data(x);
    args.residual = data(residual);
    args.weight = data_or_null(w);
    args.eps = eps;
    args.offset = offset;
    args.round_before_weight = cast == "input";
    args.y = data_out(y);
    args.sum = data_out(sum);
    ops::add_rms_norm_kernels(isa()).forward(exec(), args);
    return {y, sum};
  }
  static void save(AutogradContext* context, const variable_list& results, const Tensor&,
                   const Tensor&, const OptionalTensor& weight, double eps, double offset,
                   std::string_view) {
    context->save_for_backward({results[1], weight.value_or(Tensor())});
    context->set_materialize_grads(false);
    context->saved_data["eps"] = eps;
    context->saved_data["offset"] = offset;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const bool want_x = context->needs_input_grad(0), want_r = context->needs_input_grad(1);
    const bool has_weight = saved[1].defined();
    Tensor grad_x, grad_weight;
    if (!grads[0].defined()) {
      grad_x = grads[1];  // only the sum was used
    } else {
      std::tie(grad_x, grad_weight) = call_backward<AddRmsNormBackward>(
          grads[0], grads[1].defined() ? OptionalTensor(grads[1]) : std::nullopt, saved[0],
          has_weight ? OptionalTensor(saved[1]) : std::nullopt,
          context->saved_data["eps"].toDouble(), context->saved_data["offset"].toDouble(),
          std::array{want_x || want_r, has_weight && context->needs_input_grad(2)});
    }
    return {want_x ? grad_x : Tensor(),
            want_r ? grad_x : Tensor(),
            grad_weight,
            Tensor(),
            Tensor(),
            Tensor()};
  }
};

}  // namespace opfuse::torch_ops

OPFUSE_OPERATOR(AddRmsNorm)
