#pragma once
// The torch side of ops/swish_beta.

#include "opfuse/ops/swish_beta/swish_beta.h"

#include <ATen/ops/full.h>
#include <ATen/ops/sum.h>

#include "opfuse/torch/ops/swish_formula.h"

namespace opfuse::torch_ops {

// One element, and no more dimensions than x: x * beta then has the shape of x.
inline bool swish_beta_eligible(const Tensor& x, const Tensor& beta) {
  return is_plain(x) && is_plain(beta) && beta.scalar_type() == x.scalar_type() &&
         beta.dim() <= x.dim() && beta.sym_numel() == 1;
}
inline double value_of(const Tensor& beta) {
  return beta.to(at::kDouble).const_data_ptr<double>()[0];
}

struct SwishBetaBackward {
  static constexpr const char* schema =
      "swish_beta_backward(Tensor grad, Tensor x, Tensor beta, bool[2] wanted) -> (Tensor, Tensor)";
  using Result = std::tuple<Tensor, Tensor>;

  static Result composite(const Tensor& grad, const Tensor& x, const Tensor& beta,
                          std::array<bool, 2> wanted) {
    const Tensor inner = x * beta;
    Tensor grad_x, grad_beta;
    if (wanted[0]) grad_x = grad * swish_slope(inner);
    if (wanted[1]) {
      const Tensor s = at::sigmoid(inner);
      grad_beta = at::sum(grad * x * x * s * at::rsub(s, 1)).reshape_symint(beta.sym_sizes());
    }
    return {grad_x, grad_beta};
  }
  static bool eligible(const Tensor& grad, const Tensor& x, const Tensor& beta,
                       std::array<bool, 2>) {
    return swish_backward_eligible(grad, x) && swish_beta_eligible(x, beta);
  }
  static Result meta(const Tensor&, const Tensor& x, const Tensor& beta,
                     std::array<bool, 2> wanted) {
    return {wanted[0] ? at::empty_like(x) : Tensor(), wanted[1] ? at::empty_like(beta) : Tensor()};
  }
  static Result cpu(const Tensor& grad, const Tensor& x, const Tensor& beta,
                    std::array<bool, 2> wanted) {
    double sum = 0;
    const Tensor grad_x =
        swish_backward(grad, x, value_of(beta), wanted[0], wanted[1] ? &sum : nullptr);
    return {grad_x, wanted[1] ? at::full(beta.sizes(), sum, beta.options()) : Tensor()};
  }
};

struct SwishBeta {
  static constexpr const char* schema = "swish_beta(Tensor x, Tensor beta) -> Tensor";
  using Backward = SwishBetaBackward;

  static Tensor composite(const Tensor& x, const Tensor& beta) { return x * at::sigmoid(x * beta); }
  static bool eligible(const Tensor& x, const Tensor& beta) { return swish_beta_eligible(x, beta); }
  static Tensor cpu(const Tensor& x, const Tensor& beta) {
    return x.is_non_overlapping_and_dense() ? swish_forward(x, value_of(beta)) : composite(x, beta);
  }
  static void save(AutogradContext* context, const variable_list&, const Tensor& x,
                   const Tensor& beta) {
    context->save_for_backward({x, beta});
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    auto [grad_x, grad_beta] = call_backward<SwishBetaBackward>(
        grads[0], saved[0], saved[1],
        std::array{context->needs_input_grad(0), context->needs_input_grad(1)});
    return {grad_x, grad_beta};
  }
};

}  // namespace opfuse::torch_ops

OPFUSE_OPERATOR(SwishBeta)
