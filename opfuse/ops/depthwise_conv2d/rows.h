#pragma once
// Rows of a depthwise convolution. Kernel text. One row of results at a time; in a row, blocks of
// results in registers, so that a loaded x serves up to K of them and a loaded filter all.

#include "opfuse/ops/depthwise_conv2d/depthwise_conv2d.h"
#include "opfuse/ops/simd/dispatch.h"
#include "opfuse/ops/simd/lanes.h"
#include "opfuse/ops/simd/parallel.h"

namespace opfuse::ops {
namespace {

// Where a window lies that begins at `first`: taps [low, high) of `kernel` are inside [0, size).
struct Taps {
  int64_t low, high;
  Taps(int64_t first, int64_t kernel, int64_t size)
      : low(first < 0 ? -first : 0), high(min_of(kernel, size - first)) {}
};

// acc[j] += sum over kw of x[first + j * kS + kw] w[kw], of one row of x. With kAll the whole block
// lies inside; else positions outside of [0, width) add nothing.
template <int kK, int kS, int kB, bool kAll>
OPFUSE_INLINE void add_row(const float* x, const float* w, int64_t channels, int64_t first,
                           int64_t width, F32v* acc) {
  if constexpr (kS == 1) {
    F32v taps[kK];
#pragma GCC unroll 8
    for (int kw = 0; kw < kK; ++kw) taps[kw] = load(w + kw * channels);
#pragma GCC unroll 16
    for (int i = 0; i < kB + kK - 1; ++i) {
      if (!kAll && (first + i < 0 || first + i >= width)) continue;
      const F32v v = load(x + (first + i) * channels);
#pragma GCC unroll 8
      for (int kw = 0; kw < kK; ++kw)
        if (i - kw >= 0 && i - kw < kB) acc[i - kw] = fma(v, taps[kw], acc[i - kw]);
    }
  } else {
#pragma GCC unroll 8
    for (int kw = 0; kw < kK; ++kw) {
      const F32v tap = load(w + kw * channels);
#pragma GCC unroll 8
      for (int j = 0; j < kB; ++j) {
        const int64_t at = first + j * kS + kw;
        if (!kAll && (at < 0 || at >= width)) continue;
        acc[j] = fma(load(x + at * channels), tap, acc[j]);
      }
    }
  }
}

// kB results of row `oh`, from column `ow` on; channels in whole vectors.
template <int kK, int kS, int kB>
OPFUSE_INLINE void forward_block(const DepthwiseShape& s, const float* x, const float* filters,
                                 float* y, int64_t oh, int64_t ow) {
  const int64_t channels = s.channels, whole = channels / kF32Lanes * kF32Lanes;
  const int64_t top = oh * kS - s.pad_top, left = ow * kS - s.pad_left;
  const Taps rows(top, kK, s.height);
  const bool all = left >= 0 && left + (kB - 1) * kS + kK <= s.width;
  with_choice(all, [&](auto inside) {
    for (int64_t c = 0; c < whole; c += kF32Lanes) {
      F32v acc[kB] = {};
      for (int64_t kh = rows.low; kh < rows.high; ++kh)
        add_row<kK, kS, kB, decltype(inside)::value>(x + (top + kh) * s.width * channels + c,
                                                     filters + kh * kK * channels + c, channels,
                                                     left, s.width, acc);
#pragma GCC unroll 8
      for (int j = 0; j < kB; ++j) store(y + (ow + j) * channels + c, acc[j]);
    }
  });
}

template <int kK, int kS>
void forward_row(const DepthwiseShape& s, const float* x, const float* filters, float* y,
                 int64_t oh) {
  constexpr int kBlock = kK == 5 ? 7 : 8;  // with kK filters and one x in 16 registers
  int64_t ow = 0;
  for (; ow + kBlock <= s.out_width; ow += kBlock)
    forward_block<kK, kS, kBlock>(s, x, filters, y, oh, ow);
  for (; ow + 4 <= s.out_width; ow += 4) forward_block<kK, kS, 4>(s, x, filters, y, oh, ow);
  for (; ow < s.out_width; ++ow) forward_block<kK, kS, 1>(s, x, filters, y, oh, ow);
}

// Any kernel, stride and dtype, channels from `from` on: what the loops above do not cover.
template <class S>
void forward_row_any(const DepthwiseShape& s, const S* x, const ScalarOf<S>* filters, S* y,
                     int64_t oh, int64_t from) {
  using V = VectorOf<S>;
  const int64_t top = oh * s.stride - s.pad_top;
  const Taps rows(top, s.kernel, s.height);
  for (int64_t ow = 0; ow < s.out_width; ++ow) {
    const int64_t left = ow * s.stride - s.pad_left;
    const Taps columns(left, s.kernel, s.width);
    sweep_lanes<S>(s.channels - from, [&](int64_t i, auto lanes) {
      const int64_t c = from + i;
      V acc{};
      for (int64_t kh = rows.low; kh < rows.high; ++kh)
        for (int64_t kw = columns.low; kw < columns.high; ++kw)
          acc = fma(load(x + ((top + kh) * s.width + left + kw) * s.channels + c, lanes),
                    load(filters + (kh * s.kernel + kw) * s.channels + c, lanes), acc);
      store(y + ow * s.channels + c, acc, lanes);
    });
  }
}

// Gradient of x, any kernel and stride: row `ih` of x, from the rows of grad that it was used in.
template <class S>
void grad_x_row_any(const DepthwiseShape& s, const S* grad, const ScalarOf<S>* filters, S* grad_x,
                    int64_t ih, int64_t from) {
  using V = VectorOf<S>;
  for (int64_t iw = 0; iw < s.width; ++iw) {
    sweep_lanes<S>(s.channels - from, [&](int64_t i, auto lanes) {
      const int64_t c = from + i;
      V acc{};
      for (int64_t kh = (ih + s.pad_top) % s.stride; kh < s.kernel; kh += s.stride) {
        const int64_t oh = (ih + s.pad_top - kh) / s.stride;
        if (ih + s.pad_top < kh || oh >= s.out_height) continue;
        for (int64_t kw = (iw + s.pad_left) % s.stride; kw < s.kernel; kw += s.stride) {
          const int64_t ow = (iw + s.pad_left - kw) / s.stride;
          if (iw + s.pad_left < kw || ow >= s.out_width) continue;
          acc = fma(load(grad + (oh * s.out_width + ow) * s.channels + c, lanes),
                    load(filters + (kh * s.kernel + kw) * s.channels + c, lanes), acc);
        }
      }
      store(grad_x + iw * s.channels + c, acc, lanes);
    });
  }
}

// Stride 2: columns iw, iw + 2, … (kB of them) use the same filters.
template <int kK, int kB>
OPFUSE_INLINE void grad_x_block_2(const DepthwiseShape& s, const float* grad, const float* filters,
                                  float* grad_x, int64_t ih, int64_t iw) {
  const int64_t channels = s.channels, whole = channels / kF32Lanes * kF32Lanes;
  const int64_t kh0 = (ih + s.pad_top) & 1, kw0 = (iw + s.pad_left) & 1;
  const int64_t last = (iw + s.pad_left - kw0) / 2;  // ow of tap kw0; tap kw0 + 2 t has last - t
  const int64_t taps = (kK - kw0 + 1) / 2;
  const bool all = last - (taps - 1) >= 0 && last + kB - 1 < s.out_width;
  for (int64_t c = 0; c < whole; c += kF32Lanes) {
    F32v acc[kB] = {};
    for (int64_t kh = kh0; kh < kK; kh += 2) {
      const int64_t oh = (ih + s.pad_top - kh) / 2;
      if (ih + s.pad_top < kh || oh >= s.out_height) continue;
      const float* g = grad + oh * s.out_width * channels + c;
      const float* w = filters + kh * kK * channels + c;
      for (int64_t t = 0; t < taps; ++t) {
        const F32v tap = load(w + (kw0 + 2 * t) * channels);
#pragma GCC unroll 8
        for (int j = 0; j < kB; ++j) {
          const int64_t ow = last - t + j;
          if (!all && (ow < 0 || ow >= s.out_width)) continue;
          acc[j] = fma(load(g + ow * channels), tap, acc[j]);
        }
      }
    }
#pragma GCC unroll 8
    for (int j = 0; j < kB; ++j) store(grad_x + (iw + 2 * j) * channels + c, acc[j]);
  }
}

template <int kK>
void grad_x_row_2(const DepthwiseShape& s, const float* grad, const float* filters, float* grad_x,
                  int64_t ih) {
  for (int64_t parity = 0; parity < 2; ++parity) {
    int64_t iw = parity, left = (s.width - parity + 1) / 2;
    for (; left >= 8; left -= 8, iw += 16) grad_x_block_2<kK, 8>(s, grad, filters, grad_x, ih, iw);
    for (; left >= 4; left -= 4, iw += 8) grad_x_block_2<kK, 4>(s, grad, filters, grad_x, ih, iw);
    for (; left > 0; --left, iw += 2) grad_x_block_2<kK, 1>(s, grad, filters, grad_x, ih, iw);
  }
}

// sums[kh][kw] += sum over ow of grad x, for one row of grad; two chains of additions.
template <int kK, int kS>
void grad_filters_row(const DepthwiseShape& s, const float* grad, const float* x, float* sums,
                      int64_t oh) {
  const int64_t channels = s.channels, whole = channels / kF32Lanes * kF32Lanes;
  const int64_t top = oh * kS - s.pad_top;
  const Taps rows(top, kK, s.height);
  // Columns whose whole window lies inside.
  const int64_t high = min_of(s.out_width, (s.width - kK + s.pad_left) / kS + 1);
  const int64_t low = min_of((s.pad_left + kS - 1) / kS, max_of(0, high));
  for (int64_t c = 0; c < whole; c += kF32Lanes) {
    for (int64_t kh = rows.low; kh < rows.high; ++kh) {
      const float* in = x + (top + kh) * s.width * channels + c - s.pad_left * channels;
      const float* g = grad + c;
      float* sum = sums + kh * kK * channels + c;
      F32v a[kK], b[kK] = {};
#pragma GCC unroll 8
      for (int kw = 0; kw < kK; ++kw) a[kw] = load(sum + kw * channels);
      const auto edge = [&](int64_t ow) {
        const F32v d = load(g + ow * channels);
#pragma GCC unroll 8
        for (int kw = 0; kw < kK; ++kw) {
          const int64_t iw = ow * kS + kw - s.pad_left;
          if (iw >= 0 && iw < s.width) a[kw] = fma(d, load(in + (ow * kS + kw) * channels), a[kw]);
        }
      };
      int64_t ow = 0;
      for (; ow < low; ++ow) edge(ow);
      for (; ow + 2 <= high; ow += 2) {
        const F32v d0 = load(g + ow * channels), d1 = load(g + (ow + 1) * channels);
        const float* p = in + ow * kS * channels;
#pragma GCC unroll 16
        for (int i = 0; i < kK + kS; ++i) {
          const F32v v = load(p + i * channels);
          if (i < kK) a[i] = fma(d0, v, a[i]);
          if (i >= kS) b[i - kS] = fma(d1, v, b[i - kS]);
        }
      }
      for (; ow < s.out_width; ++ow) edge(ow);
#pragma GCC unroll 8
      for (int kw = 0; kw < kK; ++kw) store(sum + kw * channels, a[kw] + b[kw]);
    }
  }
}

template <class S>
void grad_filters_row_any(const DepthwiseShape& s, const S* grad, const S* x, ScalarOf<S>* sums,
                          int64_t oh, int64_t from) {
  const int64_t top = oh * s.stride - s.pad_top;
  const Taps rows(top, s.kernel, s.height);
  for (int64_t ow = 0; ow < s.out_width; ++ow) {
    const int64_t left = ow * s.stride - s.pad_left;
    const Taps columns(left, s.kernel, s.width);
    sweep_lanes<S>(s.channels - from, [&](int64_t i, auto lanes) {
      const int64_t c = from + i;
      const auto d = load(grad + ow * s.channels + c, lanes);
      for (int64_t kh = rows.low; kh < rows.high; ++kh)
        for (int64_t kw = columns.low; kw < columns.high; ++kw) {
          ScalarOf<S>* sum = sums + (kh * s.kernel + kw) * s.channels + c;
          const auto v = load(x + ((top + kh) * s.width + left + kw) * s.channels + c, lanes);
          store(sum, fma(d, v, load(sum, lanes)), lanes);
        }
    });
  }
}

}  // namespace
}  // namespace opfuse::ops
