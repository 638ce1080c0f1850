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

// Bytes as the whole numbers of V's width, for masks.
template <class V>
OPFUSE_INLINE auto load_bytes(const uint8_t* p, Full) {
  if constexpr (sizeof(V{}[0]) == 4) {
    typedef uint8_t U8v __attribute__((vector_size(kF32Lanes)));
    return __builtin_convertvector(load_bits<U8v>(p), I32v);
  } else {
    I64v v = {};
    for (int i = 0; i < kLanesOf<I64v>; ++i) v[i] = p[i];
    return v;
  }
}
template <class V>
OPFUSE_INLINE auto load_bytes(const uint8_t* p, Part lanes) {
  uint8_t bytes[kLanesOf<V>] = {};
  std::memcpy(bytes, p, static_cast<size_t>(lanes.n));
  return load_bytes<V>(bytes, Full{});
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
