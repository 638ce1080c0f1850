#pragma once
// gelu_tanh_mul: out = gelu(gate, approximate="tanh") * up (Gemma, T5 v1.1: gated gelu_new).

#include "opfuse/ops/gated.h"

namespace opfuse::ops {

OPFUSE_KERNEL_TABLE(GatedKernels, gelu_tanh_mul)

}  // namespace opfuse::ops
