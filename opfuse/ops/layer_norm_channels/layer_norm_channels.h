#pragma once
// layer_norm_channels: y = (x - mean) / sqrt(var + eps) * weight + bias, mean and variance over the
// channels of each pixel. Moves 2 arrays forward and 3 backward; saves x and the weight.

#include <cstdint>

#include "opfuse/base/dtype.h"
#include "opfuse/ops/exec.h"
#include "opfuse/ops/isa.h"
#include "opfuse/ops/parts.h"

namespace opfuse::ops {

// Images of `channels` planes of `pixels` each, without gaps; `channels_last`: of `pixels` rows of
// `channels` each. Parameters are f64 for f64 and f32 for all other dtypes.
struct ImageShape {
  DType dtype;
  int64_t images, channels, pixels;
  bool channels_last;
};

struct LayerNormChannelsArgs {
  ImageShape shape;
  const void* x;
  const void *weight, *bias;  // [channels]; null: 1 and 0
  double eps;
  void* y;
};

struct LayerNormChannelsBackwardArgs {
  ImageShape shape;
  const void *grad, *x, *weight;
  double eps;
  void* grad_x;                   // null where not wanted
  void *grad_weight, *grad_bias;  // [channels], of the weight's dtype; null where not wanted
  void* workspace;                // layer_norm_channels_workspace_bytes
};

// Two rows of at most 8 bytes a channel for each part.
inline int64_t layer_norm_channels_workspace_bytes(const ImageShape& shape) {
  return kMaxParts * shape.channels * 2 * 8;
}

struct LayerNormChannelsKernels {
  void (*forward)(const Exec& exec, const LayerNormChannelsArgs& args);
  void (*backward)(const Exec& exec, const LayerNormChannelsBackwardArgs& args);
};

OPFUSE_KERNEL_TABLE(LayerNormChannelsKernels, layer_norm_channels)

}  // namespace opfuse::ops
