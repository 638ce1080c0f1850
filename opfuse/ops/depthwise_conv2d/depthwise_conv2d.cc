// y[oh, ow]     = sum over kh, kw of x[oh s + kh - top, ow s + kw - left] w[kh, kw]
// grad_x        = the same with grad and turned filters (stride 1), or gathered by parity (stride
// 2) grad_w[kh,kw] = sum over oh, ow of grad[oh, ow] x[oh s + kh - top, ow s + kw - left]
//
// Loops in registers exist for f32, kernels of 3, 5 and 7 and strides 1 and 2 (rows.h); for the
// channels beyond whole vectors and for everything else there is one plain loop.

#include "opfuse/ops/depthwise_conv2d/depthwise_conv2d.h"

#include "opfuse/ops/depthwise_conv2d/rows.h"

namespace opfuse::ops {
namespace {

template <int kK, int kS>
struct Fast {
  static constexpr int kernel = kK, stride = kS;
};

// f(Fast<K, S>) where there is such a loop; false where there is none.
template <class F>
OPFUSE_INLINE bool with_fast(const DepthwiseShape& s, F&& f) {
  if (s.dtype != DType::kF32) return false;
  if (s.kernel == 3 && s.stride == 1) return f(Fast<3, 1>{}), true;
  if (s.kernel == 3 && s.stride == 2) return f(Fast<3, 2>{}), true;
  if (s.kernel == 5 && s.stride == 1) return f(Fast<5, 1>{}), true;
  if (s.kernel == 5 && s.stride == 2) return f(Fast<5, 2>{}), true;
  if (s.kernel == 7 && s.stride == 1) return f(Fast<7, 1>{}), true;
  if (s.kernel == 7 && s.stride == 2) return f(Fast<7, 2>{}), true;
  return false;
}

int64_t whole_channels(const DepthwiseShape& s) { return s.channels / kF32Lanes * kF32Lanes; }

// Rows of results that make a piece of work worth another thread.
int64_t row_grain(int64_t width, int64_t channels) {
  return max_of(1, 8192 / max_of(1, width * channels));
}

// row(sample, line) for all lines of all samples.
template <class F>
OPFUSE_INLINE void for_lines(const Exec& exec, int64_t samples, int64_t lines, int64_t grain,
                             const F& row) {
  parallel(exec, samples * lines, grain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) row(i / lines, i % lines);
  });
}

template <class S>
void forward_typed(const Exec& exec, const DepthwiseShape& s, const S* x,
                   const ScalarOf<S>* filters, S* y) {
  const int64_t in_volume = s.height * s.width * s.channels;
  const int64_t out_line = s.out_width * s.channels;
  const int64_t grain = row_grain(s.out_width, s.channels);
  int64_t done = 0;
  if constexpr (sizeof(S) == 4) {
    const bool fast = with_fast(s, [&](auto f) {
      for_lines(exec, s.samples, s.out_height, grain, [&](int64_t n, int64_t oh) {
        forward_row<decltype(f)::kernel, decltype(f)::stride>(
            s, x + n * in_volume, filters, y + (n * s.out_height + oh) * out_line, oh);
      });
    });
    if (fast) done = whole_channels(s);
  }
  if (done == s.channels) return;
  for_lines(exec, s.samples, s.out_height, grain, [&](int64_t n, int64_t oh) {
    forward_row_any(s, x + n * in_volume, filters, y + (n * s.out_height + oh) * out_line, oh,
                    done);
  });
}

