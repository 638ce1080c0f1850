#pragma once
// One row of an RMS norm, shared by rms_norm and add_rms_norm. Kernel text.
//
// r = 1 / sqrt(mean(x^2) + eps),  w' = offset + weight
// y      = x r w'
// grad_x = r (d w') - x (r^3 / n) sum(d w' x)
// grad_w = sum over rows of d x r

#include "opfuse/ops/simd/dispatch.h"
#include "opfuse/ops/simd/math.h"
#include "opfuse/ops/simd/parallel.h"
#include "opfuse/ops/simd/reduce.h"

namespace opfuse::ops {
namespace {

template <class T>
OPFUSE_INLINE T reciprocal_root(T sum_of_squares, int64_t n, double eps) {
  const T mean = sum_of_squares / static_cast<T>(n) + static_cast<T>(eps);
  return sizeof(T) == 4 ? T(1) / static_cast<T>(__builtin_sqrtf(static_cast<float>(mean)))
                        : T(1) / static_cast<T>(__builtin_sqrt(mean));
}

template <class S>
OPFUSE_INLINE ScalarOf<S> row_root(const S* x, int64_t n, double eps) {
  Chains<VectorOf<S>> squares;
  sweep_chains<kLanes<S>>(
      n,
      [&](int64_t i, int chain) {
        const auto v = load(x + i);
        squares.sum[chain] = fma(v, v, squares.sum[chain]);
      },
      [&](int64_t i, int64_t left) {
        const auto v = load_n(x + i, left);
        squares.sum[0] = fma(v, v, squares.sum[0]);
      });
  return reciprocal_root<ScalarOf<S>>(squares.total(), n, eps);
}

// v as it comes back from storage type S.
template <class S>
OPFUSE_INLINE VectorOf<S> rounded(VectorOf<S> v) {
  if constexpr (sizeof(S) == 2) {
    S lanes[kLanes<S>];
    store(lanes, v);
    return load(lanes);
  } else {
    return v;
  }
}

template <class S, bool kWeight, bool kRound>
OPFUSE_INLINE void scale_row(const S* x, const ScalarOf<S>* weight, ScalarOf<S> offset,
                             ScalarOf<S> root, S* y, int64_t n) {
  using V = VectorOf<S>;
  auto value = [&](V v, V w) {
    V h = v * root;
    if constexpr (kRound) h = rounded<S>(h);
    return kWeight ? h * (w + offset) : h;
  };
  sweep<kLanes<S>>(
      n, [&](int64_t i) { store(y + i, value(load(x + i), kWeight ? load(weight + i) : V{})); },
      [&](int64_t i, int64_t left) {
        const V w = kWeight ? load_n(weight + i, left) : V{};
        store_n(y + i, value(load_n(x + i, left), w), left);
      });
}

// grad_x (+= added where given) and the row's share of grad_weight; both may be null.
template <class S, bool kWeight>
OPFUSE_INLINE void backward_row(const S* grad, const S* x, const ScalarOf<S>* weight,
                                ScalarOf<S> offset, double eps, const S* added, S* grad_x,
                                ScalarOf<S>* grad_weight, int64_t n) {
  using V = VectorOf<S>;
  using T = ScalarOf<S>;
  Chains<V> squares, products;
  auto weighted = [&](V d, V w) { return kWeight ? d * (w + offset) : d; };
  sweep_chains<kLanes<S>>(
      n,
      [&](int64_t i, int chain) {
        const V v = load(x + i), w = kWeight ? load(weight + i) : V{};
        squares.sum[chain] = fma(v, v, squares.sum[chain]);
        products.sum[chain] = fma(weighted(load(grad + i), w), v, products.sum[chain]);
      },
      [&](int64_t i, int64_t left) {
        const V v = load_n(x + i, left), w = kWeight ? load_n(weight + i, left) : V{};
        squares.sum[0] = fma(v, v, squares.sum[0]);
        products.sum[0] = fma(weighted(load_n(grad + i, left), w), v, products.sum[0]);
      });
  const T root = reciprocal_root<T>(squares.total(), n, eps);
  const T slope = -(root * root * root) * (products.total() / static_cast<T>(n));
  auto value = [&](V d, V v, V w) { return fma(weighted(d, w), V{} + root, v * slope); };
  sweep<kLanes<S>>(
      n,
      [&](int64_t i) {
        const V d = load(grad + i), v = load(x + i), w = kWeight ? load(weight + i) : V{};
        if (grad_x) store(grad_x + i, added ? value(d, v, w) + load(added + i) : value(d, v, w));
        if (grad_weight) store(grad_weight + i, fma(d, v * root, load(grad_weight + i)));
      },
      [&](int64_t i, int64_t left) {
        const V d = load_n(grad + i, left), v = load_n(x + i, left);
        const V w = kWeight ? load_n(weight + i, left) : V{};
        const V a = added ? load_n(added + i, left) : V{};
        if (grad_x) store_n(grad_x + i, value(d, v, w) + a, left);
        if (grad_weight)
          store_n(grad_weight + i, fma(d, v * root, load_n(grad_weight + i, left)), left);
      });
}

// All rows. `added` (may be null) is the gradient that reaches x directly.
template <class S, bool kWeight>
void backward_rows(const Exec& exec, int64_t rows, int64_t cols, const S* grad, const S* x,
                   const ScalarOf<S>* weight, double offset, double eps, const S* added, S* grad_x,
                   ScalarOf<S>* grad_weight, ScalarOf<S>* workspace) {
  using T = ScalarOf<S>;
  const int64_t parts = part_count(rows, cols * static_cast<int64_t>(sizeof(T)));
  parallel(exec, parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      T* share = grad_weight ? workspace + part * cols : nullptr;
      if (share) std::memset(share, 0, static_cast<size_t>(cols) * sizeof(T));
      const int64_t end = part_begin(rows, parts, part + 1);
      for (int64_t row = part_begin(rows, parts, part); row < end; ++row) {
        const int64_t at = row * cols;
        backward_row<S, kWeight>(grad + at, x + at, weight, static_cast<T>(offset), eps,
                                 added ? added + at : nullptr, grad_x ? grad_x + at : nullptr,
                                 share, cols);
      }
    }
  });
  if (!grad_weight) return;
  parallel(exec, cols, 4096, [&](int64_t first, int64_t last) {
    for (int64_t col = first; col < last; ++col) {
      double sum = 0;
      for (int64_t part = 0; part < (rows > 0 ? parts : 0); ++part)
        sum += workspace[part * cols + col];
      grad_weight[col] = static_cast<T>(sum);
    }
  });
}

// Rows that make a piece of work worth another thread.
OPFUSE_INLINE int64_t row_grain(int64_t cols) { return max_of(1, 16384 / max_of(1, cols)); }

}  // namespace
}  // namespace opfuse::ops
