// Operators of torch_npu with their real schemas (the wheel's libtorch_npu.so and
// _op_plugin_docs.py), computed by small CPU operators. What has no derivative there has none here.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/chunk.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/sum_to_size.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "launch.h"

namespace standin {
namespace {

// silu: x * sigmoid(x)

Tensor npu_silu(const Tensor& input) {
  TORCH_CHECK(input.scalar_type() == at::kFloat || input.scalar_type() == at::kHalf ||
                  input.scalar_type() == at::kBFloat16,
              "npu_silu: expected float16, bfloat16 or float32, found ", input.scalar_type());
  Tensor output = at::empty_like(input);
  launch("npu_silu", {input}, {output}, [](const Tensors& in) { return Tensors{at::silu(in[0])}; });
  return output;
}

Tensor npu_silu_backward(const Tensor& grad, const Tensor& x0, const Tensor&) {
  Tensor output = at::empty_like(x0);
  launch("npu_silu_backward", {grad, x0}, {output},
         [](const Tensors& in) { return Tensors{at::silu_backward(in[0], in[1])}; });
  return output;
}

struct Silu : Function<Silu> {
  static Tensor forward(AutogradContext* context, const Tensor& input) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    Tensor output = operation<Tensor(const Tensor&)>("npu::npu_silu").call(input);
    context->save_for_backward({input, output});
    return output;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    return {operation<Tensor(const Tensor&, const Tensor&, const Tensor&)>("npu::npu_silu_backward")
                .call(grads[0], saved[0], saved[1])};
  }
};

// rms_norm over the last dimension: x * rsqrt(mean(x^2) + epsilon) * gamma, and the rsqrt

std::tuple<Tensor, Tensor> npu_rms_norm(const Tensor& input, const Tensor& gamma, double epsilon) {
  std::vector<int64_t> rows = input.sizes().vec();
  rows.back() = 1;
  Tensor output = at::empty_like(input);
  Tensor rstd = at::empty(rows, input.options().dtype(at::kFloat));
  launch("npu_rms_norm", {input, gamma}, {output, rstd}, [epsilon](const Tensors& in) {
    const Tensor x = in[0].to(at::kFloat);
    const Tensor root = at::rsqrt((x * x).mean(-1, true) + epsilon);
    return Tensors{x * root * in[1].to(at::kFloat), root};
  });
  return {output, rstd};
}

std::tuple<Tensor, Tensor> npu_rms_norm_backward(const Tensor& dy, const Tensor& input,
                                                 const Tensor& gamma, const Tensor& rstd) {
  Tensor dx = at::empty_like(input);
  Tensor dgamma = at::empty_like(gamma);
  launch("npu_rms_norm_backward", {dy, input, gamma, rstd}, {dx, dgamma}, [](const Tensors& in) {
    const Tensor g = in[0].to(at::kFloat);
    const Tensor normed = in[1].to(at::kFloat) * in[3];
    const Tensor scaled = g * in[2].to(at::kFloat);
    const Tensor dx = in[3] * (scaled - normed * (scaled * normed).mean(-1, true));
    return Tensors{dx, (g * normed).sum_to_size(in[2].sizes())};
  });
  return {dx, dgamma};
}

struct RmsNorm : Function<RmsNorm> {
  static variable_list forward(AutogradContext* context, const Tensor& input, const Tensor& gamma,
                               double epsilon) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    auto [output, rstd] =
        operation<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, double)>(
            "npu::npu_rms_norm")
            .call(input, gamma, epsilon);
    context->save_for_backward({input, gamma, rstd});
    context->mark_non_differentiable({rstd});
    return {output, rstd};
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    auto [dx, dgamma] = operation<std::tuple<Tensor, Tensor>(
        const Tensor&, const Tensor&, const Tensor&, const Tensor&)>("npu::npu_rms_norm_backward")
                            .call(grads[0], saved[0], saved[1], saved[2]);
    return {dx, dgamma, Tensor()};
  }
};

// swiglu: silu(first half) * second half

Tensor npu_swiglu(const Tensor& input, int64_t dim) {
  std::vector<int64_t> half = input.sizes().vec();
  const size_t at = static_cast<size_t>(dim < 0 ? dim + input.dim() : dim);
  TORCH_CHECK(half[at] % 2 == 0, "npu_swiglu: expected an even size in dimension ", dim, ", found ",
              half[at]);
  half[at] /= 2;
  Tensor output = at::empty(half, input.options());
  launch("npu_swiglu", {input}, {output}, [dim](const Tensors& in) {
    const Tensors halves = at::chunk(in[0], 2, dim);
    return Tensors{at::silu(halves[0]) * halves[1]};
  });
  return output;
}

