// Further operators of torch_npu with their real schemas: activations, gates of two halves, a
// masked softmax, and Gemma's norm, which has no derivative.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/chunk.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/tanh.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "launch.h"

namespace standin {
namespace {

using Text = c10::string_view;

// gelu: "none" by erf, "tanh" by tanh

Tensor npu_gelu(const Tensor& input, Text approximate) {
  Tensor output = at::empty_like(input);
  launch("npu_gelu", {input}, {output}, [form = std::string(approximate)](const Tensors& in) {
    return Tensors{at::gelu(in[0], form)};
  });
  return output;
}

Tensor npu_gelu_backward(const Tensor& grad, const Tensor& input, Text approximate) {
  Tensor output = at::empty_like(input);
  launch("npu_gelu_backward", {grad, input}, {output},
         [form = std::string(approximate)](const Tensors& in) {
           return Tensors{at::gelu_backward(in[0], in[1], form)};
         });
  return output;
}

struct Gelu : Function<Gelu> {
  static Tensor forward(AutogradContext* context, const Tensor& input, const std::string& form) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({input});
    context->saved_data["form"] = form;
    return operation<Tensor(const Tensor&, Text)>("npu::npu_gelu").call(input, form);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    return {operation<Tensor(const Tensor&, const Tensor&, Text)>("npu::npu_gelu_backward")
                .call(grads[0], context->get_saved_variables()[0],
                      context->saved_data["form"].toStringRef()),
            Tensor()};
  }
};

// mish: x * tanh(softplus(x)), computed in float64 on the host: torch's own gradient is less
// accurate than the small operators.

Tensor npu_mish(const Tensor& input) {
  Tensor output = at::empty_like(input);
  launch("npu_mish", {input}, {output}, [](const Tensors& in) {
    const Tensor x = in[0].to(at::kDouble);
    return Tensors{x * at::tanh(at::softplus(x))};
  });
  return output;
}

Tensor npu_mish_backward(const Tensor& grad, const Tensor& input) {
  Tensor output = at::empty_like(input);
  launch("npu_mish_backward", {grad, input}, {output}, [](const Tensors& in) {
    const Tensor x = in[1].to(at::kDouble);
    const Tensor t = at::tanh(at::softplus(x));
    return Tensors{in[0].to(at::kDouble) * (t + x * at::sigmoid(x) * (1 - t * t))};
  });
  return output;
}

struct Mish : Function<Mish> {
  static Tensor forward(AutogradContext* context, const Tensor& input) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({input});
    return operation<Tensor(const Tensor&)>("npu::npu_mish").call(input);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    return {operation<Tensor(const Tensor&, const Tensor&)>("npu::npu_mish_backward")
                .call(grads[0], context->get_saved_variables()[0])};
  }
};

// geglu: the other half times gelu(the activated half), and that gelu. approximate: 0 erf, 1 tanh

struct Geglu {
  int64_t dim;
  bool tanh, left;
  Geglu(int64_t dim, int64_t approximate, bool left)
      : dim(dim), tanh(approximate == 1), left(left) {
    TORCH_CHECK(approximate == 0 || approximate == 1,
                "npu_geglu: expected approximate 0 or 1, found ", approximate);
  }
  Text form() const { return tanh ? "tanh" : "none"; }
  /// The activated half, then the other.
  std::pair<Tensor, Tensor> halves(const Tensor& x) const {
    const Tensors both = at::chunk(x, 2, dim);
    return left ? std::pair(both[0], both[1]) : std::pair(both[1], both[0]);
  }
};

