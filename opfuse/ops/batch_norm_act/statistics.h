#pragma once
// Mean and variance of channels, and sums over the rows of a channels_last tensor. Kernel text.
//
// Sums are of x - shift, the shift being the channel's first element: the variance then loses no
// digits where the mean is far from 0. Tiles of rows in the compute type, tiles in f64.

#include "opfuse/ops/batch_norm_act/affine.h"
#include "opfuse/ops/simd/reduce.h"

namespace opfuse::ops {
namespace {

// Two sums per channel over all rows. `tile(first, last, s, q)` adds rows [first, last) to s and q
// in the compute type; at most kTileRows rows at a time, never across a multiple of `space`, so
// that a tile lies within one sample. `sums` is [parts][2][channels], its first part the totals at
// the end.
template <class T, class Tile>
void sum_rows(const Exec& exec, int64_t rows, int64_t space, int64_t channels, int64_t parts,
              double* sums, T* tiles, const Tile& tile) {
  parallel(exec, parts, 1, [&](int64_t first_part, int64_t last_part) {
    for (int64_t part = first_part; part < last_part; ++part) {
      double* sum = sums + part * 2 * channels;
      T* s = tiles + part * 2 * channels;
      std::memset(sum, 0, static_cast<size_t>(2 * channels) * sizeof(double));
      const int64_t end = part_begin(rows, parts, part + 1);
      for (int64_t row = part_begin(rows, parts, part); row < end;) {
        const int64_t last = min_of(min_of(row + kTileRows, end), (row / space + 1) * space);
        std::memset(s, 0, static_cast<size_t>(2 * channels) * sizeof(T));
        tile(row, last, s, s + channels);
        for (int64_t c = 0; c < 2 * channels; ++c) sum[c] += s[c];
        row = last;
      }
    }
  });
  for (int64_t part = 1; part < parts; ++part)
    for (int64_t c = 0; c < 2 * channels; ++c) sums[c] += sums[part * 2 * channels + c];
}

// f(row, RowCount) for rows in fours, then one by one: four rows share the loads of what belongs to
// the channel.
template <int kCount>
struct RowCount {
  static constexpr int value = kCount;
};
template <class F>
OPFUSE_INLINE void rows_in_fours(int64_t first, int64_t last, const F& f) {
  for (; first + 4 <= last; first += 4) f(first, RowCount<4>{});
  for (; first < last; ++first) f(first, RowCount<1>{});
}

template <class T>
void finish_statistics(int64_t channel, double sum, double squares, double shift, double count,
                       T* mean, T* var) {
  const double m = sum / count;
  const double v = squares / count - m * m;
  mean[channel] = static_cast<T>(shift + m);
  var[channel] = static_cast<T>(v < 0 ? 0 : v);  // keeps NaN
}

template <class S>
void statistics_of_rows(const Exec& exec, const BatchNormShape& shape, const S* x, double* sums,
                        ScalarOf<S>* tiles, ScalarOf<S>* mean, ScalarOf<S>* var) {
  using V = VectorOf<S>;
  const int64_t rows = shape.samples * shape.space, channels = shape.channels;
  const int64_t parts = part_count(rows, channels * 4);
  sum_rows(exec, rows, shape.space, channels, parts, sums, tiles,
           [&](int64_t first, int64_t last, ScalarOf<S>* s, ScalarOf<S>* q) {
             rows_in_fours(first, last, [&](int64_t row, auto count) {
               const S* at = x + row * channels;
               sweep_lanes<S>(channels, [&](int64_t c, auto lanes) {
                 const V shift = load(x + c, lanes);
                 V sum = load(s + c, lanes), squares = load(q + c, lanes);
                 for (int i = 0; i < decltype(count)::value; ++i) {
                   prefetch(at + (i + 4) * channels + c);
                   const V v = load(at + i * channels + c, lanes) - shift;
                   sum += v;
                   squares = fma(v, v, squares);
                 }
                 store(s + c, sum, lanes);
                 store(q + c, squares, lanes);
               });
             });
           });
  for (int64_t c = 0; c < channels; ++c) {
    S first[kLanes<S>] = {};
    std::memcpy(first, x + c, sizeof(S));
    finish_statistics(c, sums[c], sums[channels + c], load(first)[0], static_cast<double>(rows),
                      mean, var);
  }
}

// The same for one channel of a contiguous tensor; its planes are `stride` elements apart.
template <class S>
void statistics_of_planes(const S* x, int64_t samples, int64_t space, int64_t stride,
                          int64_t channel, ScalarOf<S>* mean, ScalarOf<S>* var) {
  using V = VectorOf<S>;
  S head[kLanes<S>] = {};
  std::memcpy(head, x, sizeof(S));
  const double first = load(head)[0];
  const V shift = splat<V>(first);
  double sum = 0, squares = 0;
  for (int64_t sample = 0; sample < samples; ++sample) {
    for (int64_t from = 0; from < space; from += 4096) {
      const S* at = x + sample * stride + from;
      const int64_t n = min_of(4096, space - from);
      Chains<V> s, q;
      sweep_chains<kLanes<S>>(
          n,
          [&](int64_t i, int chain) {
            const V v = load(at + i) - shift;
            s.sum[chain] += v;
            q.sum[chain] = fma(v, v, q.sum[chain]);
          },
          [&](int64_t i, int64_t left) {
            S lanes[kLanes<S>];
            for (S& lane : lanes) lane = head[0];  // adds 0
            std::memcpy(lanes, at + i, static_cast<size_t>(left) * sizeof(S));
            const V v = load(lanes) - shift;
            s.sum[0] += v;
            q.sum[0] = fma(v, v, q.sum[0]);
          });
      sum += s.total();
      squares += q.total();
    }
  }
  finish_statistics(channel, sum, squares, first, static_cast<double>(samples * space), mean, var);
}

}  // namespace
}  // namespace opfuse::ops
