#pragma once
// rope: rotary position embedding, y = x * cos + rotate(x) * sin on the first `rotary` elements of
// each row; the others pass through. rotate(x) is (-x2, x1) for halves x1, x2 ("half", Llama), or
// (-x1, x0, -x3, x2, …) ("interleaved", GPT-J). Moves 2 arrays and the tables; saves the tables
// only.

#include <array>
#include <cstdint>

#include "opfuse/base/dtype.h"
#include "opfuse/ops/exec.h"
#include "opfuse/ops/isa.h"

namespace opfuse::ops {

inline constexpr int kRopeDims = 4;

// Rows of x lie in memory one after another; row r has the index (r / …, …) in `sizes`, outermost
// first, and its tables begin at the dot product of that index with the strides.
struct RopeArgs {
  DType dtype;  // of x, cos, sin and y
  std::array<int64_t, kRopeDims> sizes, cos_strides, sin_strides;
  int64_t cols, rotary;
  const void *x, *cos, *sin;
  bool interleaved;
  bool transpose;  // the gradient: the transposed rotation
  void* y;         // laid out as x
};

struct RopeKernels {
  void (*rotate)(const Exec& exec, const RopeArgs& args);
};

OPFUSE_KERNEL_TABLE(RopeKernels, rope)

}  // namespace opfuse::ops
