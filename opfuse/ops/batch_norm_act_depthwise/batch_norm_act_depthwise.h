#pragma once
// batch_norm_act_depthwise: y = depthwise_conv2d(act(batch_norm(x))), and the mean and variance of
// y, channels_last. The activated values are never in memory: a ring of `kernel` rows of them, with
// the padding, stays in the second level cache. Forward reads x twice and writes y; backward reads
// x twice and the gradient once, writes grad_x twice and reads it once. Saves x and the statistics.

#include <cstdint>

#include "opfuse/ops/batch_norm_act/batch_norm_act.h"
#include "opfuse/ops/depthwise_conv2d/depthwise_conv2d.h"

namespace opfuse::ops {

inline constexpr int64_t kMostKernel = 7;

// Filters, parameters and statistics are in the compute type: f64 for f64, else f32.
struct BatchNormActDepthwiseArgs {
  DepthwiseShape shape;  // kernel <= kMostKernel
  Activation act;
  double eps;
  bool training;  // mean and var are written, else read
  const void *x, *weight, *bias, *filters;
  void *mean, *var;
  void* y;
  void *y_mean, *y_var;  // [channels]; the variance is the biased one
  void* workspace;       // norm_depthwise_workspace_bytes
};

struct BatchNormActDepthwiseBackwardArgs {
  DepthwiseShape shape;
  Activation act;
  double eps;
  bool training;
  const void *grad, *x, *weight, *bias, *filters, *mean, *var;
  void *grad_x, *grad_filters;    // always written
  void *grad_weight, *grad_bias;  // may be null
  void* workspace;
};

inline BatchNormShape norm_of(const DepthwiseShape& s) {
  return {s.dtype, s.samples, s.channels, s.height * s.width, true};
}

// How the work is cut: parts of samples, or bands of rows of one where samples are few. A matter of
// size alone; each part has sums of its own.
struct DepthwiseParts {
  int64_t bands, count;
  explicit DepthwiseParts(const DepthwiseShape& s, bool backward) {
    const int64_t most = backward || s.samples >= 8 ? 1 : 16 / s.samples;
    bands = most < s.out_height / 8 ? most : (s.out_height < 8 ? 1 : s.out_height / 8);
    const int64_t items = s.samples * bands;
    count = items < 32 ? items : 32;
  }
};

// Sizes of a part's memory, in elements. Channels are rounded up to whole vectors of any level.
struct DepthwiseRing {
  int64_t channels, columns, ring, row, out_row, sample, filters;
  explicit DepthwiseRing(const DepthwiseShape& s) {
    channels = (s.channels + 15) / 16 * 16;
    const int64_t reach = (s.out_width - 1) * s.stride + s.kernel;
    columns = reach > s.width + s.pad_left ? reach : s.width + s.pad_left;
    ring = s.kernel * columns * channels;
    row = s.width * channels;
    out_row = s.out_width * channels;
    sample = s.out_height * out_row;
    filters = s.kernel * s.kernel * channels;
  }
  // Ring; act'(z) and the gradient of one row; one row of results; the gradient of one sample;
  // tiles of the sums of a channel (3) and of the filters.
  int64_t elements() const { return ring + 2 * row + out_row + sample + 3 * channels + filters; }
};

inline int64_t norm_depthwise_workspace_bytes(const DepthwiseShape& s) {
  const DepthwiseRing ring(s);
  const int64_t parts = DepthwiseParts(s, false).count;
  return batch_norm_workspace_bytes(norm_of(s)) +
         (parts * (ring.elements() + ring.filters + 2 * ring.channels) + 2 * ring.filters) * 8;
}

struct BatchNormActDepthwiseKernels {
  void (*forward)(const Exec& exec, const BatchNormActDepthwiseArgs& args);
  void (*backward)(const Exec& exec, const BatchNormActDepthwiseBackwardArgs& args);
};

OPFUSE_KERNEL_TABLE(BatchNormActDepthwiseKernels, batch_norm_act_depthwise)

}  // namespace opfuse::ops
