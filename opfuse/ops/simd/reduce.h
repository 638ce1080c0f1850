#pragma once
// Sums along a row.

#include "opfuse/ops/simd/memory.h"

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

// sum over i of a[i] b[i].
template <class S>
OPFUSE_INLINE auto dot(const S* a, const S* b, int64_t n) {
  Chains<VectorOf<S>> sums;
  sweep_chains<kLanes<S>>(
      n,
      [&](int64_t i, int chain) {
        sums.sum[chain] = fma(load(a + i), load(b + i), sums.sum[chain]);
      },
      [&](int64_t i, int64_t left) {
        sums.sum[0] = fma(load_n(a + i, left), load_n(b + i, left), sums.sum[0]);
      });
  return sums.total();
}

}  // namespace
}  // namespace opfuse::ops
