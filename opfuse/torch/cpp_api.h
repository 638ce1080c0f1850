#pragma once
// Installed as opfuse/torch.h.
//
// The fused operators for C++ programs that use libtorch: the same ones as opfuse.functional, with
// gradients, through torch's dispatcher. What each computes stands in python/opfuse/functional.py.
//
//   find_package(Torch REQUIRED)
//   find_package(opfuse REQUIRED)
//   target_link_libraries(app PRIVATE opfuse::ops)
//
// They throw c10::Error where the same small operators would.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string_view>
#include <tuple>

// Of libopfuse_ops.so: the instruction set level in use, or why there is none.
extern "C" const char* opfuse_ops_isa();

namespace opfuse {

// Makes the program need libopfuse_ops.so, whose loading registers the operators; a linker drops a
// library of which nothing is used. Every function below calls it.
inline void register_ops() {
  static const char* const level = opfuse_ops_isa();
  (void)level;
}

namespace detail {

// The operator opfuse::name, found once for each call site that has a static of this.
template <class Signature>
auto operator_named(const char* name) {
  register_ops();
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace detail

using OptionalTensor = std::optional<at::Tensor>;

inline at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up) {
  static const auto op =
      detail::operator_named<at::Tensor(const at::Tensor&, const at::Tensor&)>("opfuse::silu_mul");
  return op.call(gate, up);
}

inline at::Tensor gelu_mul(const at::Tensor& gate, const at::Tensor& up) {
  static const auto op =
      detail::operator_named<at::Tensor(const at::Tensor&, const at::Tensor&)>("opfuse::gelu_mul");
  return op.call(gate, up);
}

inline at::Tensor gelu_tanh_mul(const at::Tensor& gate, const at::Tensor& up) {
  static const auto op = detail::operator_named<at::Tensor(const at::Tensor&, const at::Tensor&)>(
      "opfuse::gelu_tanh_mul");
  return op.call(gate, up);
}

inline at::Tensor quick_gelu(const at::Tensor& x, double beta = 1.702) {
  static const auto op =
      detail::operator_named<at::Tensor(const at::Tensor&, double)>("opfuse::quick_gelu");
  return op.call(x, beta);
}

inline at::Tensor rms_norm(const at::Tensor& x, const OptionalTensor& weight = std::nullopt,
                           double eps = 1e-6, double offset = 0, std::string_view cast = "output") {
  static const auto op =
      detail::operator_named<at::Tensor(const at::Tensor&, const OptionalTensor&, double, double,
                                        std::string_view)>("opfuse::rms_norm");
  return op.call(x, weight, eps, offset, cast);
}

// The norm of x + residual, and the sum.
inline std::tuple<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x,
                                                       const at::Tensor& residual,
                                                       const OptionalTensor& weight = std::nullopt,
                                                       double eps = 1e-6, double offset = 0,
                                                       std::string_view cast = "output") {
  static const auto op = detail::operator_named<std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const OptionalTensor&, double, double,
      std::string_view)>("opfuse::add_rms_norm");
  return op.call(x, residual, weight, eps, offset, cast);
}

inline at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                       bool interleaved = false) {
  static const auto op = detail::operator_named<at::Tensor(
      const at::Tensor&, const at::Tensor&, const at::Tensor&, bool)>("opfuse::rope");
  return op.call(x, cos, sin, interleaved);
}

inline at::Tensor sigmoid_gate(const at::Tensor& x, const at::Tensor& gate, bool hard = false) {
  static const auto op =
      detail::operator_named<at::Tensor(const at::Tensor&, const at::Tensor&, bool)>(
          "opfuse::sigmoid_gate");
  return op.call(x, gate, hard);
}

// y, mean and biased variance of the batch; the last two are empty when mean and var are given
// (evaluation). Running statistics are the caller's.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm_act(
    const at::Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
    const OptionalTensor& mean, const OptionalTensor& var, double eps,
    std::string_view activation = "none", const OptionalTensor& scale = std::nullopt,
    const OptionalTensor& residual = std::nullopt) {
  static const auto op = detail::operator_named<std::tuple<at::Tensor, at::Tensor, at::Tensor>(
      const at::Tensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
      const OptionalTensor&, double, std::string_view, const OptionalTensor&,
      const OptionalTensor&)>("opfuse::batch_norm_act");
  return op.call(x, weight, bias, mean, var, eps, activation, scale, residual);
}

// `padding` is (left, right, top, bottom).
inline at::Tensor depthwise_conv2d(const at::Tensor& x, const at::Tensor& weight,
                                   const OptionalTensor& bias, at::IntArrayRef stride,
                                   at::IntArrayRef padding) {
  static const auto op =
      detail::operator_named<at::Tensor(const at::Tensor&, const at::Tensor&, const OptionalTensor&,
                                        at::IntArrayRef, at::IntArrayRef)>(
          "opfuse::depthwise_conv2d");
  return op.call(x, weight, bias, stride, padding);
}

}  // namespace opfuse
