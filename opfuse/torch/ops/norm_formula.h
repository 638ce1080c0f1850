#pragma once
// What operators with a batch norm share: activations, the formulas of the norm and its gradient in
// ATen operators, which arguments kernels take.

#include "opfuse/ops/batch_norm_act/batch_norm_act.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/hardswish.h>
#include <ATen/ops/hardtanh.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/where.h>

#include <array>
#include <string_view>
#include <tuple>
#include <vector>

#include "opfuse/torch/ops/runtime.h"

namespace opfuse::torch_ops {

inline std::optional<ops::Activation> activation_named(std::string_view name) {
  using ops::Activation;
  if (name == "none") return Activation::kNone;
  if (name == "silu") return Activation::kSilu;
  if (name == "relu") return Activation::kRelu;
  if (name == "relu6") return Activation::kRelu6;
  if (name == "hardswish") return Activation::kHardswish;
  if (name == "gelu") return Activation::kGelu;
  return std::nullopt;
}

inline ops::Activation checked_activation(const char* op, std::string_view name) {
  const auto found = activation_named(name);
  TORCH_CHECK_VALUE(found, op,
                    ": expected activation 'none', 'silu', 'relu', 'relu6', 'hardswish' or 'gelu', "
                    "found '",
                    name, "'");
  return *found;
}

inline Tensor activate(const Tensor& z, ops::Activation act) {
  switch (act) {
    case ops::Activation::kSilu:
      return at::silu(z);
    case ops::Activation::kRelu:
      return at::relu(z);
    case ops::Activation::kRelu6:
      return at::hardtanh(z, 0, 6);
    case ops::Activation::kHardswish:
      return at::hardswish(z);
    case ops::Activation::kGelu:
      return at::gelu(z);
    default:
      return z;
  }
}

// g * act'(z), of operators that have derivatives themselves.
inline Tensor activation_gradient(const Tensor& z, const Tensor& g, ops::Activation act) {
  switch (act) {
    case ops::Activation::kSilu: {
      const Tensor s = at::sigmoid(z);
      return g * (s * (z * at::rsub(s, 1) + 1));
    }
    case ops::Activation::kRelu:
      return at::where(z <= 0, 0, g);
    case ops::Activation::kRelu6:
      return at::where(z <= 0, 0, at::where(z >= 6, 0, g));
    case ops::Activation::kHardswish:
      return at::where(z <= -3, 0, at::where(z < 3, g * (z * (1.0 / 3) + 0.5), g));
    case ops::Activation::kGelu:
      return g * ((at::erf(z * 0.70710678118654752) + 1) * 0.5 +
                  z * at::exp(z * z * -0.5) * 0.39894228040143268);
    default:
      return g;
  }
}

// All dimensions but the channel's.
inline std::vector<int64_t> reduced_dims(const Tensor& x) {
  std::vector<int64_t> dims;
  for (int64_t dim = 0; dim < x.dim(); ++dim)
    if (dim != 1) dims.push_back(dim);
  return dims;
}

// A vector over dimension `dim` of x, to be broadcast.
inline Tensor along(const Tensor& vector, int64_t dim, const Tensor& x) {
  std::vector<c10::SymInt> shape(x.dim(), 1);
  shape[dim] = vector.sym_size(0);
  return vector.view_symint(shape);
}

inline Tensor raise(const OptionalTensor& t, c10::ScalarType type) {
  return has(t) ? t->to(type) : Tensor();
}
inline const void* pointer(const Tensor& t) { return t.defined() ? t.const_data_ptr() : nullptr; }

inline bool is_vector(const OptionalTensor& t, const Tensor& x, const c10::SymInt& size) {
  return !has(t) || (is_plain(*t) && t->dim() == 1 && t->sym_size(0) == size &&
                     (t->scalar_type() == x.scalar_type() ||
                      t->scalar_type() == compute_type(x.scalar_type())));
}

inline bool batch_norm_eligible(const Tensor& x, const OptionalTensor& weight,
                                const OptionalTensor& bias, const OptionalTensor& mean,
                                const OptionalTensor& var) {
  return is_plain(x) && x.dim() >= 2 && x.dim() <= 5 && x.sym_numel() != 0 &&
         is_vector(weight, x, x.sym_size(1)) && is_vector(bias, x, x.sym_size(1)) &&
         is_vector(mean, x, x.sym_size(1)) && is_vector(var, x, x.sym_size(1)) &&
         (!has(weight) || !has(bias) || weight->scalar_type() == bias->scalar_type());
}

// x as torch's batch_norm lays out its result.
inline Tensor norm_layout(const Tensor& x) { return x.contiguous(x.suggest_memory_format()); }

inline ops::BatchNormShape norm_shape(const Tensor& x) {
  const bool last = x.dim() == 2 || x.suggest_memory_format() != at::MemoryFormat::Contiguous;
  return {dtype_of(x), x.size(0), x.size(1), x.numel() / (x.size(0) * x.size(1)), last};
}

inline Tensor empty_norm(const Tensor& x) {
  return at::empty_symint(x.sym_sizes(), x.options(), x.suggest_memory_format());
}

inline Tensor empty_like_if(bool wanted, const OptionalTensor& t) {
  return wanted && has(t) ? at::empty_symint(t->sym_sizes(), t->options()) : Tensor();
}

// Mean and biased variance of each channel, without a gradient; empty when not `training`.
inline std::tuple<Tensor, Tensor> batch_statistics(const Tensor& x, bool training) {
  const auto type = compute_type(x.scalar_type());
  const auto options = x.options().dtype(type).memory_format(std::nullopt);
  if (!training) return {at::empty({0}, options), at::empty({0}, options)};
  const auto [var, mean] =
      at::var_mean(x.detach().to(type), reduced_dims(x), std::optional<at::Scalar>(0), false);
  return {mean, var};
}

// The norm in ATen operators, so that its gradient has derivatives: in training the statistics are
// functions of x.
struct NormValues {
  c10::ScalarType type;
  std::vector<int64_t> dims;
  Tensor root, slope, normal, z;  // 1 / sqrt(var + eps), weight root, (x - mean) root, the result