template <class S>
void grad_x_typed(const Exec& exec, const DepthwiseShape& s, const S* grad,
                  const ScalarOf<S>* filters, S* grad_x, ScalarOf<S>* workspace) {
  if (s.stride == 1) {
    // A convolution of grad with the filters turned by half a circle.
    const int64_t taps = s.kernel * s.kernel;
    for (int64_t tap = 0; tap < taps; ++tap)
      std::memcpy(workspace + tap * s.channels, filters + (taps - 1 - tap) * s.channels,
                  static_cast<size_t>(s.channels) * sizeof(*filters));
    DepthwiseShape turned = s;
    turned.height = s.out_height;
    turned.width = s.out_width;
    turned.out_height = s.height;
    turned.out_width = s.width;
    turned.pad_top = s.kernel - 1 - s.pad_top;
    turned.pad_left = s.kernel - 1 - s.pad_left;
    forward_typed(exec, turned, grad, workspace, grad_x);
    return;
  }
  const int64_t out_volume = s.out_height * s.out_width * s.channels;
  const int64_t line = s.width * s.channels, grain = row_grain(s.width, s.channels);
  int64_t done = 0;
  if constexpr (sizeof(S) == 4) {
    const bool fast = with_fast(s, [&](auto f) {
      for_lines(exec, s.samples, s.height, grain, [&](int64_t n, int64_t ih) {
        grad_x_row_2<decltype(f)::kernel>(s, grad + n * out_volume, filters,
                                          grad_x + (n * s.height + ih) * line, ih);
      });
    });
    if (fast) done = whole_channels(s);
  }
  if (done == s.channels) return;
  for_lines(exec, s.samples, s.height, grain, [&](int64_t n, int64_t ih) {
    grad_x_row_any(s, grad + n * out_volume, filters, grad_x + (n * s.height + ih) * line, ih,
                   done);
  });
}

template <class S>
void grad_filters_typed(const Exec& exec, const DepthwiseShape& s, const S* grad, const S* x,
                        ScalarOf<S>* grad_filters, double* sums) {
  using T = ScalarOf<S>;
  const int64_t lines = s.samples * s.out_height, size = s.kernel * s.kernel * s.channels;
  const int64_t parts = depthwise_parts(s);
  const int64_t in_volume = s.height * s.width * s.channels;
  T* tiles = reinterpret_cast<T*>(sums + parts * size);
  // In the compute type over about 64 positions, then in f64.
  const int64_t lines_a_tile = max_of(1, 64 / max_of(1, s.out_width));
  parallel(exec, parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      double* sum = sums + part * size;
      T* tile = tiles + part * size;
      std::memset(sum, 0, static_cast<size_t>(size) * sizeof(double));
      const int64_t end = part_begin(lines, parts, part + 1);
      for (int64_t line = part_begin(lines, parts, part); line < end; line += lines_a_tile) {
        std::memset(tile, 0, static_cast<size_t>(size) * sizeof(T));
        for (int64_t i = line; i < min_of(line + lines_a_tile, end); ++i) {
          const S* g = grad + i * s.out_width * s.channels;
          const S* in = x + i / s.out_height * in_volume;
          int64_t done = 0;
          if constexpr (sizeof(S) == 4) {
            const bool fast = with_fast(s, [&](auto f) {
              grad_filters_row<decltype(f)::kernel, decltype(f)::stride>(s, g, in, tile,
                                                                         i % s.out_height);
            });
            if (fast) done = whole_channels(s);
          }
          if (done < s.channels) grad_filters_row_any(s, g, in, tile, i % s.out_height, done);
        }
        for (int64_t i = 0; i < size; ++i) sum[i] += tile[i];
      }
    }
  });
  for (int64_t i = 0; i < size; ++i) {
    double total = 0;
    for (int64_t part = 0; part < parts; ++part) total += sums[part * size + i];
    grad_filters[i] = static_cast<T>(total);
  }
}

void forward(const Exec& exec, const DepthwiseShape& s, const void* x, const void* filters,
             void* y) {
  with_storage(s.dtype, [&](auto storage) {
    using S = decltype(storage);
    forward_typed(exec, s, in<S>(x), in<ScalarOf<S>>(filters), out<S>(y));
  });
}

void grad_x(const Exec& exec, const DepthwiseShape& s, const void* grad, const void* filters,
            void* result, void* workspace) {
  with_storage(s.dtype, [&](auto storage) {
    using S = decltype(storage);
    grad_x_typed(exec, s, in<S>(grad), in<ScalarOf<S>>(filters), out<S>(result),
                 out<ScalarOf<S>>(workspace));
  });
}

void grad_filters(const Exec& exec, const DepthwiseShape& s, const void* grad, const void* x,
                  void* result, void* workspace) {
  with_storage(s.dtype, [&](auto storage) {
    using S = decltype(storage);
    grad_filters_typed(exec, s, in<S>(grad), in<S>(x), out<ScalarOf<S>>(result),
                       out<double>(workspace));
  });
}

}  // namespace

const DepthwiseConv2dKernels OPFUSE_LEVEL::depthwise_conv2d = {forward, grad_x, grad_filters};

}  // namespace opfuse::ops
