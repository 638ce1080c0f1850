#pragma once
// One row of a layer norm and its gradient, and the sums over rows of the parameters' gradients.
// Kernel text.
//
// r = 1 / sqrt(var + eps), u = (h - mean) r
// y           = u weight + bias
// grad_h      = r (d w - mean(d w) - u mean(d w u)) + the gradient that reaches h beside y
// grad_weight = sum over rows of d u,  grad_bias = sum over rows of d
//
// The variance is taken from h - mean, in a second sweep over a row that lies in cache.

#include "opfuse/ops/parts.h"
#include "opfuse/ops/simd/dispatch.h"
#include "opfuse/ops/simd/parallel.h"
#include "opfuse/ops/simd/reduce.h"

namespace opfuse::ops {
namespace {

template <class T>
struct RowStatistics {
  T mean, root;
};

// Of a row in cache, given its sum.
template <class S>
OPFUSE_INLINE RowStatistics<ScalarOf<S>> statistics_of(const S* h, int64_t n, ScalarOf<S> sum,
                                                       double eps) {
  using V = VectorOf<S>;
  using T = ScalarOf<S>;
  const T mean = sum / static_cast<T>(n);
  Chains<V> squares;
  sweep_row<S>(n, [&](int64_t i, int chain, auto lanes) {
    const V u = only(load(h + i, lanes) - mean, lanes);
    squares.sum[chain] = fma(u, u, squares.sum[chain]);
  });
  const double var = static_cast<double>(squares.total()) / static_cast<double>(n);
  return {mean, static_cast<T>(1 / __builtin_sqrt(var + eps))};
}

template <class S>
OPFUSE_INLINE RowStatistics<ScalarOf<S>> statistics_of(const S* h, int64_t n, double eps) {
  Chains<VectorOf<S>> total;
  sweep_row<S>(n,
               [&](int64_t i, int chain, auto lanes) { total.sum[chain] += load(h + i, lanes); });
  return statistics_of(h, n, total.total(), eps);
}

// y, of a row with these statistics; weight and bias may be null.
template <class S>
OPFUSE_INLINE void normalize_row(const S* h, RowStatistics<ScalarOf<S>> row,
                                 const ScalarOf<S>* weight, const ScalarOf<S>* bias, int64_t n,
                                 S* y) {
  sweep_lanes<S>(n, [&](int64_t i, auto lanes) {
    VectorOf<S> v = (load(h + i, lanes) - row.mean) * row.root;
    if (weight) v *= load(weight + i, lanes);
    if (bias) v += load(bias + i, lanes);
    store(y + i, v, lanes);
  });
}

// Gradients of one row: put(i, gradient of h, lanes). `shares`: n sums of grad_weight and n of
// grad_bias that the row is added to, or null.
template <class S, class Put>
OPFUSE_INLINE void layer_norm_gradient(const S* h, const S* grad, const ScalarOf<S>* weight,
                                       double eps, int64_t n, ScalarOf<S>* shares, const Put& put) {
  using V = VectorOf<S>;
  using T = ScalarOf<S>;
  const auto row = statistics_of(h, n, eps);
  Chains<V> sums, products;
  sweep_row<S>(n, [&](int64_t i, int chain, auto lanes) {
    const V u = (load(h + i, lanes) - row.mean) * row.root;
    V d = load(grad + i, lanes);
    if (weight) d *= load(weight + i, lanes);
    sums.sum[chain] += d;
    products.sum[chain] = fma(d, only(u, lanes), products.sum[chain]);
  });
  const T mean = sums.total() / static_cast<T>(n), slope = products.total() / static_cast<T>(n);
  sweep_lanes<S>(n, [&](int64_t i, auto lanes) {
    const V u = (load(h + i, lanes) - row.mean) * row.root, d = load(grad + i, lanes);
    if (shares) {
      store(shares + i, fma(d, u, load(shares + i, lanes)), lanes);
      store(shares + n + i, load(shares + n + i, lanes) + d, lanes);
    }
    put(i, ((weight ? d * load(weight + i, lanes) : d) - mean - u * slope) * row.root, lanes);
  });
}

// body(item, shares) for all items, in parts of about `item_bytes` each; then the parts' sums are
// added up. `workspace` holds 2 n numbers a part; without a gradient to fill in it is not used.
template <class T, class Body>
OPFUSE_INLINE void for_shared_parts(const Exec& exec, int64_t items, int64_t item_bytes, int64_t n,
                                    T* grad_weight, T* grad_bias, T* workspace, const Body& body) {
  const int64_t parts = part_count(items, item_bytes);
  const bool shared = grad_weight || grad_bias;
  parallel(exec, parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      T* share = shared ? workspace + part * 2 * n : nullptr;
      if (share) std::memset(share, 0, static_cast<size_t>(2 * n) * sizeof(T));
      const int64_t end = part_begin(items, parts, part + 1);
      for (int64_t item = part_begin(items, parts, part); item < end; ++item) body(item, share);
    }
  });
  for (int64_t i = 0; shared && i < n; ++i) {
    double weight = 0, bias = 0;
    for (int64_t part = 0; part < parts; ++part) {
      weight += workspace[part * 2 * n + i];
      bias += workspace[(part * 2 + 1) * n + i];
    }
    if (grad_weight) grad_weight[i] = static_cast<T>(weight);
    if (grad_bias) grad_bias[i] = static_cast<T>(bias);
  }
}

}  // namespace
}  // namespace opfuse::ops
