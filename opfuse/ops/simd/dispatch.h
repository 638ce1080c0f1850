#pragma once
// From the dtype of the arguments to a storage type of simd/vector.h.

#include "opfuse/base/dtype.h"
#include "opfuse/ops/simd/memory.h"

namespace opfuse::ops {
namespace {

// Calls f(S{}) with the storage type of `dtype`; operators check beforehand that it is one of them.
template <class F>
OPFUSE_INLINE void with_storage(DType dtype, F&& f) {
  if (dtype == DType::kF32)
    f(float{});
  else if (dtype == DType::kBF16)
    f(Bf16{});
  else if (dtype == DType::kF16)
    f(F16{});
  else
    f(double{});
}

template <class S>
OPFUSE_INLINE const S* in(const void* p) {
  return static_cast<const S*>(p);
}
template <class S>
OPFUSE_INLINE S* out(void* p) {
  return static_cast<S*>(p);
}

// f(std::true_type-like constant) for a run-time choice: a loop is compiled for both.
template <bool kValue>
struct Constant {
  static constexpr bool value = kValue;
};
template <class F>
OPFUSE_INLINE void with_choice(bool choice, F&& f) {
  if (choice)
    f(Constant<true>{});
  else
    f(Constant<false>{});
}

}  // namespace
}  // namespace opfuse::ops
