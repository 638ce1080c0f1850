// h = x noise + residual, rounded to the dtype; y is its layer norm (simd/layer_norm.h)
// grad_residual = grad_h,  grad_x = grad_h noise

#include "opfuse/ops/dropout_add_layer_norm/dropout_add_layer_norm.h"

#include "opfuse/ops/simd/layer_norm.h"

namespace opfuse::ops {
namespace {

int64_t row_grain(int64_t cols) { return max_of(1, 16384 / max_of(1, cols)); }

template <class S>
void forward_row(const DropoutAddLayerNormArgs& a, int64_t at) {
  using V = VectorOf<S>;
  using T = ScalarOf<S>;
  const S *x = in<S>(a.x) + at, *residual = in<S>(a.residual) + at;
  const S* noise = a.noise ? in<S>(a.noise) + at : nullptr;
  S* sum = out<S>(a.sum) + at;
  Chains<V> total;
  sweep_row<S>(a.cols, [&](int64_t i, int chain, auto lanes) {
    V h = load(x + i, lanes);
    if (noise) h *= load(noise + i, lanes);
    h += load(residual + i, lanes);
    store(sum + i, h, lanes);
    total.sum[chain] += sizeof(S) == 2 ? load(sum + i, lanes) : h;
  });
  normalize_row(sum, statistics_of(sum, a.cols, total.total(), a.eps), in<T>(a.weight),
                in<T>(a.bias), a.cols, out<S>(a.y) + at);
}

// `shares`: this part's sums of grad_weight and grad_bias, or null.
template <class S>
void backward_row(const DropoutAddLayerNormBackwardArgs& a, int64_t at, ScalarOf<S>* shares) {
  const S* noise = a.noise ? in<S>(a.noise) + at : nullptr;
  const S* added = a.grad_sum ? in<S>(a.grad_sum) + at : nullptr;
  S* grad_x = a.grad_x ? out<S>(a.grad_x) + at : nullptr;
  S* grad_residual = a.grad_residual ? out<S>(a.grad_residual) + at : nullptr;
  layer_norm_gradient(in<S>(a.sum) + at, in<S>(a.grad_y) + at, in<ScalarOf<S>>(a.weight), a.eps,
                      a.cols, shares, [&](int64_t i, VectorOf<S> g, auto lanes) {
                        if (added) g += load(added + i, lanes);
                        if (grad_residual) store(grad_residual + i, g, lanes);
                        if (grad_x)
                          store(grad_x + i, noise ? g * load(noise + i, lanes) : g, lanes);
                      });
}

template <class S>
void backward_typed(const Exec& exec, const DropoutAddLayerNormBackwardArgs& a) {
  using T = ScalarOf<S>;
  for_shared_parts(exec, a.rows, a.cols * 8, a.cols, out<T>(a.grad_weight), out<T>(a.grad_bias),
                   out<T>(a.workspace),
                   [&](int64_t row, T* share) { backward_row<S>(a, row * a.cols, share); });
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
