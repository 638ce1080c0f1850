#pragma once
// batch_norm_act_se: a = act(batch_norm(x)), then squeeze-and-excitation of it:
// y = a * gate(expand(hidden_act(reduce(mean of a over space)))), channels_last. Forward reads x
// twice and writes y (a is read back from cache); backward moves 5 arrays. Saves x, the statistics
// and three small matrices; neither the norm's result nor the activation's nor the gated one's.

#include <cstdint>

#include "opfuse/ops/batch_norm_act/batch_norm_act.h"

namespace opfuse::ops {

// x is [samples, space, channels]. Everything else is in the compute type: f64 for f64, else f32.
struct SqueezeShape {
  BatchNormShape norm;  // channels_last
  int64_t hidden;       // channels between the two layers
  Activation act, hidden_act;
  bool hard;  // hardsigmoid instead of sigmoid
};

struct BatchNormActSeArgs {
  SqueezeShape shape;
  double eps;
  bool measure;  // mean and var are written, else read
  const void* x;
  const void *weight, *bias;         // [channels]; null: 1 and 0
  const void *reduce, *reduce_bias;  // [hidden, channels], [hidden] or null: 0
  const void *expand, *expand_bias;  // [hidden, channels], [channels] or null: 0
  void *mean, *var;                  // [channels]; the variance is the biased one
  void *pooled, *before, *logits;    // [samples, channels], [samples, hidden] before its
                                     // activation, [samples, channels] before the gate
  void* y;                           // laid out as x
  void* workspace;                   // squeeze_workspace_bytes
};

// Backward goes in two calls: between them the caller takes grad_logits through the two layers.
struct BatchNormActSeBackwardArgs {
  SqueezeShape shape;
  double eps;
  bool training;
  const void *grad, *x, *weight, *bias, *mean, *var, *logits;
  void* grad_logits;        // [samples, channels], written by the first call
  const void* grad_pooled;  // [samples, channels], for the second: gradient of the mean, divided by
                            // space
  void *grad_x, *grad_weight, *grad_bias;  // the last two may be null
  void* workspace;                         // kept between the calls
};

// Statistics; five sums of each sample and channel; and per sample what a thread needs for one.
inline int64_t squeeze_scratch(const SqueezeShape& s) {
  return s.norm.channels * 5 + s.hidden + 16;
}
inline int64_t squeeze_workspace_bytes(const SqueezeShape& s) {
  return batch_norm_workspace_bytes(s.norm) +
         s.norm.samples * (s.norm.channels * 5 + squeeze_scratch(s)) * 8;
}

struct BatchNormActSeKernels {
  void (*forward)(const Exec& exec, const BatchNormActSeArgs& args);
  void (*backward_sums)(const Exec& exec, const BatchNormActSeBackwardArgs& args);
  void (*backward_apply)(const Exec& exec, const BatchNormActSeBackwardArgs& args);
};

OPFUSE_KERNEL_TABLE(BatchNormActSeKernels, batch_norm_act_se)

}  // namespace opfuse::ops
