#pragma once
// silu_mul: out = gate * sigmoid(gate) * up, the gated activation of Llama-like models (SwiGLU).
// Moves 3 arrays forward and 5 backward; saves gate and up only.

#include <cstdint>

#include "opfuse/base/dtype.h"
#include "opfuse/ops/exec.h"
#include "opfuse/ops/isa.h"

namespace opfuse::ops {

// `rows` rows of `cols` elements each, contiguous inside a row; dtype f32, f64, bf16 or f16.
struct SiluMulArgs {
  DType dtype;
  int64_t rows, cols;
  const void *gate, *up;
  int64_t gate_stride, up_stride;  // elements from row to row
  void* out;                       // no gaps between rows
};

struct SiluMulBackwardArgs {
  DType dtype;
  int64_t rows, cols;
  const void *grad, *gate, *up;
  int64_t grad_stride, gate_stride, up_stride;
  void *grad_gate, *grad_up;  // no gaps between rows; null where not wanted
};

struct SiluMulKernels {
  void (*forward)(const Exec& exec, const SiluMulArgs& args);
  void (*backward)(const Exec& exec, const SiluMulBackwardArgs& args);
};

OPFUSE_KERNEL_TABLE(SiluMulKernels, silu_mul)

}  // namespace opfuse::ops
