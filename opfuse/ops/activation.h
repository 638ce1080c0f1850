#pragma once
// Activations that are fused into a norm, as torch defines them.

namespace opfuse::ops {

enum class Activation {
  kNone,
  kSilu,
  kRelu,
  kRelu6,
  kHardswish,  // z clamp(z + 3, 0, 6) / 6
  kGelu,       // z (1 + erf(z / sqrt(2))) / 2
};

}  // namespace opfuse::ops
