#pragma once
// Values and gradients of the activations on vectors. Loops are compiled for the cheap kinds; the
// others share one loop that branches on every vector, which is little beside what they cost.

#include "opfuse/ops/activation.h"
#include "opfuse/ops/simd/math.h"

namespace opfuse::ops {
namespace {

enum class Kind { kNone, kSilu, kClamp, kAny };

template <class V>
OPFUSE_INLINE V gelu(V z) {
  return z * normal_cdf(z);
}
template <class V>
OPFUSE_INLINE V gelu_slope(V z) {
  return fma(z, normal_pdf(z), normal_cdf(z));
}
template <class V>
OPFUSE_INLINE V hardswish(V z) {
  return z * at_most(splat<V>(6), at_least(V{}, z + splat<V>(3))) * splat<V>(1.0 / 6);
}

template <class V>
struct Activate {
  Activation act;
  V top;  // of relu and relu6

  explicit Activate(Activation a)
      : act(a), top(splat<V>(a == Activation::kRelu6 ? 6.0 : __builtin_inf())) {}

  template <Kind kKind>
  OPFUSE_INLINE V value(V z) const {
    if constexpr (kKind == Kind::kNone) return z;
    if constexpr (kKind == Kind::kSilu) return silu(z);
    if constexpr (kKind == Kind::kClamp) return at_most(top, at_least(V{}, z));
    if (act == Activation::kHardswish) return hardswish(z);
    if (act == Activation::kGelu) return gelu(z);
    if (act == Activation::kSilu) return silu(z);
    return act == Activation::kNone ? z : at_most(top, at_least(V{}, z));
  }

  // g * act'(z); 0 on the flat parts whatever g is, as in torch.
  template <Kind kKind>
  OPFUSE_INLINE V gradient(V z, V g) const {
    if constexpr (kKind == Kind::kNone) return g;
    if constexpr (kKind == Kind::kSilu) return silu_gradient(z, g);
    if constexpr (kKind == Kind::kClamp) return clamp_gradient(z, g);
    if (act == Activation::kHardswish) {
      const V inner = z < splat<V>(3) ? g * fma(z, splat<V>(1.0 / 3), splat<V>(0.5)) : g;
      return z <= splat<V>(-3) ? V{} : inner;
    }
    if (act == Activation::kGelu) return g * gelu_slope(z);
    if (act == Activation::kSilu) return silu_gradient(z, g);
    return act == Activation::kNone ? g : clamp_gradient(z, g);
  }

  // act(z) and act'(z) at once: they share the exponential.
  template <Kind kKind>
  OPFUSE_INLINE V value_and_slope(V z, V* slope) const {
    if constexpr (kKind == Kind::kSilu) {
      V s;
      *slope = silu_slope(z, &s);
      return z * s;
    }
    *slope = gradient<kKind>(z, splat<V>(1));
    return value<kKind>(z);
  }
  // gradient(z, g), given act'(z).
  template <Kind kKind>
  OPFUSE_INLINE V gradient_by_slope(V z, V g, V slope) const {
    if constexpr (kKind == Kind::kNone) return g;
    if constexpr (kKind == Kind::kSilu) return g * slope;
    return gradient<kKind>(z, g);
  }

 private:
  OPFUSE_INLINE V silu_gradient(V z, V g) const {
    V s;
    return g * silu_slope(z, &s);
  }
  OPFUSE_INLINE V clamp_gradient(V z, V g) const {
    const V below = z >= top ? V{} : g;
    return z <= V{} ? V{} : below;
  }
};

// f(KindConstant) for an activation. f64, which exists for checks, and f16, in which nobody trains
// on a CPU, take the shared loop: each loop costs time to compile on every level.
template <Kind kKind>
struct KindConstant {
  static constexpr Kind value = kKind;
};
template <class S>
constexpr bool kHasOwnLoops = false;
template <>
constexpr bool kHasOwnLoops<float> = true;
template <>
constexpr bool kHasOwnLoops<Bf16> = true;
template <class S, class F>
OPFUSE_INLINE void with_kind(Activation act, F&& f) {
  if constexpr (kHasOwnLoops<S>) {
    if (act == Activation::kNone) return f(KindConstant<Kind::kNone>{});
    if (act == Activation::kSilu) return f(KindConstant<Kind::kSilu>{});
    if (act == Activation::kRelu || act == Activation::kRelu6)
      return f(KindConstant<Kind::kClamp>{});
  }
  f(KindConstant<Kind::kAny>{});
}

}  // namespace
}  // namespace opfuse::ops
