#pragma once
// Generated inputs of a site proof: values that formulas get wrong (both signs, log-spaced, zeros,
// infinities, NaN, denormals, the dtype's largest) with cotangents from 1e-30 to 1e30, and layouts
// that kernels get wrong (sizes 0 and 1, strided, expanded, channels_last).

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace opfuse::torch_bridge {

struct GeneratedCase {
  std::string name;  // "special values", "strided"
  at::Tensor x, cotangent;
};

// The cotangent has the shape of x. Pairs whose product leaves fp64's own range are left out: there
// the truth itself would overflow.
std::vector<GeneratedCase> generate_cases(c10::ScalarType dtype);

}  // namespace opfuse::torch_bridge
