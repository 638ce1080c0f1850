#pragma once
// depthwise_conv2d: each channel convolved with its own K x K filter, padding inside (it may differ
// from side to side, as for TensorFlow's "same"), channels_last. Forward, and the gradients of x
// and of the weight.

#include <cstdint>

#include "opfuse/base/dtype.h"
#include "opfuse/ops/exec.h"
#include "opfuse/ops/isa.h"
#include "opfuse/ops/parts.h"

namespace opfuse::ops {

// x is [samples, height, width, channels], y [samples, out_height, out_width, channels]. Filters
// are [kernel * kernel, channels], f64 for f64 and f32 for all other dtypes.
struct DepthwiseShape {
  DType dtype;
  int64_t samples, channels, height, width, out_height, out_width;
  int64_t kernel, stride, pad_top, pad_left;
};

// Parts of the weight gradient's sum: few, since each holds all filters.
inline int64_t depthwise_parts(const DepthwiseShape& s) {
  const int64_t parts = part_count(s.samples * s.out_height, s.out_width * s.channels * 4);
  return parts < 32 ? parts : 32;
}
// For grad_weight: sums of all parts in f64 and in the compute type. For grad_x: the turned
// filters.
inline int64_t depthwise_workspace_bytes(const DepthwiseShape& s) {
  return (depthwise_parts(s) * 2 + 1) * s.kernel * s.kernel * s.channels * 8;
}

struct DepthwiseConv2dKernels {
  void (*forward)(const Exec& exec, const DepthwiseShape& shape, const void* x, const void* filters,
                  void* y);
  void (*grad_x)(const Exec& exec, const DepthwiseShape& shape, const void* grad,
                 const void* filters, void* grad_x, void* workspace);
  void (*grad_filters)(const Exec& exec, const DepthwiseShape& shape, const void* grad,
                       const void* x, void* grad_filters, void* workspace);
};

OPFUSE_KERNEL_TABLE(DepthwiseConv2dKernels, depthwise_conv2d)

}  // namespace opfuse::ops
