#pragma once
// Vectors of one register, for kernel texts only: such a text is compiled once per instruction set
// level (opfuse/ops/isa.h), so everything here is inline in an unnamed namespace, and nothing of
// the standard library's templates may be used: a copy made for AVX-512 could otherwise be linked
// into code that runs without it (tools/check_isa_objects.py).
//
// Storage types float, double, Bf16 and F16 are loaded into and stored from vectors of their
// compute type, float for all but double. Vectors are the compiler's own: +, -, *, /, comparisons
// and ?: work.

#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define OPFUSE_INLINE inline __attribute__((always_inline))

namespace opfuse::ops {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int kF32Lanes = kVectorBytes / 4;

typedef float F32v __attribute__((vector_size(kVectorBytes)));
typedef double F64v __attribute__((vector_size(kVectorBytes)));
typedef int32_t I32v __attribute__((vector_size(kVectorBytes)));
typedef uint32_t U32v __attribute__((vector_size(kVectorBytes)));
typedef int64_t I64v __attribute__((vector_size(kVectorBytes)));
typedef uint16_t U16v __attribute__((vector_size(kVectorBytes / 2)));

// The compute type and vector of a storage type.
template <class S>
struct TypeOf {
  using Scalar = float;
  using Vector = F32v;
};
template <>
struct TypeOf<double> {
  using Scalar = double;
  using Vector = F64v;
};
template <class S>
using ScalarOf = typename TypeOf<S>::Scalar;
template <class S>
using VectorOf = typename TypeOf<S>::Vector;

template <class V>
constexpr int kLanesOf = kVectorBytes / static_cast<int>(sizeof(V{}[0]));
// Elements of storage type S in one vector.
template <class S>
constexpr int kLanes = kLanesOf<VectorOf<S>>;

template <class To, class From>
OPFUSE_INLINE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  return (To)from;
}

template <class V>
OPFUSE_INLINE V splat(double value) {
  return V{} + static_cast<decltype(V{}[0] + 0)>(value);
}
template <>
OPFUSE_INLINE F32v splat<F32v>(double value) {
#if defined(__AVX512F__)
  return _mm512_set1_ps(static_cast<float>(value));
#elif defined(__AVX2__)
  return _mm256_set1_ps(static_cast<float>(value));
#else
  return F32v{} + static_cast<float>(value);
#endif
}

// a*b + c, in one rounding where the level has FMA (-ffp-contract=fast).
template <class V>
OPFUSE_INLINE V fma(V a, V b, V c) {
  return a * b + c;
}

// Like the x86 instructions: the second operand when one is NaN. So at_least(bound, x) keeps NaN.
OPFUSE_INLINE F32v at_least(F32v bound, F32v x) {
#if defined(__AVX512F__)
  return _mm512_max_ps(bound, x);
#elif defined(__AVX2__)
  return _mm256_max_ps(bound, x);
#else
  return bound > x ? bound : x;
#endif
}
OPFUSE_INLINE F32v at_most(F32v bound, F32v x) {
#if defined(__AVX512F__)
  return _mm512_min_ps(bound, x);
#elif defined(__AVX2__)
  return _mm256_min_ps(bound, x);
#else
  return bound < x ? bound : x;
#endif
}
OPFUSE_INLINE F64v at_least(F64v bound, F64v x) { return bound > x ? bound : x; }
OPFUSE_INLINE F64v at_most(F64v bound, F64v x) { return bound < x ? bound : x; }

OPFUSE_INLINE F32v abs(F32v x) { return bits_as<F32v>(bits_as<U32v>(x) & 0x7fffffffu); }
OPFUSE_INLINE F64v abs(F64v x) { return bits_as<F64v>(bits_as<I64v>(x) & INT64_MAX); }
// |x| with the sign of `sign`.
OPFUSE_INLINE F32v with_sign(F32v x, F32v sign) {
  return bits_as<F32v>((bits_as<U32v>(x) & 0x7fffffffu) | (bits_as<U32v>(sign) & 0x80000000u));
}

OPFUSE_INLINE F32v sqrt(F32v x) {
#if defined(__AVX512F__)
  return _mm512_sqrt_ps(x);
#elif defined(__AVX2__)
  return _mm256_sqrt_ps(x);
#else
  F32v y;
  for (int i = 0; i < kF32Lanes; ++i) y[i] = __builtin_sqrtf(x[i]);
  return y;
#endif
}
OPFUSE_INLINE F64v sqrt(F64v x) {
  F64v y;
  for (int i = 0; i < kLanesOf<F64v>; ++i) y[i] = __builtin_sqrt(x[i]);
  return y;
}

// Sum of the lanes, in an order that does not depend on anything but the lane count.
template <class V>
OPFUSE_INLINE auto lane_sum(V v) {
  auto sum = v[0] - v[0];
  alignas(kVectorBytes) decltype(sum) lanes[kLanesOf<V>];
  std::memcpy(lanes, &v, sizeof v);
  for (int width = kLanesOf<V> / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  sum = lanes[0];
  return sum;
}

constexpr int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace
}  // namespace opfuse::ops
