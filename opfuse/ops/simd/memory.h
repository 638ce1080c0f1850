#pragma once
// Loads and stores between the storage types and vectors: whole vectors, and the first n lanes for
// the end of a row. Any alignment. bf16 and f16 are rounded to nearest even, as torch does; on the
// level avx512bf16 the instruction also turns f32 denormals into zero.

#include "opfuse/ops/simd/vector.h"

namespace opfuse::ops {
namespace {

OPFUSE_INLINE F32v widen_bf16(U16v bits) {
  return bits_as<F32v>(__builtin_convertvector(bits, U32v) << 16);
}

OPFUSE_INLINE U16v narrow_bf16(F32v x) {
#if defined(__AVX512BF16__)
  return (U16v)_mm512_cvtneps_pbh(x);
#else
  const U32v bits = bits_as<U32v>(x);
  const U32v rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const U32v nan = (U32v)(x != x);
  return __builtin_convertvector((rounded & ~nan) | (nan & 0x7fc0u), U16v);
#endif
}

OPFUSE_INLINE F32v widen_f16(U16v half) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps((__m256i)half);
#elif defined(__AVX2__)
  return _mm256_cvtph_ps((__m128i)half);
#else
  const U32v bits = __builtin_convertvector(half, U32v);
  const U32v exponent = (bits & 0x7c00u) << 13;
  U32v out = ((bits & 0x7fffu) << 13) + ((127u - 15u) << 23);
  out += (U32v)(exponent == (0x7c00u << 13)) & ((128u - 16u) << 23);
  const U32v tiny = (U32v)(exponent == 0u);
  const F32v shifted = bits_as<F32v>(out + (1u << 23)) - 0x1p-14f;  // denormals: normalized by this
  out = (out & ~tiny) | (bits_as<U32v>(shifted) & tiny);
  return bits_as<F32v>(out | ((bits & 0x8000u) << 16));
#endif
}

OPFUSE_INLINE U16v narrow_f16(F32v x) {
#if defined(__AVX512F__)
  return (U16v)_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__AVX2__)
  return (U16v)_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
#else
  const U32v sign = bits_as<U32v>(x) & 0x80000000u;
  const U32v magnitude = bits_as<U32v>(x) ^ sign;
  const U32v normal = (magnitude - ((127u - 15u) << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // 0.5 has the exponent at which the last bit kept is the last bit of an f16 denormal.
  const U32v tiny = bits_as<U32v>(bits_as<F32v>(magnitude) + 0.5f) - (126u << 23);
  const U32v huge = ((U32v)(magnitude > (255u << 23)) & 0x200u) | 0x7c00u;
  const U32v is_tiny = (U32v)(magnitude < (113u << 23));
  const U32v is_huge = (U32v)(magnitude >= (143u << 23));
  const U32v out = (is_tiny & tiny) | (is_huge & huge) | (~is_tiny & ~is_huge & normal);
  return __builtin_convertvector(out | (sign >> 16), U16v);
#endif
}

template <class V, class S>
OPFUSE_INLINE V load_bits(const S* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

OPFUSE_INLINE F32v load(const float* p) { return load_bits<F32v>(p); }
OPFUSE_INLINE F64v load(const double* p) { return load_bits<F64v>(p); }
OPFUSE_INLINE F32v load(const Bf16* p) { return widen_bf16(load_bits<U16v>(p)); }
OPFUSE_INLINE F32v load(const F16* p) { return widen_f16(load_bits<U16v>(p)); }

OPFUSE_INLINE void store(float* p, F32v v) { __builtin_memcpy(p, &v, sizeof v); }
OPFUSE_INLINE void store(double* p, F64v v) { __builtin_memcpy(p, &v, sizeof v); }
OPFUSE_INLINE void store(Bf16* p, F32v v) {
  const U16v bits = narrow_bf16(v);
  __builtin_memcpy(p, &bits, sizeof bits);
}
OPFUSE_INLINE void store(F16* p, F32v v) {
  const U16v bits = narrow_f16(v);
  __builtin_memcpy(p, &bits, sizeof bits);
}

// The first n lanes, 0 < n < lanes; the others are 0.
template <class S>
OPFUSE_INLINE VectorOf<S> load_n(const S* p, int64_t n) {
#if defined(__AVX512F__)
  if constexpr (sizeof(S) == 4) return _mm512_maskz_loadu_ps((1u << n) - 1u, p);
#elif defined(__AVX2__)
  if constexpr (sizeof(S) == 4) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_maskload_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane));
  }
#endif
  S lanes[kLanes<S>] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(S));
  return load(lanes);
}

template <class S>
OPFUSE_INLINE void store_n(S* p, VectorOf<S> v, int64_t n) {
#if defined(__AVX512F__)
  if constexpr (sizeof(S) == 4) return _mm512_mask_storeu_ps(p, (1u << n) - 1u, v);
#elif defined(__AVX2__)
  if constexpr (sizeof(S) == 4) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_maskstore_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane),
                               v);
  }
#endif
  S lanes[kLanes<S>];
  store(lanes, v);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(S));
}

// Past the cache; `p` must be aligned to one vector of S (is_aligned).
template <class S>
OPFUSE_INLINE void stream(S* p, VectorOf<S> v) {
#if defined(__AVX512F__)
  if constexpr (sizeof(S) == 4) return _mm512_stream_ps(p, v);
#elif defined(__AVX2__)
  if constexpr (sizeof(S) == 4) return _mm256_stream_ps(p, v);
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(S) == 2) {
    S lanes[kLanes<S>];
    store(lanes, v);
    if constexpr (kVectorBytes == 64) {
#if defined(__AVX512F__)
      __m256i bits;
      __builtin_memcpy(&bits, lanes, sizeof bits);
      return _mm256_stream_si256(reinterpret_cast<__m256i*>(p), bits);
#endif
    } else {
      __m128i bits;
      __builtin_memcpy(&bits, lanes, sizeof bits);
      return _mm_stream_si128(reinterpret_cast<__m128i*>(p), bits);
    }
  }
#endif
  store(p, v);
}

template <bool kStream, class S>
OPFUSE_INLINE void put(S* p, VectorOf<S> v) {
  if constexpr (kStream)
    stream(p, v);
  else
    store(p, v);
}

// Orders streamed stores before what other threads read.
OPFUSE_INLINE void finish_streams() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

template <class S>
OPFUSE_INLINE bool is_aligned(const S* p) {
  return reinterpret_cast<uintptr_t>(p) % (kLanes<S> * sizeof(S)) == 0;
}

OPFUSE_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }

// Calls body(i) for whole vectors of [0, n) and tail(i, lanes left) for the rest: the one place
// where the end of a row is handled.
template <int kStep, class Body, class Tail>
OPFUSE_INLINE void sweep(int64_t n, Body&& body, Tail&& tail) {
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) body(i);
  if (i < n) tail(i, n - i);
}

}  // namespace
}  // namespace opfuse::ops
