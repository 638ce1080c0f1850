#pragma once
// batch_norm_act: y = act(batch_norm(x)) * scale + residual, with batch statistics (training) or
// given ones (evaluation); a scale per sample and a residual are optional (stochastic depth:
// drop_connect). Forward moves 3 arrays (x twice), backward 5; what is saved is x and the
// statistics, neither the norm's result nor the activation's.

#include <cstdint>

#include "opfuse/base/dtype.h"
#include "opfuse/ops/activation.h"
#include "opfuse/ops/exec.h"
#include "opfuse/ops/isa.h"
#include "opfuse/ops/parts.h"

namespace opfuse::ops {

// x is [samples, channels, space], or [samples, space, channels] with channels_last, without gaps.
// Parameters and statistics are f64 for f64 and f32 for all other dtypes.
struct BatchNormShape {
  DType dtype;
  int64_t samples, channels, space;
  bool channels_last;
};

struct BatchNormActArgs {
  BatchNormShape shape;
  Activation act;
  double eps;
  bool training;  // mean and var are written, else read
  const void* x;
  const void *weight, *bias;  // [channels]; null: 1 and 0
  const void* scale;          // [samples]; null: 1
  const void* residual;       // laid out as x; null: 0
  void *mean, *var;           // [channels]; the variance is the biased one
  void* y;                    // laid out as x
  void* workspace;            // batch_norm_workspace_bytes
};

struct BatchNormActBackwardArgs {
  BatchNormShape shape;
  Activation act;
  double eps;
  bool training;
  const void *grad, *x, *weight, *bias, *scale, *mean, *var;
  void *grad_x, *grad_weight, *grad_bias;  // grad_x is always written; the others may be null
  void* workspace;
};

// Per part of the rows (channels_last): sums in f64 and in the compute type, twice each; and five
// values a channel.
inline int64_t batch_norm_workspace_bytes(const BatchNormShape& s) {
  const int64_t parts = s.channels_last ? part_count(s.samples * s.space, s.channels * 4) : 0;
  return s.channels * (parts * 32 + 5 * 8) + 512;
}

struct BatchNormActKernels {
  void (*forward)(const Exec& exec, const BatchNormActArgs& args);
  void (*backward)(const Exec& exec, const BatchNormActBackwardArgs& args);
};

OPFUSE_KERNEL_TABLE(BatchNormActKernels, batch_norm_act)

}  // namespace opfuse::ops
