#pragma once
// Sums and maxima along a row.

#include "opfuse/ops/simd/lanes.h"

namespace opfuse::ops {
namespace {

// Sums of a row in 4 chains: one addition a cycle would wait for the one before it.
template <class V>
struct Chains {
  V sum[4] = {};
  OPFUSE_INLINE auto total() const { return lane_sum((sum[0] + sum[1]) + (sum[2] + sum[3])); }
};

// f(i, chain) for whole vectors, g(i, left) for the rest.
template <int kStep, class F, class G>
OPFUSE_INLINE void sweep_chains(int64_t n, const F& f, const G& g) {
  int64_t i = 0;
  for (; i + 4 * kStep <= n; i += 4 * kStep) {
    f(i, 0);
    f(i + kStep, 1);
    f(i + 2 * kStep, 2);
    f(i + 3 * kStep, 3);
  }
  for (; i + kStep <= n; i += kStep) f(i, 0);
  if (i < n) g(i, n - i);
}

// body(i, chain, Full or Part) over a row.
template <class S, class Body>
OPFUSE_INLINE void sweep_row(int64_t n, const Body& body) {
  sweep_chains<kLanes<S>>(
      n, [&](int64_t i, int chain) { body(i, chain, Full{}); },
      [&](int64_t i, int64_t left) { body(i, 0, Part{left}); });
}

// v in the lanes in use, `other` in the rest.
template <class V>
OPFUSE_INLINE V only(V v, Full, double = 0) {
  return v;
}
template <class V>
OPFUSE_INLINE V only(V v, Part lanes, double other = 0) {
  for (int64_t i = lanes.n; i < kLanesOf<V>; ++i) v[i] = static_cast<decltype(v[0] + 0)>(other);
  return v;
}

// The largest value of a row, in 4 chains. NaN is left out: whoever takes differences to the
// maximum finds it again.
template <class V>
struct Maxima {
  V top[4];

  OPFUSE_INLINE Maxima() {
    for (V& v : top) v = splat<V>(-__builtin_inf());
  }
  OPFUSE_INLINE void include(int chain, V v) { top[chain] = v > top[chain] ? v : top[chain]; }
  OPFUSE_INLINE auto total() const {
    auto largest = top[0][0];
    for (const V& v : top)
      for (int i = 0; i < kLanesOf<V>; ++i) largest = v[i] > largest ? v[i] : largest;
    return largest;
  }
};

// sum over i of a[i] b[i].
template <class S>
OPFUSE_INLINE auto dot(const S* a, const S* b, int64_t n) {
  Chains<VectorOf<S>> sums;
  sweep_row<S>(n, [&](int64_t i, int chain, auto lanes) {
    sums.sum[chain] = fma(load(a + i, lanes), load(b + i, lanes), sums.sum[chain]);
  });
  return sums.total();
}

}  // namespace
}  // namespace opfuse::ops
