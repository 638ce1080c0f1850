#pragma once
// The torch side of gated activations, act(gate) * up, for any activation.

#include "opfuse/ops/gated.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>

#include "opfuse/torch/ops/operator.h"

namespace opfuse::torch_ops {

// Traits has backward_schema, schema, kernels(isa), activation(gate), and slope(gate), in operators
// that have derivatives.
template <class Traits>
struct GatedBackward {
  static constexpr const char* schema = Traits::backward_schema;
  using Result = std::tuple<Tensor, Tensor>;

  static Result composite(const Tensor& grad, const Tensor& gate, const Tensor& up,
                          std::array<bool, 2> wanted) {
    Tensor grad_gate, grad_up;
    if (wanted[0]) grad_gate = grad * up * Traits::slope(gate);
    if (wanted[1]) grad_up = grad * Traits::activation(gate);
    return {grad_gate, grad_up};
  }

  static bool eligible(const Tensor& grad, const Tensor& gate, const Tensor& up,
                       std::array<bool, 2>) {
    return is_plain(grad) && is_plain(gate) && is_plain(up) &&
           grad.scalar_type() == gate.scalar_type() && gate.scalar_type() == up.scalar_type() &&
           grad.sym_sizes() == gate.sym_sizes() && gate.sym_sizes() == up.sym_sizes();
  }

  static Result meta(const Tensor&, const Tensor& gate, const Tensor& up,
                     std::array<bool, 2> wanted) {
    return {wanted[0] ? at::empty_like(gate) : Tensor(), wanted[1] ? at::empty_like(up) : Tensor()};
  }

  static Result cpu(const Tensor& grad, const Tensor& gate, const Tensor& up,
                    std::array<bool, 2> wanted) {
    auto [grad_gate, grad_up] = meta(grad, gate, up, wanted);
    ops::GatedBackwardArgs args{};
    args.dtype = dtype_of(gate);
    args.grad_gate = data_out(grad_gate);
    args.grad_up = data_out(grad_up);
    Tensor d, g = gate, u = up;
    const auto gate_rows = row_layout(gate), up_rows = row_layout(up);
    if (gate.strides() == up.strides() && gate.is_non_overlapping_and_dense()) {
      d = laid_out_as(grad, gate);
      args.rows = 1;
      args.cols = args.grad_stride = args.gate_stride = args.up_stride = gate.numel();
    } else if (gate_rows && up_rows) {
      d = grad.contiguous();
      args.rows = gate_rows->rows;
      args.cols = args.grad_stride = gate_rows->cols;
      args.gate_stride = gate_rows->stride;
      args.up_stride = up_rows->stride;
    } else {
      auto [dense_gate, dense_up] =
          cpu(grad.contiguous(), gate.contiguous(), up.contiguous(), wanted);
      if (wanted[0]) grad_gate.copy_(dense_gate);
      if (wanted[1]) grad_up.copy_(dense_up);
      return {grad_gate, grad_up};
    }
    args.grad = data(d);
    args.gate = data(g);
    args.up = data(u);
    Traits::kernels(isa()).backward(exec(), args);
    return {grad_gate, grad_up};
  }
};

template <class Traits>
struct Gated {
  static constexpr const char* schema = Traits::schema;
  using Backward = GatedBackward<Traits>;

  static Tensor composite(const Tensor& gate, const Tensor& up) {
    return Traits::activation(gate) * up;
  }

  static bool eligible(const Tensor& gate, const Tensor& up) {
    return is_plain(gate) && is_plain(up) && gate.scalar_type() == up.scalar_type() &&
           gate.sym_sizes() == up.sym_sizes();
  }

  static Tensor cpu(const Tensor& gate, const Tensor& up) {
    ops::GatedArgs args{};
    args.dtype = dtype_of(gate);
    Tensor y;
    const auto gate_rows = row_layout(gate), up_rows = row_layout(up);
    if (gate.strides() == up.strides() && gate.is_non_overlapping_and_dense()) {
      y = empty_as(gate);
      args.rows = 1;
      args.cols = args.gate_stride = args.up_stride = gate.numel();
    } else if (gate_rows && up_rows) {
      y = at::empty(gate.sizes(), gate.options());
      args.rows = gate_rows->rows;
      args.cols = gate_rows->cols;
      args.gate_stride = gate_rows->stride;
      args.up_stride = up_rows->stride;
    } else {
      return composite(gate, up);
    }
    args.gate = data(gate);
    args.up = data(up);
    args.out = data_out(y);
    Traits::kernels(isa()).forward(exec(), args);
    return y;
  }

  static void save(AutogradContext* context, const variable_list&, const Tensor& gate,
                   const Tensor& up) {
    context->save_for_backward({gate, up});
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    auto [grad_gate, grad_up] = call_backward<Backward>(
        grads[0], saved[0], saved[1],
        std::array{context->needs_input_grad(0), context->needs_input_grad(1)});
    return {grad_gate, grad_up};
  }
};

}  // namespace opfuse::torch_ops
