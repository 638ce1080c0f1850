#pragma once
// sigmoid_gate: y = x * sigmoid(gate) with one gate per sample and channel, the last step of a
// squeeze-and-excitation block; or with hardsigmoid (MobileNetV3). Moves 2 arrays forward, 3
// backward; saves x and the gate.

#include <cstdint>

#include "opfuse/base/dtype.h"
#include "opfuse/ops/exec.h"
#include "opfuse/ops/isa.h"
#include "opfuse/ops/parts.h"

namespace opfuse::ops {

// x is [samples, channels, space] (channels_last: [samples, space, channels]) without gaps, the
// gate [samples, channels].
struct SigmoidGateArgs {
  DType dtype;
  int64_t samples, channels, space;
  bool channels_last, hard;
  const void *x, *gate;
  void* y;
  void* workspace;  // sigmoid_gate_workspace_bytes
};

struct SigmoidGateBackwardArgs {
  DType dtype;
  int64_t samples, channels, space;
  bool channels_last, hard;
  const void *grad, *x, *gate;
  void *grad_x, *grad_gate;  // null where not wanted
  void* workspace;           // sigmoid_gate_workspace_bytes
};

// Into how many parts the space of a sample is cut for the sums of the backward pass: few samples
// need parts to keep threads busy. A matter of shape alone.
inline int64_t sigmoid_gate_parts(int64_t samples, int64_t channels, int64_t space) {
  const int64_t wanted = samples >= 16 || samples == 0 ? 1 : (16 + samples - 1) / samples;
  const int64_t useful = part_count(space, channels * 4);
  return wanted < useful ? wanted : useful;
}

// Gates of all samples and, for the backward pass, sums of all parts.
inline int64_t sigmoid_gate_workspace_bytes(int64_t samples, int64_t channels, int64_t space,
                                            bool backward) {
  const int64_t parts = backward ? sigmoid_gate_parts(samples, channels, space) : 0;
  return samples * channels * 8 * (1 + 2 * parts);
}

struct SigmoidGateKernels {
  void (*forward)(const Exec& exec, const SigmoidGateArgs& args);
  void (*backward)(const Exec& exec, const SigmoidGateBackwardArgs& args);
};

OPFUSE_KERNEL_TABLE(SigmoidGateKernels, sigmoid_gate)

}  // namespace opfuse::ops
