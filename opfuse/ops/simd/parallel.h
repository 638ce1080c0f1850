#pragma once
// Loops over threads. What a loop adds up must not depend on how it was split: see ops/parts.h.

#include "opfuse/ops/exec.h"
#include "opfuse/ops/simd/vector.h"

namespace opfuse::ops {
namespace {

// f(begin, end) on pieces of [0, count), of at least `grain` items.
template <class F>
OPFUSE_INLINE void parallel(const Exec& exec, int64_t count, int64_t grain, const F& f) {
  if (count <= 0) return;
  if (!exec.parallel_for || count <= grain) {
    f(int64_t{0}, count);
    return;
  }
  exec.parallel_for(
      count, grain,
      [](int64_t begin, int64_t end, void* context) {
        (*static_cast<const F*>(context))(begin, end);
      },
      const_cast<F*>(&f));
}

}  // namespace
}  // namespace opfuse::ops
