#pragma once
// A read-only window on the elements of a tensor, torch-free: what verify/ computes errors on.

#include <cstdint>
#include <vector>

#include "opfuse/base/dtype.h"

namespace opfuse {

struct TensorView {
  const void* data = nullptr;  // contiguous, row-major; owned by whoever made the view
  DType dtype = DType::kUnknown;
  std::vector<int64_t> shape;

  int64_t numel() const {
    int64_t n = 1;
    for (int64_t s : shape) n *= s;
    return n;
  }
};

}  // namespace opfuse
