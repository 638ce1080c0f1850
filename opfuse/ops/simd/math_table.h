#pragma once
// The functions of simd/math.h on arrays, for their accuracy test.

#include <cstdint>

#include "opfuse/ops/isa.h"

namespace opfuse::ops {

// y[i] = f(x[i]), i < n.
using MathFn = void (*)(const float* x, float* y, int64_t n);

struct MathKernels {
  MathFn exp, log, tanh, erf, rsqrt, sigmoid, silu;
  MathFn round_bf16, round_f16;  // to the type and back
};

OPFUSE_KERNEL_TABLE(MathKernels, math)

}  // namespace opfuse::ops
