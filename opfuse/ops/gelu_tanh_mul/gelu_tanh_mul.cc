// act(g) = g (1 + t) / 2,  t = tanh(k (g + 0.044715 g^3)),  k = sqrt(2 / pi)
// act'(g) = (1 + t) / 2 + g (1 - t^2) k (1 + 3 0.044715 g^2) / 2

#include "opfuse/ops/gelu_tanh_mul/gelu_tanh_mul.h"

#include "opfuse/ops/simd/gated.h"

namespace opfuse::ops {
namespace {

struct GeluTanh {
  static constexpr double kRoot = 0.79788456080286536, kCube = 0.044715;

  template <class V>
  static OPFUSE_INLINE V inner(V g) {
    return tanh(splat<V>(kRoot) * fma(g * splat<V>(kCube), g * g, g));
  }
  template <class V>
  static OPFUSE_INLINE V value(V g) {
    return splat<V>(0.5) * g * (inner(g) + splat<V>(1));
  }
  template <class V>
  static OPFUSE_INLINE V slope(V g, V* value) {
    const V t = inner(g), half = splat<V>(0.5) * (t + splat<V>(1));
    *value = g * half;
    const V steep = fma(g * splat<V>(3 * kCube * kRoot), g, splat<V>(kRoot));
    return fma(splat<V>(0.5) * g * fma(-t, t, splat<V>(1)), steep, half);
  }
};

}  // namespace

const GatedKernels OPFUSE_LEVEL::gelu_tanh_mul = {forward<GeluTanh>, backward<GeluTanh>};

}  // namespace opfuse::ops
