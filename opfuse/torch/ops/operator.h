#pragma once
// From a description of an operator to its registration with torch's dispatcher. A description is a
// struct with static members:
//
//   schema                       "silu_mul(Tensor gate, Tensor up) -> Tensor"
//   composite(args…)             the meaning, in ATen operators; runs wherever the kernel does not
//   eligible(args…)              may the kernel run? dtypes, devices and shapes only, no strides
//   cpu(args…)                   the kernel, for eligible arguments; same layout as composite's
//   save(context, results, args…), backward(context, grads)
//                                as in torch::autograd::Function
//   Backward                     a description of the backward operator, or void
//   autocast(args…)              optional: arguments cast, to be called again
//   autocast_inside(args…)       optional: true where no cast of arguments gives eager's results;
//                                composite then runs with autocast on
//   differentiable(args…)        optional: false sends gradients through composite
//
// A backward description has schema, composite, eligible, cpu and meta(args…), the results' shapes.
//
// Registered keys, and why each: CPU and Meta (the composite on tensors without data: strides are
// right by construction); Autograd, which takes the composite when the kernel is not eligible, a
// forward-mode tangent is there or torch.func is active; CompositeExplicitAutograd for other
// devices (Implicit would make FakeTensor and Inductor decompose the operator);
// FuncTorchBatchedDecomposition for vmap. The backward operator differentiates through its
// composite.

#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/library.h>

#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "opfuse/torch/ops/runtime.h"

namespace opfuse::torch_ops {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

inline bool functorch_active() {
  return c10::impl::tls_is_dispatch_key_included(
             c10::DispatchKey::FuncTorchDynamicLayerFrontMode) ||
         c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerBackMode);
}

inline bool has_tangent(const Tensor& t) {
  return t.defined() && torch::autograd::isFwGradDefined(t);
}
inline bool has_tangent(const OptionalTensor& t) { return has(t) && has_tangent(*t); }
template <class T>
bool has_tangent(const T&) {
  return false;
}

inline bool needs_grad(const Tensor& t) { return t.defined() && t.requires_grad(); }
inline bool needs_grad(const OptionalTensor& t) { return has(t) && needs_grad(*t); }
template <class T>
bool needs_grad(const T&) {
  return false;
}

// Results of an operator as a list and back.
inline variable_list to_list(const Tensor& t) { return {t}; }
template <class... T>
variable_list to_list(const std::tuple<T...>& results) {
  return std::apply([](const auto&... t) { return variable_list{t...}; }, results);
}
template <class R>
R from_list(const variable_list& list) {
  if constexpr (std::is_same_v<R, Tensor>)
    return list[0];
  else
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return R{list[I]...};
    }(std::make_index_sequence<std::tuple_size_v<R>>{});
}

template <class Op>
const char* operator_name() {
  static const std::string name =
      std::string("opfuse::") +
      std::string(Op::schema).substr(0, std::string(Op::schema).find('('));
  return name.c_str();
}

// The operator through the dispatcher, looked up once.
template <class Op, class R, class... A>
R call_operator(A... args) {
  static const auto handle = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow(operator_name<Op>(), "")
                                 .template typed<R(A...)>();
  return handle.call(args...);
}

template <class Op, class R, class... A>
R call_below_autograd(A... args) {
  at::AutoDispatchBelowADInplaceOrView guard;
  return call_operator<Op, R, A...>(args...);
}

template <class Op, class Signature>
struct Kernels;

template <class Op, class R, class... A>
struct Kernels<Op, R(A...)> {
  struct Function : torch::autograd::Function<Function> {
    static constexpr bool is_traceable = true;
    static variable_list forward(AutogradContext* context, A... args) {
      const R results = call_below_autograd<Op, R, A...>(args...);
      const variable_list list = to_list(results);
      Op::save(context, list, args...);
      return list;
    }
    static variable_list backward(AutogradContext* context, variable_list grads) {
      return Op::backward(context, std::move(grads));
    }
  };

  static R cpu(A... args) {
    return Op::eligible(args...) ? Op::cpu(args...) : Op::composite(args...);
  }

  static R meta(A... args) {
    if constexpr (requires { &Op::meta; }) {
      if (Op::eligible(args...)) return Op::meta(args...);
    }
    return Op::composite(args...);
  }

  static R autograd(A... args) {
    const bool wanted = at::GradMode::is_enabled() && (needs_grad(args) || ...);
    if (!Op::eligible(args...) || (has_tangent(args) || ...) || functorch_active() ||
        (wanted && !differentiable(args...)))
      return Op::composite(args...);
    if (!wanted) return call_below_autograd<Op, R, A...>(args...);
    return from_list<R>(Function::apply(args...));
  }

  static R autocast(A... args) {
    if constexpr (requires { Op::autocast_inside(args...); }) {
      if (Op::autocast_inside(args...)) return Op::composite(args...);
    }
    c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::AutocastCPU);
    return std::apply([](auto... cast) { return call_operator<Op, R, A...>(cast...); },
                      Op::autocast(args...));
  }

 private:
  static bool differentiable(A... args) {
    if constexpr (requires { Op::differentiable(args...); })
      return Op::differentiable(args...);
    else
      return true;
  }
};

