#pragma once
// dropout_add_layer_norm: sum = x * noise + residual; y = layer_norm(sum). Both are results: a
// pre-norm block hands the sum on. The noise, 0 or 1 / (1 - p), is an input, so that whoever calls
// draws it as dropout does; without it, add_layer_norm. Moves 5 arrays forward and 6 backward (4
// and 4 without noise); saves the sum, the noise and the parameters.

#include <cstdint>

#include "opfuse/base/dtype.h"
#include "opfuse/ops/exec.h"
#include "opfuse/ops/isa.h"
#include "opfuse/ops/parts.h"

namespace opfuse::ops {

// Rows are contiguous and without gaps. Parameters are f64 for f64 and f32 for all other dtypes.
struct DropoutAddLayerNormArgs {
  DType dtype;
  int64_t rows, cols;
  const void *x, *residual;
  const void* noise;          // as x; null: 1
  const void *weight, *bias;  // [cols]; null: 1 and 0
  double eps;
  void *y, *sum;
};

struct DropoutAddLayerNormBackwardArgs {
  DType dtype;
  int64_t rows, cols;
  const void *grad_y, *grad_sum;  // grad_sum may be null: 0
  const void *sum, *noise, *weight;
  double eps;
  void *grad_x, *grad_residual;   // null where not wanted
  void *grad_weight, *grad_bias;  // [cols], of the weight's dtype; null where not wanted
  void* workspace;                // layer_norm_workspace_bytes
};

// Two rows for each part of the rows.
inline int64_t layer_norm_workspace_bytes(int64_t rows, int64_t cols) {
  return part_count(rows, cols * 8) * cols * 2 * 8;
}

struct DropoutAddLayerNormKernels {
  void (*forward)(const Exec& exec, const DropoutAddLayerNormArgs& args);
  void (*backward)(const Exec& exec, const DropoutAddLayerNormBackwardArgs& args);
};

OPFUSE_KERNEL_TABLE(DropoutAddLayerNormKernels, dropout_add_layer_norm)

}  // namespace opfuse::ops