Tensor npu_swiglu_backward(const Tensor& grad, const Tensor& input, int64_t dim) {
  Tensor output = at::empty_like(input);
  launch("npu_swiglu_backward", {grad, input}, {output}, [dim](const Tensors& in) {
    const Tensors halves = at::chunk(in[1], 2, dim);
    return Tensors{at::cat(
        {at::silu_backward(in[0] * halves[1], halves[0]), in[0] * at::silu(halves[0])}, dim)};
  });
  return output;
}

struct Swiglu : Function<Swiglu> {
  static Tensor forward(AutogradContext* context, const Tensor& input, int64_t dim) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({input});
    context->saved_data["dim"] = dim;
    return operation<Tensor(const Tensor&, int64_t)>("npu::npu_swiglu").call(input, dim);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const Tensor input = context->get_saved_variables()[0];
    return {operation<Tensor(const Tensor&, const Tensor&, int64_t)>("npu::npu_swiglu_backward")
                .call(grads[0], input, context->saved_data["dim"].toInt()),
            Tensor()};
  }
};

// rotary_mul, mode half: x * r1 + rotate_half(x) * r2

Tensor rotated(const Tensor& x, bool back) {
  const Tensors halves = at::chunk(x, 2, -1);
  return back ? at::cat({halves[1], -halves[0]}, -1) : at::cat({-halves[1], halves[0]}, -1);
}

Tensor npu_rotary_mul(const Tensor& input, const Tensor& r1, const Tensor& r2,
                      c10::string_view mode, const std::optional<Tensor>& rotate) {
  TORCH_CHECK(mode == "half", "npu_rotary_mul: expected rotary_mode half, found ", mode);
  TORCH_CHECK(!rotate.has_value(), "npu_rotary_mul: expected no matrix to rotate by");
  Tensor output = at::empty_like(input);
  launch("npu_rotary_mul", {input, r1, r2}, {output},
         [](const Tensors& in) { return Tensors{in[0] * in[1] + rotated(in[0], false) * in[2]}; });
  return output;
}

std::tuple<Tensor, Tensor, Tensor> npu_rotary_mul_backward(const Tensor& grad, const Tensor& input,
                                                           const Tensor& r1, const Tensor& r2,
                                                           c10::string_view) {
  Tensor dx = at::empty_like(input);
  Tensor dr1 = at::empty_like(r1);
  Tensor dr2 = at::empty_like(r2);
  launch("npu_rotary_mul_backward", {grad, input, r1, r2}, {dx, dr1, dr2}, [](const Tensors& in) {
    return Tensors{in[0] * in[2] + rotated(in[0] * in[3], true),
                   (in[0] * in[1]).sum_to_size(in[2].sizes()),
                   (in[0] * rotated(in[1], false)).sum_to_size(in[3].sizes())};
  });
  return {dx, dr1, dr2};
}

struct RotaryMul : Function<RotaryMul> {
  static Tensor forward(AutogradContext* context, const Tensor& input, const Tensor& r1,
                        const Tensor& r2, const std::string& mode) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({input, r1, r2});
    context->saved_data["mode"] = mode;
    return operation<Tensor(const Tensor&, const Tensor&, const Tensor&, c10::string_view,
                            const std::optional<Tensor>&)>("npu::npu_rotary_mul")
        .call(input, r1, r2, mode, std::nullopt);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    auto [dx, dr1, dr2] = operation<std::tuple<Tensor, Tensor, Tensor>(
        const Tensor&, const Tensor&, const Tensor&, const Tensor&, c10::string_view)>(
                              "npu::npu_rotary_mul_backward")
                              .call(grads[0], saved[0], saved[1], saved[2],
                                    context->saved_data["mode"].toStringRef());
    return {dx, dr1, dr2, Tensor()};
  }
};

// fast_gelu: x * sigmoid(1.702 x), which is another function than gelu

Tensor fast_gelu(const Tensor& input) {
  Tensor output = at::empty_like(input);
  launch("fast_gelu", {input}, {output},
         [](const Tensors& in) { return Tensors{in[0] * at::sigmoid(1.702 * in[0])}; });
  return output;
}

