#pragma once
// add_rms_norm: sum = x + residual; y = rms_norm(sum). Both are results: a pre-norm block hands the
// sum on. Moves 4 arrays forward and 4 backward; saves the sum and the weight.

#include <cstdint>

#include "opfuse/base/dtype.h"
#include "opfuse/ops/exec.h"
#include "opfuse/ops/isa.h"
#include "opfuse/ops/parts.h"

namespace opfuse::ops {

// Rows are contiguous and without gaps. The weight is f64 for f64 and f32 for all other dtypes.
struct AddRmsNormArgs {
  DType dtype;
  int64_t rows, cols;
  const void *x, *residual;
  const void* weight;  // [cols] or null
  double eps, offset;
  bool round_before_weight;  // as in RmsNormArgs
  void *y, *sum;
};

struct AddRmsNormBackwardArgs {
  DType dtype;
  int64_t rows, cols;
  const void *grad_y, *grad_sum;  // grad_sum may be null: 0
  const void *sum, *weight;
  double eps, offset;
  void* grad_x;       // of x and of residual alike; null where not wanted
  void* grad_weight;  // [cols], of the weight's dtype; null where not wanted
  void* workspace;    // rms_norm_workspace_bytes, when grad_weight is wanted
};

struct AddRmsNormKernels {
  void (*forward)(const Exec& exec, const AddRmsNormArgs& args);
  void (*backward)(const Exec& exec, const AddRmsNormBackwardArgs& args);
};

OPFUSE_KERNEL_TABLE(AddRmsNormKernels, add_rms_norm)

}  // namespace opfuse::ops
