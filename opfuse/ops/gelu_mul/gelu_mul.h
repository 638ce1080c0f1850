#pragma once
// gelu_mul: out = gelu(gate) * up, with the error function (GEGLU of diffusion and T5-like models).

#include "opfuse/ops/gated.h"

namespace opfuse::ops {

OPFUSE_KERNEL_TABLE(GatedKernels, gelu_mul)

}  // namespace opfuse::ops
