#pragma once
// The torch side of ops/sigmoid_gate.

#include "opfuse/ops/sigmoid_gate/sigmoid_gate.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/hardsigmoid.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>

#include <numeric>
#include <vector>

#include "opfuse/torch/ops/operator.h"

namespace opfuse::torch_ops {

inline bool gate_eligible(const Tensor& x, const Tensor& gate) {
  if (!is_plain(x) || !is_plain(gate) || x.scalar_type() != gate.scalar_type() || x.dim() < 3 ||
      x.dim() > 5 || gate.dim() != x.dim() || gate.sym_size(0) != x.sym_size(0) ||
      gate.sym_size(1) != x.sym_size(1))
    return false;
  for (int64_t dim = 2; dim < gate.dim(); ++dim)
    if (gate.sym_size(dim) != 1) return false;
  return true;
}

// x without gaps as [N, C, space] or [N, space, C]; nullopt for any other layout.
inline std::optional<bool> is_channels_last(const Tensor& x) {
  if (x.is_contiguous()) return false;
  if (x.dim() == 4 && x.is_contiguous(at::MemoryFormat::ChannelsLast)) return true;
  if (x.dim() == 5 && x.is_contiguous(at::MemoryFormat::ChannelsLast3d)) return true;
  return std::nullopt;
}

template <class Args>
void fill_gate_args(const Tensor& x, const Tensor& gate, bool hard, Args* args) {
  args->dtype = dtype_of(x);
  args->samples = x.size(0);
  args->channels = x.size(1);
  args->space = x.numel() ? x.numel() / (args->samples * args->channels) : 0;
  args->channels_last = *is_channels_last(x);
  args->hard = hard;
  args->x = data(x);
  args->gate = data(gate);
}

struct SigmoidGateBackward {
  static constexpr const char* schema =
      "sigmoid_gate_backward(Tensor grad, Tensor x, Tensor gate, bool hard, bool[2] wanted) "
      "-> (Tensor, Tensor)";
  using Result = std::tuple<Tensor, Tensor>;

  static Result composite(const Tensor& grad, const Tensor& x, const Tensor& gate, bool hard,
                          std::array<bool, 2> wanted) {
    const Tensor s = hard ? at::hardsigmoid(gate) : at::sigmoid(gate);
    Tensor grad_x, grad_gate;
    if (wanted[0]) grad_x = (grad * s).sum_to_size_symint(x.sym_sizes());
    if (wanted[1]) {
      const Tensor sum = (grad * x).sum_to_size_symint(gate.sym_sizes());
      // at::hardsigmoid_backward has no derivative.
      grad_gate = hard ? at::where(at::logical_and(gate > -3, gate < 3), sum * (1.0 / 6), 0)
                       : sum * (s * at::rsub(s, 1));
    }
    return {grad_x, grad_gate};
  }
  static bool eligible(const Tensor& grad, const Tensor& x, const Tensor& gate, bool,
                       std::array<bool, 2>) {
    return gate_eligible(x, gate) && is_plain(grad) && grad.scalar_type() == x.scalar_type() &&
           grad.sym_sizes() == x.sym_sizes();
  }
  static Result meta(const Tensor&, const Tensor& x, const Tensor& gate, bool,
                     std::array<bool, 2> wanted) {
    return {wanted[0] ? at::empty_like(x) : Tensor(), wanted[1] ? at::empty_like(gate) : Tensor()};
  }
  static Result cpu(const Tensor& grad, const Tensor& x, const Tensor& gate, bool hard,
                    std::array<bool, 2> wanted) {
    auto [grad_x, grad_gate] = meta(grad, x, gate, hard, wanted);
    if (!is_channels_last(x) || !gate.is_non_overlapping_and_dense() || !is_flat(gate)) {
      auto [dense_x, dense_gate] = cpu(grad, x.contiguous(), gate.contiguous(), hard, wanted);
      if (wanted[0]) grad_x.copy_(dense_x);
      if (wanted[1]) grad_gate.copy_(dense_gate);
      return {grad_x, grad_gate};
    }
    ops::SigmoidGateBackwardArgs args{};
    fill_gate_args(x, gate, hard, &args);
    const Tensor d = laid_out_as(grad, x);
    const Tensor scratch =
        workspace(ops::sigmoid_gate_workspace_bytes(args.samples, args.channels, args.space, true));
    args.grad = data(d);
    args.grad_x = data_out(grad_x);
    args.grad_gate = data_out(grad_gate);
    args.workspace = data_out(scratch);
    ops::sigmoid_gate_kernels(isa()).backward(exec(), args);
    return {grad_x, grad_gate};
  }
  // [N, C] without gaps, whatever strides the dimensions of size 1 have.
  static bool is_flat(const Tensor& gate) {
    return (gate.size(1) == 1 || gate.stride(1) == 1) &&
           (gate.size(0) == 1 || gate.stride(0) == gate.size(1));
  }
};

struct SigmoidGate {
  static constexpr const char* schema =
      "sigmoid_gate(Tensor x, Tensor gate, bool hard=False) -> Tensor";
  using Backward = SigmoidGateBackward;

  static Tensor composite(const Tensor& x, const Tensor& gate, bool hard) {
    return x * (hard ? at::hardsigmoid(gate) : at::sigmoid(gate));
  }
  static bool eligible(const Tensor& x, const Tensor& gate, bool) { return gate_eligible(x, gate); }
  static Tensor cpu(const Tensor& x, const Tensor& given_gate, bool hard) {
    if (!is_channels_last(x)) return composite(x, given_gate, hard);
    const Tensor gate =
        SigmoidGateBackward::is_flat(given_gate) ? given_gate : given_gate.contiguous();
    const Tensor y = empty_as(x);
    ops::SigmoidGateArgs args{};
    fill_gate_args(x, gate, hard, &args);
    const Tensor scratch = workspace(
        ops::sigmoid_gate_workspace_bytes(args.samples, args.channels, args.space, false));
    args.y = data_out(y);
    args.workspace = data_out(scratch);
    ops::sigmoid_gate_kernels(isa()).forward(exec(), args);
    return y;
  }
  static void save(AutogradContext* context, const variable_list&, const Tensor& x,
                   const Tensor& gate, bool hard) {
    context->save_for_backward({x, gate});
    context->saved_data["hard"] = hard;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    auto [grad_x, grad_gate] = call_backward<SigmoidGateBackward>(
        grads[0], saved[0], saved[1], context->saved_data["hard"].toBool(),
        std::array{context->needs_input_grad(0), context->needs_input_grad(1)});
    return {grad_x, grad_gate, Tensor()};
  }
};

}  // namespace opfuse::torch_ops

OPFUSE_OPERATOR(SigmoidGate)
