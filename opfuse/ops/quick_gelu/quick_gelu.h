#pragma once
// quick_gelu: y = x * sigmoid(beta * x); beta is 1.702 in CLIP, and a parameter in some Swish
// modules (ops/swish_beta). Moves 2 arrays forward and 3 backward; saves x.

#include <cstdint>

#include "opfuse/base/dtype.h"
#include "opfuse/ops/exec.h"
#include "opfuse/ops/isa.h"
#include "opfuse/ops/parts.h"

namespace opfuse::ops {

struct QuickGeluBackwardArgs {
  DType dtype;
  int64_t n;
  double beta;
  const void *grad, *x;
  void* grad_x;       // null: not wanted
  double* grad_beta;  // one; null: not wanted
  void* workspace;    // quick_gelu_workspace_bytes, for grad_beta
};

// One sum for each part of the elements.
inline int64_t quick_gelu_workspace_bytes() { return kMaxParts * 8; }

struct QuickGeluKernels {
  void (*forward)(const Exec& exec, DType dtype, int64_t n, double beta, const void* x, void* y);
  void (*backward)(const Exec& exec, const QuickGeluBackwardArgs& args);
};

OPFUSE_KERNEL_TABLE(QuickGeluKernels, quick_gelu)

}  // namespace opfuse::ops
