#pragma once
// Gated activations: out = act(gate) * up. One set of arguments for all of them; each activation is
// an operator of its own (silu_mul, gelu_mul, gelu_tanh_mul). They move 3 arrays forward and 5
// backward, and save gate and up only.

#include <cstdint>

#include "opfuse/base/dtype.h"
#include "opfuse/ops/exec.h"
#include "opfuse/ops/isa.h"

namespace opfuse::ops {

// `rows` rows of `cols` elements each, contiguous inside a row; dtype f32, f64, bf16 or f16.
struct GatedArgs {
  DType dtype;
  int64_t rows, cols;
  const void *gate, *up;
  int64_t gate_stride, up_stride;  // elements from row to row
  void* out;                       // no gaps between rows
};

struct GatedBackwardArgs {
  DType dtype;
  int64_t rows, cols;
  const void *grad, *gate, *up;
  int64_t grad_stride, gate_stride, up_stride;
  void *grad_gate, *grad_up;  // no gaps between rows; null where not wanted
};

struct GatedKernels {
  void (*forward)(const Exec& exec, const GatedArgs& args);
  void (*backward)(const Exec& exec, const GatedBackwardArgs& args);
};

}  // namespace opfuse::ops