  NormValues(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
             const Tensor& given_mean, const Tensor& given_var, double eps, bool training)
      : type(given_mean.scalar_type()), dims(reduced_dims(x)) {
    const Tensor v = x.to(type);
    Tensor mean = given_mean, var = given_var;
    if (training) std::tie(var, mean) = at::var_mean(v, dims, std::optional<at::Scalar>(0), false);
    root = at::rsqrt(var + eps);
    const Tensor w = raise(weight, type), b = raise(bias, type);
    slope = w.defined() ? w * root : root;
    normal = (v - along(mean, 1, x)) * along(root, 1, x);
    z = w.defined() ? normal * along(w, 1, x) : normal;
    if (b.defined()) z = z + along(b, 1, x);
  }

  // Of x, weight and bias, from g, the gradient of z.
  std::tuple<Tensor, Tensor, Tensor> gradients(const Tensor& g, const Tensor& x,
                                               const OptionalTensor& weight,
                                               const OptionalTensor& bias, bool training,
                                               std::array<bool, 3> wanted) const {
    const Tensor sum = at::sum(g, dims), product = at::sum(g * normal, dims);
    Tensor grad_x, grad_weight, grad_bias;
    if (wanted[0]) {
      Tensor inner = g;
      if (training) {
        const c10::SymFloat count = (x.sym_numel() / x.sym_size(1));
        inner = g - (along(sum, 1, x) + normal * along(product, 1, x)) / at::Scalar(count);
      }
      grad_x = (along(slope, 1, x) * inner).to(x.scalar_type());
    }
    if (wanted[1] && has(weight)) grad_weight = product.to(weight->scalar_type());
    if (wanted[2] && has(bias)) grad_bias = sum.to(bias->scalar_type());
    return {grad_x, grad_weight, grad_bias};
  }
};

}  // namespace opfuse::torch_ops
