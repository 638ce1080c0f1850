#pragma once
// The torch side of ops/silu_mul.

#include "opfuse/ops/silu_mul/silu_mul.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>

#include "opfuse/torch/ops/operator.h"

namespace opfuse::torch_ops {

struct SiluMulBackward {
  static constexpr const char* schema =
      "silu_mul_backward(Tensor grad, Tensor gate, Tensor up, bool[2] wanted) -> (Tensor, Tensor)";
  using Result = std::tuple<Tensor, Tensor>;

  static Result composite(const Tensor& grad, const Tensor& gate, const Tensor& up,
                          std::array<bool, 2> wanted) {
    const Tensor s = at::sigmoid(gate);
    Tensor grad_gate, grad_up;
    if (wanted[0]) grad_gate = grad * up * (s * (gate * at::rsub(s, 1) + 1));
    if (wanted[1]) grad_up = grad * (gate * s);
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
    ops::SiluMulBackwardArgs args{};
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
    ops::silu_mul_kernels(isa()).backward(exec(), args);
    return {grad_gate, grad_up};
  }
};

struct SiluMul {
  static constexpr const char* schema = "silu_mul(Tensor gate, Tensor up) -> Tensor";
  using Backward = SiluMulBackward;

  static Tensor composite(const Tensor& gate, const Tensor& up) { return at::silu(gate) * up; }

  static bool eligible(const Tensor& gate, const Tensor& up) {
    return is_plain(gate) && is_plain(up) && gate.scalar_type() == up.scalar_type() &&
           gate.sym_sizes() == up.sym_sizes();
  }

  static Tensor cpu(const Tensor& gate, const Tensor& up) {
    ops::SiluMulArgs args{};
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
    ops::silu_mul_kernels(isa()).forward(exec(), args);
    return y;
  }

  static void save(AutogradContext* context, const variable_list&, const Tensor& gate,
                   const Tensor& up) {
    context->save_for_backward({gate, up});
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    auto [grad_gate, grad_up] = call_backward<SiluMulBackward>(
        grads[0], saved[0], saved[1],
        std::array{context->needs_input_grad(0), context->needs_input_grad(1)});
    return {grad_gate, grad_up};
  }
};

}  // namespace opfuse::torch_ops

OPFUSE_OPERATOR(SiluMul)
