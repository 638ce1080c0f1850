#pragma once
// rms_norm: y = x / sqrt(mean(x^2) + eps) * (offset + weight), the mean over the last dimension.
// Forward reads a row once from memory; backward recomputes the root from x, so that x and the
// weight are all that is saved.

#include <cstdint>

#include "opfuse/base/dtype.h"
#include "opfuse/ops/exec.h"
#include "opfuse/ops/isa.h"
#include "opfuse/ops/parts.h"

namespace opfuse::ops {

// Rows are contiguous and without gaps. The weight is f64 for f64 and f32 for all other dtypes.
struct RmsNormArgs {
  DType dtype;
  int64_t rows, cols;
  const void* x;
  const void* weight;  // [cols], null: 1 - offset
  double eps, offset;
  bool round_before_weight;  // x / root is rounded to the dtype before it is multiplied (Llama)
  void* y;
};

struct RmsNormBackwardArgs {
  DType dtype;
  int64_t rows, cols;
  const void *grad, *x, *weight;
  double eps, offset;
  void* grad_x;       // null where not wanted
  void* grad_weight;  // [cols], of the weight's dtype; null where not wanted
  void* workspace;    // rms_norm_workspace_bytes, when grad_weight is wanted
};

inline int64_t rms_norm_workspace_bytes(DType dtype, int64_t rows, int64_t cols) {
  const int64_t scalar = dtype == DType::kF64 ? 8 : 4;
  return part_count(rows, cols * scalar) * cols * scalar;
}

struct RmsNormKernels {
  void (*forward)(const Exec& exec, const RmsNormArgs& args);
  void (*backward)(const Exec& exec, const RmsNormBackwardArgs& args);
};

OPFUSE_KERNEL_TABLE(RmsNormKernels, rms_norm)

}  // namespace opfuse::ops
