#pragma once
// The torch side of ops/quick_gelu.

#include "opfuse/ops/quick_gelu/quick_gelu.h"

#include "opfuse/torch/ops/swish_formula.h"

namespace opfuse::torch_ops {

struct QuickGeluBackward {
  static constexpr const char* schema =
      "quick_gelu_backward(Tensor grad, Tensor x, float beta) -> Tensor";

  static Tensor composite(const Tensor& grad, const Tensor& x, double beta) {
    return grad * swish_slope(x * beta);
  }
  static bool eligible(const Tensor& grad, const Tensor& x, double) {
    return swish_backward_eligible(grad, x);
  }
  static Tensor meta(const Tensor&, const Tensor& x, double) { return at::empty_like(x); }
  static Tensor cpu(const Tensor& grad, const Tensor& x, double beta) {
    return swish_backward(grad, x, beta, true, nullptr);
  }
};

struct QuickGelu {
  static constexpr const char* schema = "quick_gelu(Tensor x, float beta=1.702) -> Tensor";
  using Backward = QuickGeluBackward;

  static Tensor composite(const Tensor& x, double beta) { return x * at::sigmoid(x * beta); }
  static bool eligible(const Tensor& x, double) { return is_plain(x); }
  static Tensor cpu(const Tensor& x, double beta) {
    return x.is_non_overlapping_and_dense() ? swish_forward(x, beta) : composite(x, beta);
  }
  static void save(AutogradContext* context, const variable_list&, const Tensor& x, double beta) {
    context->save_for_backward({x});
    context->saved_data["beta"] = beta;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    return {call_backward<QuickGeluBackward>(grads[0], context->get_saved_variables()[0],
                                             context->saved_data["beta"].toDouble()),
            Tensor()};
  }
};

}  // namespace opfuse::torch_ops

OPFUSE_OPERATOR(QuickGelu)
