#pragma once
// Gates: sigmoid(g), or hardsigmoid: clamp(g / 6 + 1/2, 0, 1).

#include "opfuse/ops/simd/math.h"

namespace opfuse::ops {
namespace {

template <class V>
OPFUSE_INLINE V gate_value(V gate, bool hard) {
  if (!hard) return sigmoid(gate);
  return at_most(splat<V>(1), at_least(V{}, fma(gate, splat<V>(1.0 / 6), splat<V>(0.5))));
}

// The gradient of the gate, given that of its sigmoid. Outside of the slope of hardsigmoid it is 0,
// whatever comes in, as in torch.
template <class V>
OPFUSE_INLINE V gate_gradient(V grad, V gate, bool hard) {
  if (hard) {
    const V inside = grad * splat<V>(1.0 / 6);
    return gate > splat<V>(-3) ? (gate < splat<V>(3) ? inside : V{}) : V{};
  }
  V complement;
  const V s = sigmoid_pair(gate, &complement);
  return grad * (s * complement);
}

}  // namespace
}  // namespace opfuse::ops
