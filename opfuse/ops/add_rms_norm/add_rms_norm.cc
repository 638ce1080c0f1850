// The sum is rounded to the dtype before it is squared, as the small operators do; the row is read
// again from cache. Formulas are in rms_norm/rows.h.

#include "opfuse/ops/add_rms_norm/add_rms_norm.h"

#include "opfuse/ops/rms_norm/rows.h"

namespace opfuse::ops {
namespace {

// sum = x + residual; returns 1 / sqrt(mean(sum^2) + eps).
template <class S>
OPFUSE_INLINE ScalarOf<S> add_row(const S* x, const S* residual, S* sum, int64_t n, double eps) {
  using V = VectorOf<S>;
  Chains<V> squares;
  sweep_chains<kLanes<S>>(
      n,
      [&](int64_t i, int chain) {
        const V v = load(x + i) + load(residual + i);
        store(sum + i, v);
        const V h = sizeof(S) == 2 ? load(sum + i) : v;
        squares.sum[chain] = fma(h, h, squares.sum[chain]);
      },
      [&](int64_t i, int64_t left) {
        store_n(sum + i, load_n(x + i, left) + load_n(residual + i, left), left);
        const V h = load_n(sum + i, left);
        squares.sum[0] = fma(h, h, squares.sum[0]);
      });
  return reciprocal_root<ScalarOf<S>>(squares.total(), n, eps);
}

template <class S, bool kWeight, bool kRound>
void forward_typed(const Exec& exec, const AddRmsNormArgs& a) {
  using T = ScalarOf<S>;
  parallel(exec, a.rows, row_grain(a.cols), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const int64_t at = row * a.cols;
      S* sum = out<S>(a.sum) + at;
      const T root = add_row(in<S>(a.x) + at, in<S>(a.residual) + at, sum, a.cols, a.eps);
      scale_row<S, kWeight, kRound>(sum, in<T>(a.weight), static_cast<T>(a.offset), root,
                                    out<S>(a.y) + at, a.cols);
    }
  });
}

void forward(const Exec& exec, const AddRmsNormArgs& a) {
  with_storage(a.dtype, [&](auto s) {
    using S = decltype(s);
    if (!a.weight)
      forward_typed<S, false, false>(exec, a);
    else if (a.round_before_weight && sizeof(S) == 2)
      forward_typed<S, true, sizeof(S) == 2>(exec, a);
    else
      forward_typed<S, true, false>(exec, a);
  });
}

void backward(const Exec& exec, const AddRmsNormBackwardArgs& a) {
  with_storage(a.dtype, [&](auto s) {
    using S = decltype(s);
    using T = ScalarOf<S>;
    auto* run = a.weight ? backward_rows<S, true> : backward_rows<S, false>;
    run(exec, a.rows, a.cols, in<S>(a.grad_y), in<S>(a.sum), in<T>(a.weight), a.offset, a.eps,
        in<S>(a.grad_sum), out<S>(a.grad_x), out<T>(a.grad_weight), out<T>(a.workspace));
  });
}

}  // namespace

const AddRmsNormKernels OPFUSE_LEVEL::add_rms_norm = {forward, backward};

}  // namespace opfuse::ops