std::tuple<Tensor, Tensor> npu_geglu(const Tensor& input, int64_t dim, int64_t approximate,
                                     bool left) {
  const Geglu geglu(dim, approximate, left);
  std::vector<int64_t> half = input.sizes().vec();
  const size_t at = static_cast<size_t>(dim < 0 ? dim + input.dim() : dim);
  TORCH_CHECK(half[at] % 2 == 0, "npu_geglu: expected an even size in dimension ", dim, ", found ",
              half[at]);
  half[at] /= 2;
  Tensor output = at::empty(half, input.options());
  Tensor activated = at::empty(half, input.options());
  launch("npu_geglu", {input}, {output, activated}, [geglu](const Tensors& in) {
    const auto [gate, up] = geglu.halves(in[0]);
    const Tensor gelu = at::gelu(gate, geglu.form());
    return Tensors{gelu * up, gelu};
  });
  return {output, activated};
}

Tensor npu_geglu_grad(const Tensor& grad, const Tensor& input, const Tensor& gelu, int64_t dim,
                      int64_t approximate, bool left) {
  const Geglu geglu(dim, approximate, left);
  Tensor output = at::empty_like(input);
  launch("npu_geglu_grad", {grad, input, gelu}, {output}, [geglu](const Tensors& in) {
    const auto [gate, up] = geglu.halves(in[1]);
    const Tensor dgate = at::gelu_backward(in[0] * up, gate, geglu.form());
    const Tensor dup = in[0] * in[2];
    return Tensors{geglu.left ? at::cat({dgate, dup}, geglu.dim)
                              : at::cat({dup, dgate}, geglu.dim)};
  });
  return output;
}

struct GegluFunction : Function<GegluFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& input, int64_t dim,
                               int64_t approximate, bool left) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    auto [output, gelu] =
        operation<std::tuple<Tensor, Tensor>(const Tensor&, int64_t, int64_t, bool)>(
            "npu::npu_geglu")
            .call(input, dim, approximate, left);
    context->save_for_backward({input, gelu});
    context->mark_non_differentiable({gelu});
    context->saved_data["dim"] = dim;
    context->saved_data["approximate"] = approximate;
    context->saved_data["left"] = left;
    return {output, gelu};
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor dx =
        operation<Tensor(const Tensor&, const Tensor&, const Tensor&, int64_t, int64_t, bool)>(
            "npu::npu_geglu_grad")
            .call(grads[0], saved[0], saved[1], context->saved_data["dim"].toInt(),
                  context->saved_data["approximate"].toInt(), context->saved_data["left"].toBool());
    return {dx, Tensor(), Tensor(), Tensor()};
  }
};

// scaled_masked_softmax over the last dimension: softmax(masked_fill(x * scale, mask, -10000))

Tensor npu_scaled_masked_softmax(const Tensor& x, const Tensor& mask, const at::Scalar& scale,
                                 bool fixed_triu_mask) {
  TORCH_CHECK(!fixed_triu_mask, "npu_scaled_masked_softmax: expected a mask of its own");
  TORCH_CHECK(mask.scalar_type() == at::kBool,
              "npu_scaled_masked_softmax: expected a bool mask, found ", mask.scalar_type());
  Tensor output = at::empty_like(x);
  launch("npu_scaled_masked_softmax", {x, mask}, {output}, [scale](const Tensors& in) {
    return Tensors{at::_softmax((in[0] * scale).masked_fill(in[1], -10000), -1, false)};
  });
  return output;
}

Tensor npu_scaled_masked_softmax_backward(const Tensor& grad, const Tensor& y, const Tensor& mask,
                                          const at::Scalar& scale, bool) {
  Tensor output = at::empty_like(y);
  launch("npu_scaled_masked_softmax_backward", {grad, y, mask}, {output},
         [scale](const Tensors& in) {
           const Tensor inner = at::_softmax_backward_data(in[0], in[1], -1, in[1].scalar_type());
           return Tensors{inner.masked_fill(in[2], 0) * scale};
         });
  return output;
}

struct MaskedSoftmax : Function<MaskedSoftmax> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& mask,
                        const at::Scalar& scale, bool fixed) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const Tensor y = operation<Tensor(const Tensor&, const Tensor&, const at::Scalar&, bool)>(
                         "npu::npu_scaled_masked_softmax")
                         .call(x, mask, scale, fixed);
    context->save_for_backward({y, mask});
    context->saved_data["scale"] = scale.toDouble();
    return y;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    return {operation<Tensor(const Tensor&, const Tensor&, const Tensor&, const at::Scalar&, bool)>(
                "npu::npu_scaled_masked_softmax_backward")
                .call(grads[0], saved[0], saved[1], context->saved_data["scale"].toDouble(), false),
            Tensor(), Tensor(), Tensor()};
  }
};

