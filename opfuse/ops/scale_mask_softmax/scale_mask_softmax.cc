// s      = x scale + mask, or fill where the mask or the causal one says no
// y      = exp(s - max s) / sum exp(s - max s)
// grad_x = scale y (d - sum(d y)), 0 where the score was `fill`
//
// Columns behind the causal bound are one value a row: they are not computed, but written, and
// counted in the sum. A row without any finite score is NaN, as from the small operators.

#include "opfuse/ops/scale_mask_softmax/scale_mask_softmax.h"

#include "opfuse/ops/simd/dispatch.h"
#include "opfuse/ops/simd/lanes.h"
#include "opfuse/ops/simd/math.h"
#include "opfuse/ops/simd/parallel.h"
#include "opfuse/ops/simd/reduce.h"

namespace opfuse::ops {
namespace {

int64_t row_grain(int64_t cols) { return max_of(1, 8192 / max_of(1, cols)); }

// Where each row of a broadcast mask begins, for rows in order from `first` on.
class MaskRows {
 public:
  MaskRows(const RowMask& mask, int64_t first) : mask_(mask) {
    for (int dim = mask.dims - 1; dim >= 0; --dim) {
      index_[dim] = first % mask.size[dim];
      first /= mask.size[dim];
      offset_ += index_[dim] * mask.stride[dim];
    }
  }
  int64_t offset() const { return offset_; }
  void next() {
    for (int dim = mask_.dims - 1; dim >= 0; --dim) {
      offset_ += mask_.stride[dim];
      if (++index_[dim] < mask_.size[dim]) return;
      offset_ -= index_[dim] * mask_.stride[dim];
      index_[dim] = 0;
    }
  }

 private:
  const RowMask& mask_;
  int64_t index_[kMaskDims] = {};
  int64_t offset_ = 0;
};

// Columns that row `row` sees.
OPFUSE_INLINE int64_t seen(int64_t row, int64_t queries, int64_t cols) {
  return queries ? min_of(cols, row % queries + 1) : cols;
}

struct NoMask {
  template <class V, class Lanes>
  OPFUSE_INLINE V score(V s, int64_t, Lanes) const {
    return s;
  }
  template <class V, class Lanes>
  OPFUSE_INLINE V gradient(V g, int64_t, Lanes) const {
    return g;
  }
};

template <class S>
struct AddedMask {
  const S* row;
  template <class V, class Lanes>
  OPFUSE_INLINE V score(V s, int64_t i, Lanes lanes) const {
    return s + load(row + i, lanes);
  }
};

template <class V>
struct ByteMask {
  const uint8_t* row;
  V fill;
  template <class Lanes>
  OPFUSE_INLINE V score(V s, int64_t i, Lanes lanes) const {
    return takes_part(i, lanes) != 0 ? s : fill;
  }
  template <class Lanes>
  OPFUSE_INLINE V gradient(V g, int64_t i, Lanes lanes) const {
    return takes_part(i, lanes) != 0 ? g : V{};
  }

