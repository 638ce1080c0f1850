#pragma once
// Loops whose body is written once for whole vectors and for the end of a row: it gets Full or Part
// and hands it to every load and store.

#include "opfuse/ops/simd/memory.h"

namespace opfuse::ops {
namespace {

struct Full {};
struct Part {
  int64_t n;  // lanes in use
};

template <class S>
OPFUSE_INLINE VectorOf<S> load(const S* p, Full) {
  return load(p);
}
template <class S>
OPFUSE_INLINE VectorOf<S> load(const S* p, Part lanes) {
  return load_n(p, lanes.n);
}
template <class S>
OPFUSE_INLINE void store(S* p, VectorOf<S> v, Full) {
  store(p, v);
}
template <class S>
OPFUSE_INLINE void store(S* p, VectorOf<S> v, Part lanes) {
  store_n(p, v, lanes.n);
}
template <bool kStream, class S>
OPFUSE_INLINE void put(S* p, VectorOf<S> v, Full) {
  put<kStream>(p, v);
}
template <bool kStream, class S>
OPFUSE_INLINE void put(S* p, VectorOf<S> v, Part lanes) {
  store_n(p, v, lanes.n);
}

// body(i, Full or Part) over [0, n).
template <class S, class Body>
OPFUSE_INLINE void sweep_lanes(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes<S> <= n; i += kLanes<S>) body(i, Full{});
  if (i < n) body(i, Part{n - i});
}

}  // namespace
}  // namespace opfuse::ops
