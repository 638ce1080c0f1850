#pragma once
// The torch side of ops/rms_norm.

#include "opfuse/ops/rms_norm/rms_norm.h"

#include <ATen/ops/empty.h>

#include "opfuse/torch/ops/rms_norm_formula.h"

namespace opfuse::torch_ops {

struct RmsNormBackward {
  static constexpr const char* schema =
      "rms_norm_backward(Tensor grad, Tensor x, Tensor? weight, float eps, float offset, "
      "bool[2] wanted) -> (Tensor, Tensor)";
  using Result = std::tuple<Tensor, Tensor>;

  static Result composite(const Tensor& grad, const Tensor& x, const OptionalTensor& weight,
                          double eps, double offset, std::array<bool, 2> wanted) {
    return rms_norm_gradient(grad, x, weight, eps, offset, {}, wanted);
  }
  static bool eligible(const Tensor& grad, const Tensor& x, const OptionalTensor& weight, double,
                       double offset, std::array<bool, 2>) {
    return rms_norm_eligible(x, weight, offset, "output") && is_plain(grad) &&
           grad.scalar_type() == x.scalar_type() && grad.sym_sizes() == x.sym_sizes();
  }
  static Result meta(const Tensor&, const Tensor& x, const OptionalTensor& weight, double, double,
                     std::array<bool, 2> wanted) {
    const bool weighted = wanted[1] && has(weight);
    return {wanted[0] ? at::empty_like(x) : Tensor(),
            weighted ? at::empty_symint(weight->sym_sizes(), weight->options()) : Tensor()};
  }
  static Result cpu(const Tensor& grad, const Tensor& given, const OptionalTensor& weight,
                    double eps, double offset, std::array<bool, 2> wanted) {
    if (!has_dense_rows(given)) {
      auto [grad_x, grad_weight] = cpu(grad, given.contiguous(), weight, eps, offset, wanted);
      if (wanted[0]) grad_x = at::empty_like(given).copy_(grad_x);
      return {grad_x, grad_weight};
    }
    Tensor grad_x = wanted[0] ? at::empty_like(given) : Tensor();
    const Tensor d = laid_out_as(grad, given), w = kernel_weight(weight, given);
    Tensor grad_w = wanted[1] && has(weight) ? at::empty_like(w) : Tensor(), scratch;
    ops::RmsNormBackwardArgs args{};
    args.dtype = dtype_of(given);
    args.cols = given.size(-1);
    args.rows = args.cols ? given.numel() / args.cols : 0;
    if (grad_w.defined())
      scratch = workspace(ops::rms_norm_workspace_bytes(args.dtype, args.rows, args.cols));
    args.grad = data(d);
    args.x = data(given);
    args.weight = data_or_null(w);
    args.eps = eps;
    args.offset = offset;
    args.grad_x = data_out(grad_x);
    args.grad_weight = data_out(grad_w);
    args.workspace = data_out(scratch);
    ops::rms_norm_kernels(isa()).backward(exec(), args);
    if (grad_w.defined()) grad_w = grad_w.to(weight->scalar_type());
    return {grad_x, grad_w};
  }
};

struct RmsNorm {
  static constexpr const char* schema =
      "rms_norm(Tensor x, Tensor? weight, float eps, float offset=0., str cast='output') -> Tensor";
  using Backward = RmsNormBackward;

  static Tensor composite(const Tensor& x, const OptionalTensor& weight, double eps, double offset,
                          std::string_view cast) {
    check_cast("rms_norm", cast);
    return rms_norm_formula(x, weight, eps, offset, cast);
  }
  static bool eligible(const Tensor& x, const OptionalTensor& weight, double, double offset,
                       std::string_view cast) {
    return rms_norm_eligible(x, weight, offset, cast);
  }
  static Tensor cpu(const Tensor& x, const OptionalTensor& weight, double eps, double offset,
                    std::string_view cast) {
    if (!has_dense_rows(x)) return composite(x, weight, eps, offset, cast);
    const Tensor y = empty_as(x), w = kernel_weight(weight, x);
    ops::RmsNormArgs args{};
    args.dtype = dtype_of(x);
    args.cols = x.size(-1);
    args.rows = args.cols ? x.numel() / args.cols : 0;
    args.x = data(x);
    args.weight = data_or_null(w);
    args.eps = eps;
    args.offset = offset;
    args.round_before_weight = cast == "input";
    args.y = data_out(y);
    ops::rms_norm_kernels(isa()).forward(exec(), args);
    return y;
  }
  static void save(AutogradContext* context, const variable_list&, const Tensor& x,
                   const OptionalTensor& weight, double eps, double offset, std::string_view) {
    context->save_for_backward({x, weight.value_or(Tensor())});
    context->saved_data["eps"] = eps;
    context->saved_data["offset"] = offset;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const OptionalTensor weight = saved[1].defined() ? OptionalTensor(saved[1]) : std::nullopt;
    auto [grad_x, grad_weight] = call_backward<RmsNormBackward>(
        grads[0], saved[0], weight, context->saved_data["eps"].toDouble(),
        context->saved_data["offset"].toDouble(),
        std::array{context->needs_input_grad(0), weight && context->needs_input_grad(1)});
    return {grad_x, grad_weight, Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace opfuse::torch_ops

OPFUSE_OPERATOR(RmsNorm)
