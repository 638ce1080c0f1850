#pragma once
// Inputs that the captured ones may lack.

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace opfuse::torch_bridge {

struct GeneratedCase {
  std::string name;  // "special values", "channels_last"
  std::vector<at::Tensor> inputs;
  at::Tensor cotangent;
};

// For a pointwise chain of `inputs` tensors of one shape and dtype. Both signs, log-spaced, zeros,
// infinities, NaN, denormals, the dtype's largest, cotangents from 1e-30 to 1e30; sizes 0 and 1;
// strides, channels_last, an odd offset, expanded.
// `finite`: without infinities and what is beyond the root of the dtype's largest, in f16 an
// eighth.
std::vector<GeneratedCase> generate_cases(c10::ScalarType dtype, size_t inputs = 1,
                                          bool finite = false);

// For any chain, in given shapes and layouts: small, ordinary and large values, rows of different
// size, equal values, infinities and NaN. `tensors` are the inputs (undefined where absent) and
// with `has_cotangent` the cotangent. Floating ones are made in `dtype`; others are those of
// `whole_numbers`.
std::vector<GeneratedCase> generate_like(const std::vector<at::Tensor>& tensors,
                                         const std::vector<at::Tensor>& whole_numbers,
                                         bool has_cotangent, c10::ScalarType dtype,
                                         bool finite = false);

}  // namespace opfuse::torch_bridge
