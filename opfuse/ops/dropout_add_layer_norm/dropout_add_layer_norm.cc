// h = x noise + residual, rounded to the dtype; r = 1 / sqrt(var + eps); u = (h - mean) r
// y             = u weight + bias
// grad_h        = r (d w - mean(d w) - u mean(d w u)) + the gradient of the sum
// grad_residual = grad_h,  grad_x = grad_h noise
// grad_weight   = sum over rows of d u,  grad_bias = sum over rows of d
//
// The variance is taken from h - mean, in a second sweep over a row that lies in cache.

#include "opfuse/ops/dropout_add_layer_norm/dropout_add_layer_norm.h"

#include "opfuse/ops/simd/dispatch.h"
#include "opfuse/ops/simd/lanes.h"
#include "opfuse/ops/simd/math.h"
#include "opfuse/ops/simd/parallel.h"
#include "opfuse/ops/simd/reduce.h"

namespace opfuse::ops {
namespace {

int64_t row_grain(int64_t cols) { return max_of(1, 16384 / max_of(1, cols)); }

// body(i, chain, lanes) over a row.
template <class S, class Body>
OPFUSE_INLINE void sweep_row(int64_t n, const Body& body) {
  sweep_chains<kLanes<S>>(
      n, [&](int64_t i, int chain) { body(i, chain, Full{}); },
      [&](int64_t i, int64_t left) { body(i, 0, Part{left}); });
}

template <class V>
OPFUSE_INLINE V only(V v, Full) {
  return v;
}
// v in the lanes in use, 0 in the others.
template <class V>
OPFUSE_INLINE V only(V v, Part lanes) {
  for (int64_t i = lanes.n; i < kLanesOf<V>; ++i) v[i] = 0;
  return v;
}

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
void forward_row(const DropoutAddLayerNormArgs& a, int64_t at) {
  using V = VectorOf<S>;
  using T = ScalarOf<S>;
  const S *x = in<S>(a.x) + at, *residual = in<S>(a.residual) + at;
  const S* noise = a.noise ? in<S>(a.noise) + at : nullptr;
  const T *weight = in<T>(a.weight), *bias = in<T>(a.bias);
  S *sum = out<S>(a.sum) + at, *y = out<S>(a.y) + at;
  Chains<V> total;
  sweep_row<S>(a.cols, [&](int64_t i, int chain, auto lanes) {
    V h = load(x + i, lanes);
    if (noise) h *= load(noise + i, lanes);
    h += load(residual + i, lanes);
    store(sum + i, h, lanes);
    total.sum[chain] += sizeof(S) == 2 ? load(sum + i, lanes) : h;
  });
  const auto row = statistics_of(sum, a.cols, total.total(), a.eps);
  sweep_lanes<S>(a.cols, [&](int64_t i, auto lanes) {
    V v = (load(sum + i, lanes) - row.mean) * row.root;
    if (weight) v *= load(weight + i, lanes);
    if (bias) v += load(bias + i, lanes);
    store(y + i, v, lanes);
  });
}

// `shares`: this part's sums of grad_weight and grad_bias, or null.
template <class S>
void backward_row(const DropoutAddLayerNormBackwardArgs& a, int64_t at, ScalarOf<S>* shares) {
  using V = VectorOf<S>;
  using T = ScalarOf<S>;
  const int64_t n = a.cols;
  const S *h = in<S>(a.sum) + at, *grad = in<S>(a.grad_y) + at;
  const S* noise = a.noise ? in<S>(a.noise) + at : nullptr;
  const S* added = a.grad_sum ? in<S>(a.grad_sum) + at : nullptr;
  S* grad_x = a.grad_x ? out<S>(a.grad_x) + at : nullptr;
  S* grad_residual = a.grad_residual ? out<S>(a.grad_residual) + at : nullptr;
  const T* weight = in<T>(a.weight);
  Chains<V> total;
  sweep_row<S>(n,
               [&](int64_t i, int chain, auto lanes) { total.sum[chain] += load(h + i, lanes); });
  const auto row = statistics_of(h, n, total.total(), a.eps);
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
    V g = ((weight ? d * load(weight + i, lanes) : d) - mean - u * slope) * row.root;
    if (added) g += load(added + i, lanes);
    if (grad_residual) store(grad_residual + i, g, lanes);
    if (grad_x) store(grad_x + i, noise ? g * load(noise + i, lanes) : g, lanes);
  });
}

template <class S>
void backward_typed(const Exec& exec, const DropoutAddLayerNormBackwardArgs& a) {
  using T = ScalarOf<S>;
  const int64_t parts = part_count(a.rows, a.cols * 8), n = a.cols;
  const bool shared = a.grad_weight || a.grad_bias;
  T* shares = out<T>(a.workspace);
  parallel(exec, parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      T* share = shared ? shares + part * 2 * n : nullptr;
      if (share) std::memset(share, 0, static_cast<size_t>(2 * n) * sizeof(T));
      for (int64_t row = part_begin(a.rows, parts, part); row < part_begin(a.rows, parts, part + 1);
           ++row)
        backward_row<S>(a, row * n, share);
    }
  });
  for (int64_t i = 0; shared && i < n; ++i) {
    double weight = 0, bias = 0;
    for (int64_t part = 0; part < parts; ++part) {
      weight += shares[part * 2 * n + i];
      bias += shares[(part * 2 + 1) * n + i];
    }
    if (a.grad_weight) out<T>(a.grad_weight)[i] = static_cast<T>(weight);
    if (a.grad_bias) out<T>(a.grad_bias)[i] = static_cast<T>(bias);
  }
}

void forward(const Exec& exec, const DropoutAddLayerNormArgs& a) {
  with_storage(a.dtype, [&](auto s) {
    parallel(exec, a.rows, row_grain(a.cols), [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) forward_row<decltype(s)>(a, row * a.cols);
    });
  });
}

void backward(const Exec& exec, const DropoutAddLayerNormBackwardArgs& a) {
  with_storage(a.dtype, [&](auto s) { backward_typed<decltype(s)>(exec, a); });
}

}  // namespace

const DropoutAddLayerNormKernels OPFUSE_LEVEL::dropout_add_layer_norm = {forward, backward};

}  // namespace opfuse::ops