// Gemma's norm: x * rsqrt(mean(x^2) + epsilon) * (1 + gamma)

std::tuple<Tensor, Tensor> npu_gemma_rms_norm(const Tensor& input, const Tensor& gamma,
                                              double epsilon) {
  std::vector<int64_t> rows = input.sizes().vec();
  rows.back() = 1;
  Tensor output = at::empty_like(input);
  Tensor rstd = at::empty(rows, input.options().dtype(at::kFloat));
  launch("npu_gemma_rms_norm", {input, gamma}, {output, rstd}, [epsilon](const Tensors& in) {
    const Tensor x = in[0].to(at::kFloat);
    const Tensor root = at::rsqrt((x * x).mean(-1, true) + epsilon);
    return Tensors{x * root * (1 + in[1].to(at::kFloat)), root};
  });
  return {output, rstd};
}

TORCH_LIBRARY_FRAGMENT(npu, m) {
  m.def("npu_gelu(Tensor input, *, str approximate='none') -> Tensor");
  m.def("npu_gelu_backward(Tensor grad_output, Tensor input, *, str approximate='none') -> Tensor");
  m.def("npu_mish(Tensor input) -> Tensor");
  m.def("npu_mish_backward(Tensor grad, Tensor input) -> Tensor");
  m.def(
      "npu_geglu(Tensor input, int dim=-1, int approximate=1, bool activate_left=False) -> "
      "(Tensor, Tensor)");
  m.def(
      "npu_geglu_grad(Tensor grad_output, Tensor input, Tensor gelu, int dim=-1, int "
      "approximate=1, bool activate_left=False) -> Tensor");
  m.def(
      "npu_scaled_masked_softmax(Tensor x, Tensor mask, Scalar scale=1, bool "
      "fixed_triu_mask=False) -> Tensor");
  m.def(
      "npu_scaled_masked_softmax_backward(Tensor y_grad, Tensor y, Tensor mask, Scalar scale, bool "
      "fixed_triu_mask) -> Tensor");
  m.def("npu_gemma_rms_norm(Tensor input, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(npu, PrivateUse1, m) {
  m.impl("npu_gelu", npu_gelu);
  m.impl("npu_gelu_backward", npu_gelu_backward);
  m.impl("npu_mish", npu_mish);
  m.impl("npu_mish_backward", npu_mish_backward);
  m.impl("npu_geglu", npu_geglu);
  m.impl("npu_geglu_grad", npu_geglu_grad);
  m.impl("npu_scaled_masked_softmax", npu_scaled_masked_softmax);
  m.impl("npu_scaled_masked_softmax_backward", npu_scaled_masked_softmax_backward);
  m.impl("npu_gemma_rms_norm", npu_gemma_rms_norm);
}

TORCH_LIBRARY_IMPL(npu, AutogradPrivateUse1, m) {
  m.impl("npu_gelu", [](const Tensor& input, Text approximate) {
    return Gelu::apply(input, std::string(approximate));
  });
  m.impl("npu_mish", [](const Tensor& input) { return Mish::apply(input); });
  m.impl("npu_geglu", [](const Tensor& input, int64_t dim, int64_t approximate, bool left) {
    const variable_list results = GegluFunction::apply(input, dim, approximate, left);
    return std::make_tuple(results[0], results[1]);
  });
  m.impl("npu_scaled_masked_softmax",
         [](const Tensor& x, const Tensor& mask, const at::Scalar& scale, bool fixed) {
           return MaskedSoftmax::apply(x, mask, scale, fixed);
         });
  m.impl("npu_gemma_rms_norm", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace standin