 private:
  template <class Lanes>
  OPFUSE_INLINE auto takes_part(int64_t i, Lanes lanes) const {
    return load_bytes<V>(row + i, lanes);
  }
};

// f(mask of a row) with the mask's kind; `typed` needs no row of its own for NoMask.
template <class S, class F>
OPFUSE_INLINE void forward_rows(const ScaleMaskSoftmaxArgs& a, int64_t first, int64_t last,
                                const F& row_body) {
  using V = VectorOf<S>;
  MaskRows rows(a.mask, first);
  for (int64_t row = first; row < last; ++row, rows.next()) {
    if (!a.mask.data)
      row_body(row, NoMask{});
    else if (a.mask.additive)
      row_body(row, AddedMask<S>{in<S>(a.mask.data) + rows.offset()});
    else
      row_body(row, ByteMask<V>{in<uint8_t>(a.mask.data) + rows.offset(), splat<V>(a.fill)});
  }
}

template <class S, class Mask>
OPFUSE_INLINE void forward_row(const ScaleMaskSoftmaxArgs& a, int64_t row, const Mask& mask) {
  using V = VectorOf<S>;
  using T = ScalarOf<S>;
  const int64_t n = seen(row, a.queries, a.cols), hidden = a.cols - n;
  const S* x = in<S>(a.x) + row * a.cols;
  S* y = out<S>(a.y) + row * a.cols;
  const V scale = splat<V>(a.scale);
  const auto score = [&](int64_t i, auto lanes) {
    return mask.score(load(x + i, lanes) * scale, i, lanes);
  };
  const T fill = static_cast<T>(a.fill);
  Maxima<V> maxima;
  sweep_row<S>(n, [&](int64_t i, int chain, auto lanes) {
    const V s = score(i, lanes);
    maxima.include(chain, only(s, lanes, -__builtin_inf()));
    if (sizeof(S) != 2) store(y + i, s, lanes);
  });
  T top = maxima.total();
  if (hidden && fill > top) top = fill;
  Chains<V> sums;
  sweep_row<S>(n, [&](int64_t i, int chain, auto lanes) {
    // Two-byte results would be rounded twice: their scores are computed again.
    const V e = exp((sizeof(S) != 2 ? load(y + i, lanes) : score(i, lanes)) - top);
    sums.sum[chain] += only(e, lanes);
    if (sizeof(S) != 2) store(y + i, e, lanes);
  });
  const T behind = hidden ? exp(splat<V>(0) + (fill - top))[0] : T(0);
  const T inverse = T(1) / (sums.total() + behind * static_cast<T>(hidden));
  sweep_lanes<S>(n, [&](int64_t i, auto lanes) {
    const V e = sizeof(S) != 2 ? load(y + i, lanes) : exp(score(i, lanes) - top);
    store(y + i, e * inverse, lanes);
  });
  const V rest = splat<V>(0) + behind * inverse;
  sweep_lanes<S>(hidden, [&](int64_t i, auto lanes) { store(y + n + i, rest, lanes); });
}

template <class S, class Mask>
OPFUSE_INLINE void backward_row(const ScaleMaskSoftmaxBackwardArgs& a, int64_t row,
                                const Mask& mask) {
  using V = VectorOf<S>;
  using T = ScalarOf<S>;
  const int64_t n = seen(row, a.queries, a.cols), hidden = a.cols - n;
  const S *grad = in<S>(a.grad) + row * a.cols, *y = in<S>(a.y) + row * a.cols;
  S* grad_x = out<S>(a.grad_x) + row * a.cols;
  const T total = dot(grad, y, a.cols);
  const V scale = splat<V>(a.scale);
  sweep_lanes<S>(n, [&](int64_t i, auto lanes) {
    const V g = (load(grad + i, lanes) - total) * load(y + i, lanes);
    store(grad_x + i, mask.gradient(g * scale, i, lanes), lanes);
  });
  sweep_lanes<S>(hidden, [&](int64_t i, auto lanes) { store(grad_x + n + i, V{}, lanes); });
}

void forward(const Exec& exec, const ScaleMaskSoftmaxArgs& a) {
  with_storage(a.dtype, [&](auto s) {
    using S = decltype(s);
    parallel(exec, a.rows, row_grain(a.cols), [&](int64_t first, int64_t last) {
      forward_rows<S>(a, first, last,
                      [&](int64_t row, const auto& mask) { forward_row<S>(a, row, mask); });
    });
  });
}

void backward(const Exec& exec, const ScaleMaskSoftmaxBackwardArgs& a) {
  with_storage(a.dtype, [&](auto s) {
    using S = decltype(s);
    using V = VectorOf<S>;
    parallel(exec, a.rows, row_grain(a.cols), [&](int64_t first, int64_t last) {
      MaskRows rows(a.mask, first);
      for (int64_t row = first; row < last; ++row, rows.next()) {
        if (!a.mask.data)
          backward_row<S>(a, row, NoMask{});
        else
          backward_row<S>(a, row, ByteMask<V>{in<uint8_t>(a.mask.data) + rows.offset(), V{}});
      }
    });
  });
}

}  // namespace

const ScaleMaskSoftmaxKernels OPFUSE_LEVEL::scale_mask_softmax = {forward, backward};

}  // namespace opfuse::ops