Tensor fast_gelu_backward(const Tensor& grad, const Tensor& input) {
  Tensor output = at::empty_like(input);
  launch("npu_fast_gelu_backward", {grad, input}, {output}, [](const Tensors& in) {
    const Tensor s = at::sigmoid(1.702 * in[1]);
    return Tensors{in[0] * s + in[0] * in[1] * (1 - s) * s * 1.702};
  });
  return output;
}

struct FastGelu : Function<FastGelu> {
  static Tensor forward(AutogradContext* context, const Tensor& input) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({input});
    return operation<Tensor(const Tensor&)>("npu::npu_fast_gelu").call(input);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    return {operation<Tensor(const Tensor&, const Tensor&)>("npu::npu_fast_gelu_backward")
                .call(grads[0], context->get_saved_variables()[0])};
  }
};

// The sum's norm and the sum. It has no derivative.

std::tuple<Tensor, Tensor, Tensor> npu_add_rms_norm(const Tensor& x1, const Tensor& x2,
                                                    const Tensor& gamma, double epsilon) {
  const Tensor sum = x1 + x2;
  auto [output, rstd] = npu_rms_norm(sum, gamma, epsilon);
  return {output, rstd, sum};
}

TORCH_LIBRARY(npu, m) {
  m.def("npu_silu(Tensor input) -> Tensor");
  m.def("npu_silu_backward(Tensor grad_output, Tensor x0, Tensor x1) -> Tensor");
  m.def("npu_rms_norm(Tensor input, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor)");
  m.def(
      "npu_rms_norm_backward(Tensor dy, Tensor input, Tensor gamma, Tensor rstd) -> (Tensor, "
      "Tensor)");
  m.def("npu_swiglu(Tensor input, int dim=-1) -> Tensor");
  m.def("npu_swiglu_backward(Tensor grad_output, Tensor input, int dim=-1) -> Tensor");
  m.def(
      "npu_rotary_mul(Tensor input, Tensor r1, Tensor r2, str rotary_mode='half', Tensor? "
      "rotate=None) -> Tensor");
  m.def(
      "npu_rotary_mul_backward(Tensor grad, Tensor input, Tensor r1, Tensor r2, str "
      "rotary_mode='half') -> (Tensor, Tensor, Tensor)");
  m.def("fast_gelu(Tensor input) -> Tensor");
  m.def("npu_fast_gelu(Tensor input) -> Tensor");
  m.def("npu_fast_gelu_backward(Tensor grad, Tensor input) -> Tensor");
  m.def(
      "npu_add_rms_norm(Tensor x1, Tensor x2, Tensor gamma, float epsilon=1e-06) -> (Tensor, "
      "Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(npu, PrivateUse1, m) {
  m.impl("npu_silu", npu_silu);
  m.impl("npu_silu_backward", npu_silu_backward);
  m.impl("npu_rms_norm", npu_rms_norm);
  m.impl("npu_rms_norm_backward", npu_rms_norm_backward);
  m.impl("npu_swiglu", npu_swiglu);
  m.impl("npu_swiglu_backward", npu_swiglu_backward);
  m.impl("npu_rotary_mul", npu_rotary_mul);
  m.impl("npu_rotary_mul_backward", npu_rotary_mul_backward);
  m.impl("fast_gelu", fast_gelu);
  m.impl("npu_fast_gelu", fast_gelu);
  m.impl("npu_fast_gelu_backward", fast_gelu_backward);
  m.impl("npu_add_rms_norm", npu_add_rms_norm);
}

TORCH_LIBRARY_IMPL(npu, AutogradPrivateUse1, m) {
  m.impl("npu_silu", [](const Tensor& input) { return Silu::apply(input); });
  m.impl("fast_gelu", [](const Tensor& input) { return FastGelu::apply(input); });
  m.impl("npu_fast_gelu", [](const Tensor& input) { return FastGelu::apply(input); });
  m.impl("npu_add_rms_norm", torch::autograd::autogradNotImplementedFallback());
  m.impl("npu_rms_norm", [](const Tensor& input, const Tensor& gamma, double epsilon) {
    const variable_list results = RmsNorm::apply(input, gamma, epsilon);
    return std::make_tuple(results[0], results[1]);
  });
  m.impl("npu_swiglu", [](const Tensor& input, int64_t dim) { return Swiglu::apply(input, dim); });
  m.impl("npu_rotary_mul", [](const Tensor& input, const Tensor& r1, const Tensor& r2,
                              c10::string_view mode, const std::optional<Tensor>&) {
    return RotaryMul::apply(input, r1, r2, std::string(mode));
  });
}

}  // namespace
}  // namespace standin
