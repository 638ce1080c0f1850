#pragma once
// What a norm and its gradient are per channel, once statistics and sums are known. Kernel text.
//
// r = 1 / sqrt(var + eps),  slope = weight r,  z = (x - mean) slope + bias
// grad_x = slope g + linear (x - mean) + constant,  g the gradient of z

#include "opfuse/ops/batch_norm_act/batch_norm_act.h"
#include "opfuse/ops/simd/dispatch.h"
#include "opfuse/ops/simd/lanes.h"
#include "opfuse/ops/simd/parallel.h"

namespace opfuse::ops {
namespace {

template <class T>
struct ChannelLines {
  T *slope, *bias, *constant, *linear;  // [channels] each

  static constexpr int64_t count = 4;
  void cut(T* memory, int64_t channels) {
    slope = memory;
    bias = slope + channels;
    constant = bias + channels;
    linear = constant + channels;
  }
};

// slope and bias; weight and bias may be null: 1 and 0.
template <class T>
void fill_affine(int64_t channels, double eps, const T* weight, const T* bias, const T* var,
                 const ChannelLines<T>& lines) {
  for (int64_t c = 0; c < channels; ++c) {
    const double root = 1 / __builtin_sqrt(static_cast<double>(var[c]) + eps);
    lines.slope[c] = static_cast<T>(weight ? weight[c] * root : root);
    lines.bias[c] = bias ? bias[c] : T(0);
  }
}

// From the sums of g and of g (x - mean) over the channel's `count` elements: the parameters'
// gradients (either may be null), and the line of grad_x. In evaluation it is slope g alone: an
// infinite x must not come back as 0 * infinity.
template <class T>
void finish_channel(int64_t count, double eps, bool training, const T* var, int64_t c, double sum,
                    double product, T* grad_weight, T* grad_bias, const ChannelLines<T>& lines) {
  const double root2 = 1 / (static_cast<double>(var[c]) + eps);
  if (grad_bias) grad_bias[c] = static_cast<T>(sum);
  if (grad_weight) grad_weight[c] = static_cast<T>(product * __builtin_sqrt(root2));
  const double share = lines.slope[c] / static_cast<double>(count);
  lines.constant[c] = training ? static_cast<T>(-share * sum) : T(0);
  lines.linear[c] = training ? static_cast<T>(-share * root2 * product) : T(0);
}

constexpr int64_t kTileRows = 64;
constexpr int64_t row_grain(int64_t channels) { return max_of(1, 32768 / max_of(1, channels)); }

// tile(first, last) for tiles of rows, backwards: what a pass before touched last is still in
// cache.
template <class F>
OPFUSE_INLINE void tiles_backwards(const Exec& exec, int64_t rows, int64_t channels,
                                   const F& tile) {
  parallel(exec, ceil_div(rows, kTileRows), max_of(1, row_grain(channels) / kTileRows),
           [&](int64_t first, int64_t last) {
             for (int64_t i = last - 1; i >= first; --i)
               tile(i * kTileRows, min_of((i + 1) * kTileRows, rows));
           });
}

// Whether rows of `channels` that begin at `p` may be stored past the cache.
template <class S>
OPFUSE_INLINE bool can_stream(const S* p, int64_t channels) {
  return channels % kLanes<S> == 0 && is_aligned(p);
}

// grad_x of all rows from g of all rows, which may be the same memory.
template <class S>
void finish_rows(const Exec& exec, int64_t rows, int64_t channels, bool training, const S* x,
                 const S* g, S* grad_x, const ScalarOf<S>* mean,
                 const ChannelLines<ScalarOf<S>>& lines) {
  using V = VectorOf<S>;
  // Copies: the compiler cannot know that stores leave what a reference leads to as it is.
  const auto row_line = [=](int64_t row) {
    sweep_lanes<S>(channels, [&](int64_t c, auto lanes) {
      const V m = load(mean + c, lanes), k = load(lines.slope + c, lanes);
      const V k1 = load(lines.linear + c, lanes), k0 = load(lines.constant + c, lanes);
      const int64_t at = row * channels + c;
      prefetch(x + at + 4 * channels);
      prefetch(g + at + 4 * channels);
      const V line = training ? fma(k1, load(x + at, lanes) - m, k0) : V{};
      store(grad_x + at, fma(k, load(g + at, lanes), line), lanes);
    });
  };
  // Rows forwards, as the processor's prefetching expects them.
  tiles_backwards(exec, rows, channels, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) row_line(row);
  });
}

}  // namespace
}  // namespace opfuse::ops