template <class Op, class Signature>
struct BackwardKernels;

template <class Op, class R, class... A>
struct BackwardKernels<Op, R(A...)> {
  static R cpu(A... args) {
    return Op::eligible(args...) ? Op::cpu(args...) : Op::composite(args...);
  }
  static R meta(A... args) {
    return Op::eligible(args...) ? Op::meta(args...) : Op::composite(args...);
  }
  static R autograd(A... args) {
    const bool wanted = at::GradMode::is_enabled() && (needs_grad(args) || ...);
    if (wanted || (has_tangent(args) || ...) || functorch_active()) return Op::composite(args...);
    return call_below_autograd<Op, R, A...>(args...);
  }
};

template <class Op, template <class, class> class K>
using KernelsOf = K<Op, std::remove_pointer_t<decltype(&Op::composite)>>;

// Calls the backward operator with whatever keys are active: above autograd when a second
// derivative is recorded, under compiled autograd when that traces.
template <class Op, class... A>
auto call_backward(A&&... args) {
  return []<class R, class... P>(R (*)(P...), auto&&... given) {
    return call_operator<Op, R, P...>(given...);
  }(&Op::composite, std::forward<A>(args)...);
}

template <class Op>
void define(torch::Library& library) {
  library.def(Op::schema, {at::Tag::pt2_compliant_tag});
  if constexpr (!std::is_void_v<typename Op::Backward>)
    library.def(Op::Backward::schema, {at::Tag::pt2_compliant_tag});
}

enum class Key { kCpu, kMeta, kAutograd, kComposite };

template <class Op>
void implement(torch::Library& library, Key key) {
  using Forward = KernelsOf<Op, Kernels>;
  const char* name = operator_name<Op>() + sizeof("opfuse::") - 1;
  if (key == Key::kCpu) library.impl(name, &Forward::cpu);
  if (key == Key::kAutograd) library.impl(name, &Forward::autograd);
  if (key == Key::kMeta) library.impl(name, &Forward::meta);
  if (key == Key::kComposite) library.impl(name, &Op::composite);
  if constexpr (!std::is_void_v<typename Op::Backward>) {
    using Back = typename Op::Backward;
    using Backward = KernelsOf<Back, BackwardKernels>;
    const char* back = operator_name<Back>() + sizeof("opfuse::") - 1;
    if (key == Key::kCpu) library.impl(back, &Backward::cpu);
    if (key == Key::kMeta) library.impl(back, &Backward::meta);
    if (key == Key::kAutograd) library.impl(back, &Backward::autograd);
    if (key == Key::kComposite) library.impl(back, &Back::composite);
  }
}

template <class Op>
void implement_autocast(torch::Library& library) {
  if constexpr (requires { &Op::autocast; })
    library.impl(operator_name<Op>() + sizeof("opfuse::") - 1, &KernelsOf<Op, Kernels>::autocast);
}

}  // namespace opfuse::torch_ops

// Registers one operator; used once per description, outside of any namespace.
#define OPFUSE_OPERATOR(Op)                                                                     \
  TORCH_LIBRARY_FRAGMENT(opfuse, m) { opfuse::torch_ops::define<opfuse::torch_ops::Op>(m); }    \
  TORCH_LIBRARY_IMPL(opfuse, CPU, m) {                                                          \
    opfuse::torch_ops::implement<opfuse::torch_ops::Op>(m, opfuse::torch_ops::Key::kCpu);       \
  }                                                                                             \
  TORCH_LIBRARY_IMPL(opfuse, Meta, m) {                                                         \
    opfuse::torch_ops::implement<opfuse::torch_ops::Op>(m, opfuse::torch_ops::Key::kMeta);      \
  }                                                                                             \
  TORCH_LIBRARY_IMPL(opfuse, Autograd, m) {                                                     \
    opfuse::torch_ops::implement<opfuse::torch_ops::Op>(m, opfuse::torch_ops::Key::kAutograd);  \
  }                                                                                             \
  TORCH_LIBRARY_IMPL(opfuse, CompositeExplicitAutograd, m) {                                    \
    opfuse::torch_ops::implement<opfuse::torch_ops::Op>(m, opfuse::torch_ops::Key::kComposite); \
  }                                                                                             \
  TORCH_LIBRARY_IMPL(opfuse, FuncTorchBatchedDecomposition, m) {                                \
    opfuse::torch_ops::implement<opfuse::torch_ops::Op>(m, opfuse::torch_ops::Key::kComposite); \
  }                                                                                             \
  TORCH_LIBRARY_IMPL(opfuse, AutocastCPU, m) {                                                  \
    opfuse::torch_ops::implement_autocast<opfuse::torch_ops::Op>(m);                            \
  }
