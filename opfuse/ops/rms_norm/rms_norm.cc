// Formulas and row loops are in rows.h.

#include "opfuse/ops/rms_norm/rms_norm.h"

#include "opfuse/ops/rms_norm/rows.h"

namespace opfuse::ops {
namespace {

template <class S, bool kWeight, bool kRound>
void forward_typed(const Exec& exec, const RmsNormArgs& a) {
  using T = ScalarOf<S>;
  parallel(exec, a.rows, row_grain(a.cols), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const S* x = in<S>(a.x) + row * a.cols;
      const T root = row_root(x, a.cols, a.eps);
      scale_row<S, kWeight, kRound>(x, in<T>(a.weight), static_cast<T>(a.offset), root,
                                    out<S>(a.y) + row * a.cols, a.cols);
    }
  });
}

void forward(const Exec& exec, const RmsNormArgs& a) {
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

void backward(const Exec& exec, const RmsNormBackwardArgs& a) {
  with_storage(a.dtype, [&](auto s) {
    using S = decltype(s);
    using T = ScalarOf<S>;
    auto* run = a.weight ? backward_rows<S, true> : backward_rows<S, false>;
    run(exec, a.rows, a.cols, in<S>(a.grad), in<S>(a.x), in<T>(a.weight), a.offset, a.eps, nullptr,
        out<S>(a.grad_x), out<T>(a.grad_weight), out<T>(a.workspace));
  });
}

}  // namespace

const RmsNormKernels OPFUSE_LEVEL::rms_norm = {forward, backward};

}  // namespace opfuse::ops
