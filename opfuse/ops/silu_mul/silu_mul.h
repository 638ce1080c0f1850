#pragma once
// silu_mul: out = gate * sigmoid(gate) * up, the gated activation of Llama-like models (SwiGLU).

#include "opfuse/ops/gated.h"

namespace opfuse::ops {

OPFUSE_KERNEL_TABLE(GatedKernels, silu_mul)

}  // namespace opfuse::ops
