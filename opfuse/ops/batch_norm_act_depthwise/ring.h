#pragma once
// Convolution from a ring of activated rows. Kernel text. Rows are in the compute type, padded with
// zeros on both sides and to whole vectors of channels, so that nothing has an edge but the first
// and last rows of a picture: of those, taps outside are left out.

#include "opfuse/ops/batch_norm_act_depthwise/batch_norm_act_depthwise.h"
#include "opfuse/ops/depthwise_conv2d/rows.h"

namespace opfuse::ops {
namespace {

// The rows that the taps [low, high) of one row of results lie in.
template <class T>
struct Window {
  const T* rows[kMostKernel];
  int64_t low, high;

  Window(const DepthwiseShape& s, const DepthwiseRing& sizes, const T* ring, int64_t oh) {
    const int64_t top = oh * s.stride - s.pad_top;
    const Taps taps(top, s.kernel, s.height);
    low = taps.low;
    high = taps.high;
    for (int64_t kh = low; kh < high; ++kh)
      rows[kh] = ring + (top + kh) % s.kernel * sizes.columns * sizes.channels;
  }
};

template <int kK, int kS, int kB>
OPFUSE_INLINE void ring_block(const Window<float>& window, const float* filters, float* y,
                              int64_t ow, int64_t channels) {
  for (int64_t c = 0; c < channels; c += kF32Lanes) {
    F32v acc[kB] = {};
    for (int64_t kh = window.low; kh < window.high; ++kh)
      add_row<kK, kS, kB, true>(window.rows[kh] + ow * kS * channels + c,
                                filters + kh * kK * channels + c, channels, 0, 0, acc);
#pragma GCC unroll 8
    for (int j = 0; j < kB; ++j) store(y + (ow + j) * channels + c, acc[j]);
  }
}

template <int kK, int kS>
void ring_row(const DepthwiseShape& s, const Window<float>& window, const float* filters, float* y,
              int64_t channels) {
  constexpr int kBlock = kK == 5 ? 7 : 8;
  int64_t ow = 0;
  for (; ow + kBlock <= s.out_width; ow += kBlock)
    ring_block<kK, kS, kBlock>(window, filters, y, ow, channels);
  for (; ow + 4 <= s.out_width; ow += 4) ring_block<kK, kS, 4>(window, filters, y, ow, channels);
  for (; ow < s.out_width; ++ow) ring_block<kK, kS, 1>(window, filters, y, ow, channels);
}

// Any kernel, stride and compute type.
template <class T>
void ring_row_any(const DepthwiseShape& s, const Window<T>& window, const T* filters, T* y,
                  int64_t channels) {
  using V = VectorOf<T>;
  for (int64_t ow = 0; ow < s.out_width; ++ow)
    for (int64_t c = 0; c < channels; c += kLanes<T>) {
      V acc{};
      for (int64_t kh = window.low; kh < window.high; ++kh)
        for (int64_t kw = 0; kw < s.kernel; ++kw)
          acc = fma(load(window.rows[kh] + (ow * s.stride + kw) * channels + c),
                    load(filters + (kh * s.kernel + kw) * channels + c), acc);
      store(y + ow * channels + c, acc);
    }
}

// sums[kh][kw] += sum over ow of grad x, for one row of grad; two chains of additions.
template <int kK, int kS>
void ring_filters(const DepthwiseShape& s, const Window<float>& window, const float* grad,
                  float* sums, int64_t channels) {
  for (int64_t c = 0; c < channels; c += kF32Lanes)
    for (int64_t kh = window.low; kh < window.high; ++kh) {
      const float* x = window.rows[kh] + c;
      const float* g = grad + c;
      float* sum = sums + kh * kK * channels + c;
      F32v a[kK], b[kK] = {};
#pragma GCC unroll 8
      for (int kw = 0; kw < kK; ++kw) a[kw] = load(sum + kw * channels);
      int64_t ow = 0;
      for (; ow + 2 <= s.out_width; ow += 2) {
        const F32v d0 = load(g + ow * channels), d1 = load(g + (ow + 1) * channels);
        const float* p = x + ow * kS * channels;
#pragma GCC unroll 16
        for (int i = 0; i < kK + kS; ++i) {
          const F32v v = load(p + i * channels);
          if (i < kK) a[i] = fma(d0, v, a[i]);
          if (i >= kS) b[i - kS] = fma(d1, v, b[i - kS]);
        }
      }
      if (ow < s.out_width) {
        const F32v d = load(g + ow * channels);
#pragma GCC unroll 8
        for (int kw = 0; kw < kK; ++kw) a[kw] = fma(d, load(x + (ow * kS + kw) * channels), a[kw]);
      }
#pragma GCC unroll 8
      for (int kw = 0; kw < kK; ++kw) store(sum + kw * channels, a[kw] + b[kw]);
    }
}

template <class T>
void ring_filters_any(const DepthwiseShape& s, const Window<T>& window, const T* grad, T* sums,
                      int64_t channels) {
  for (int64_t ow = 0; ow < s.out_width; ++ow)
    for (int64_t c = 0; c < channels; c += kLanes<T>) {
      const auto d = load(grad + ow * channels + c);
      for (int64_t kh = window.low; kh < window.high; ++kh)
        for (int64_t kw = 0; kw < s.kernel; ++kw) {
          T* sum = sums + (kh * s.kernel + kw) * channels + c;
          store(sum,
                fma(d, load(window.rows[kh] + (ow * s.stride + kw) * channels + c), load(sum)));
        }
    }
}

// The loops for one kernel and stride. `grad_x` gives one row of the gradient of the activated
// values, from the gradient of a sample: filters turned for stride 1, else as they are.
template <class T>
struct RowLoops {
  void (*forward)(const DepthwiseShape&, const Window<T>&, const T* filters, T* y,
                  int64_t channels) = ring_row_any<T>;
  void (*filters)(const DepthwiseShape&, const Window<T>&, const T* grad, T* sums,
                  int64_t channels) = ring_filters_any<T>;
  void (*grad_x)(const DepthwiseShape&, const T* grad, const T* filters, T* row, int64_t ih);
};

template <class T>
void grad_row_any(const DepthwiseShape& s, const T* grad, const T* filters, T* row, int64_t ih) {
  if (s.stride == 1)
    forward_row_any<T>(s, grad, filters, row, ih, 0);
  else
    grad_x_row_any<T>(s, grad, filters, row, ih, 0);
}

template <class T>
OPFUSE_INLINE RowLoops<T> row_loops(const DepthwiseShape& s) {
  RowLoops<T> loops;
  loops.grad_x = grad_row_any<T>;
  if constexpr (sizeof(T) == 4) {
    if (s.kernel == 3 && s.stride == 1)
      loops = {ring_row<3, 1>, ring_filters<3, 1>, forward_row<3, 1>};
    if (s.kernel == 3 && s.stride == 2)
      loops = {ring_row<3, 2>, ring_filters<3, 2>, grad_x_row_2<3>};
    if (s.kernel == 5 && s.stride == 1)
      loops = {ring_row<5, 1>, ring_filters<5, 1>, forward_row<5, 1>};
    if (s.kernel == 5 && s.stride == 2)
      loops = {ring_row<5, 2>, ring_filters<5, 2>, grad_x_row_2<5>};
    if (s.kernel == 7 && s.stride == 1)
      loops = {ring_row<7, 1>, ring_filters<7, 1>, forward_row<7, 1>};
    if (s.kernel == 7 && s.stride == 2)
      loops = {ring_row<7, 2>, ring_filters<7, 2>, grad_x_row_2<7>};
  }
  return loops;
}

}  // namespace
}  // namespace opfuse::ops
