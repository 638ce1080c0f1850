#pragma once
// scale_mask_softmax: y = softmax(mask(x scale)) over the last dimension, with a mask that is added
// or one that says which scores take part, and the causal one. Moves 2 arrays forward and 3
// backward, besides the mask; saves y and which scores take part.

#include <cstdint>

#include "opfuse/base/dtype.h"
#include "opfuse/ops/exec.h"
#include "opfuse/ops/isa.h"

namespace opfuse::ops {

inline constexpr int kMaskDims = 8;

// A mask that is broadcast over the rows of x: rows are counted by the sizes, last one fastest.
struct RowMask {
  const void* data = nullptr;      // null: none
  bool additive = false;           // of x's dtype, added; otherwise bytes, 0: the score is `fill`
  int dims = 0;                    // of x without the last one
  int64_t size[kMaskDims] = {};    // of x
  int64_t stride[kMaskDims] = {};  // of the mask, in elements; 0 where it is broadcast
};

// Rows are contiguous and without gaps. The mask's rows are contiguous inside.
struct ScaleMaskSoftmaxArgs {
  DType dtype;
  int64_t rows, cols;
  int64_t queries;  // causal: row r sees the columns up to r % queries; 0: not causal
  const void* x;
  RowMask mask;
  double scale, fill;  // fill: the score of what does not take part
  void* y;
};

struct ScaleMaskSoftmaxBackwardArgs {
  DType dtype;
  int64_t rows, cols, queries;
  const void *grad, *y;
  RowMask mask;  // not an additive one
  double scale;
  void* grad_x;
};

struct ScaleMaskSoftmaxKernels {
  void (*forward)(const Exec& exec, const ScaleMaskSoftmaxArgs& args);
  void (*backward)(const Exec& exec, const ScaleMaskSoftmaxBackwardArgs& args);
};

OPFUSE_KERNEL_TABLE(ScaleMaskSoftmaxKernels, scale_mask_softmax)

}  // namespace opfuse::ops
