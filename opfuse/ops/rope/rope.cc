// half:         y1 = x1 c1 - x2 s1,  y2 = x2 c2 + x1 s2
// transposed:   y1 = x1 c1 + x2 s2,  y2 = x2 c2 - x1 s1
// interleaved:  the same with even and odd elements in place of halves

#include "opfuse/ops/rope/rope.h"

#include "opfuse/ops/simd/dispatch.h"
#include "opfuse/ops/simd/parallel.h"

namespace opfuse::ops {
namespace {

template <class V, bool kTranspose>
OPFUSE_INLINE void rotate_pair(V x1, V x2, V c1, V c2, V s1, V s2, V* y1, V* y2) {
  *y1 = kTranspose ? fma(x2, s2, x1 * c1) : fma(-x2, s1, x1 * c1);
  *y2 = kTranspose ? fma(-x1, s1, x2 * c2) : fma(x1, s2, x2 * c2);
}

template <class S, bool kTranspose>
OPFUSE_INLINE void half_row(const S* x, const S* cos, const S* sin, S* y, int64_t rotary) {
  using V = VectorOf<S>;
  const int64_t h = rotary / 2;
  V y1, y2;
  sweep<kLanes<S>>(
      h,
      [&](int64_t i) {
        rotate_pair<V, kTranspose>(load(x + i), load(x + h + i), load(cos + i), load(cos + h + i),
                                   load(sin + i), load(sin + h + i), &y1, &y2);
        store(y + i, y1);
        store(y + h + i, y2);
      },
      [&](int64_t i, int64_t n) {
        rotate_pair<V, kTranspose>(load_n(x + i, n), load_n(x + h + i, n), load_n(cos + i, n),
                                   load_n(cos + h + i, n), load_n(sin + i, n),
                                   load_n(sin + h + i, n), &y1, &y2);
        store_n(y + i, y1, n);
        store_n(y + h + i, y2, n);
      });
}

// Each lane's neighbour: lane 0 gets lane 1, lane 1 gets lane 0.
template <class V>
OPFUSE_INLINE V swap_neighbours(V v) {
  if constexpr (sizeof(V{}[0]) == 4) {
    return bits_as<V>((bits_as<I64v>(v) << 32) | ((bits_as<I64v>(v) >> 32) & 0xffffffff));
  } else {
    V swapped = v;
    for (int i = 0; i < kLanesOf<V>; i += 2) {
      swapped[i] = v[i + 1];
      swapped[i + 1] = v[i];
    }
    return swapped;
  }
}

template <class V>
OPFUSE_INLINE V alternating_signs() {  // -1, 1, -1, 1, …
  V signs = splat<V>(1);
  for (int i = 0; i < kLanesOf<V>; i += 2) signs[i] = -1;
  return signs;
}

template <class S, bool kTranspose>
OPFUSE_INLINE void interleaved_row(const S* x, const S* cos, const S* sin, S* y, int64_t rotary) {
  using V = VectorOf<S>;
  const V signs = alternating_signs<V>();
  auto value = [&](V v, V c, V s) {
    // Transposed: element i takes the neighbour's sine, with the opposite sign.
    const V turned = kTranspose ? -signs * swap_neighbours(v * s) : signs * swap_neighbours(v) * s;
    return fma(v, c, turned);
  };
  sweep<kLanes<S>>(
      rotary, [&](int64_t i) { store(y + i, value(load(x + i), load(cos + i), load(sin + i))); },
      [&](int64_t i, int64_t n) {
        store_n(y + i, value(load_n(x + i, n), load_n(cos + i, n), load_n(sin + i, n)), n);
      });
}

int64_t table_offset(const RopeArgs& a, const std::array<int64_t, kRopeDims>& strides,
                     int64_t row) {
  int64_t offset = 0;
  for (int dim = kRopeDims - 1; dim >= 0; --dim) {
    offset += row % a.sizes[dim] * strides[dim];
    row /= a.sizes[dim];
  }
  return offset;
}

template <class S, bool kInterleaved, bool kTranspose>
void rotate_typed(const Exec& exec, const RopeArgs& a) {
  const int64_t rows = a.sizes[0] * a.sizes[1] * a.sizes[2] * a.sizes[3];
  const int64_t grain = max_of(1, 16384 / max_of(1, a.cols));
  parallel(exec, rows, grain, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const S* x = in<S>(a.x) + row * a.cols;
      const S* cos = in<S>(a.cos) + table_offset(a, a.cos_strides, row);
      const S* sin = in<S>(a.sin) + table_offset(a, a.sin_strides, row);
      S* y = out<S>(a.y) + row * a.cols;
      if constexpr (kInterleaved)
        interleaved_row<S, kTranspose>(x, cos, sin, y, a.rotary);
      else
        half_row<S, kTranspose>(x, cos, sin, y, a.rotary);
      if (a.rotary < a.cols)
        std::memcpy(y + a.rotary, x + a.rotary, static_cast<size_t>(a.cols - a.rotary) * sizeof(S));
    }
  });
}

void rotate(const Exec& exec, const RopeArgs& a) {
  with_storage(a.dtype, [&](auto s) {
    using S = decltype(s);
    if (a.interleaved)
      (a.transpose ? rotate_typed<S, true, true> : rotate_typed<S, true, false>)(exec, a);
    else
      (a.transpose ? rotate_typed<S, false, true> : rotate_typed<S, false, false>)(exec, a);
  });
}

}  // namespace

const RopeKernels OPFUSE_LEVEL::rope = {rotate};

}  // namespace opfuse::ops
