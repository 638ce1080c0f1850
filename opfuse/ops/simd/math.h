#pragma once
// exp, log, tanh, erf, rsqrt and the activations built from them, on vectors. Bounds in units in
// the last place of f32 (ulp), measured over all f32 by math_test.cc (a stride of them in the quick
// test):
//   exp 1.2   log 1.0   tanh 1.6   erf 1.3   rsqrt 1.6   sigmoid 2.6   silu 3.0
// f64 goes through the C library, lane by lane: it exists for checks.
//
// Polynomials: exp, minimax of degree 6 on |r| <= ln2/2 (fitted by weighted least squares
// to 1.6e-8); tanh and log, Cephes (S. Moshier, netlib.org/cephes, tanhf.c and logf.c); erf, N.
// Juffa's two ranges (stackoverflow.com/a/35148199).

#include "opfuse/ops/simd/vector.h"

namespace opfuse::ops {
namespace {

template <class F>
OPFUSE_INLINE F64v each(F64v x, F f) {
  for (int i = 0; i < kLanesOf<F64v>; ++i) x[i] = f(x[i]);
  return x;
}

// 2^n times x, -151 <= n <= 128, in two factors so that denormals and infinity come out.
OPFUSE_INLINE F32v scale_by_power(F32v x, I32v n) {
#if defined(__AVX512F__)
  return _mm512_scalef_ps(x, _mm512_cvtepi32_ps((__m512i)n));
#else
  const I32v half = n >> 1;
  const F32v first = bits_as<F32v>((half + 127) << 23);
  const F32v second = bits_as<F32v>((n - half + 127) << 23);
  return x * first * second;
#endif
}

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLn2High = 0x1.62e4p-1f;  // 14 bits: n times it is exact
constexpr float kLn2Low = static_cast<float>(0.69314718055994530942 - 0x1.62e4p-1);
constexpr float kMagic = 0x1.8p23f;  // adding it rounds to an integer, found in the low bits

// exp(r), |r| <= ln2/2, times `factor`.
template <int kFactor = 1>
OPFUSE_INLINE F32v exp_reduced(F32v r) {
  constexpr float f = kFactor;
  F32v p = splat<F32v>(f * 0x1.6a244cp-10f);
  p = fma(p, r, splat<F32v>(f * 0x1.1239d4p-7f));
  p = fma(p, r, splat<F32v>(f * 0x1.5558f2p-5f));
  p = fma(p, r, splat<F32v>(f * 0x1.555492p-3f));
  p = fma(p, r, splat<F32v>(f * 0x1.fffffcp-2f));
  p = fma(p, r, splat<F32v>(f));
  return fma(p, r, splat<F32v>(f));
}

OPFUSE_INLINE F32v exp(F32v x) {
  x = at_most(splat<F32v>(89.0f), at_least(splat<F32v>(-104.0f), x));
  const F32v shifted = fma(x, splat<F32v>(kLog2E), splat<F32v>(kMagic));
  const F32v n = shifted - kMagic;
  const F32v r = fma(n, splat<F32v>(-kLn2Low), fma(n, splat<F32v>(-kLn2High), x));
  const I32v power = bits_as<I32v>(shifted) - bits_as<I32v>(splat<F32v>(kMagic));
  return scale_by_power(exp_reduced(r), power);
}
OPFUSE_INLINE F64v exp(F64v x) {
  return each(x, [](double v) { return __builtin_exp(v); });
}

// exp(-x) for use in 1 + exp(-x): infinite where exp(-x) overflows, and 0 for x > 87.
OPFUSE_INLINE F32v exp_negated(F32v x) {
  const F32v bounded = at_most(splat<F32v>(87.0f), at_least(splat<F32v>(-89.0f), x));
  const F32v shifted = fma(bounded, splat<F32v>(-kLog2E), splat<F32v>(kMagic));
  const F32v n = shifted - kMagic;
  const F32v r = fma(n, splat<F32v>(-kLn2Low), fma(n, splat<F32v>(-kLn2High), -bounded));
  // The factor 2 is in the polynomial, so that 2^(n-1) stays a normal number up to n = 128.
  const F32v power = bits_as<F32v>((bits_as<I32v>(shifted) << 23) + (126 << 23));
  return exp_reduced<2>(r) * power;
}
OPFUSE_INLINE F64v exp_negated(F64v x) { return exp(-x); }

template <class V>
OPFUSE_INLINE V rsqrt(V x) {
  return splat<V>(1) / sqrt(x);
}

template <class V>
OPFUSE_INLINE V sigmoid(V x) {
  return splat<V>(1) / (exp_negated(x) + splat<V>(1));
}

// x * sigmoid(x): NaN at -infinity, as x / (1 + exp(-x)) is.
template <class V>
OPFUSE_INLINE V silu(V x) {
  return x / (exp_negated(x) + splat<V>(1));
}

// sigmoid(x) and 1 - sigmoid(x) = e * sigmoid(x), without cancellation.
template <class V>
OPFUSE_INLINE V sigmoid_pair(V x, V* complement) {
  const V e = exp_negated(x);
  const V s = splat<V>(1) / (e + splat<V>(1));
  // 0 * infinity is not wanted: where e overflows, s is 0.
  *complement = at_most(splat<V>(sizeof(V{}[0]) == 8 ? 1.7e308 : 3.4e38), e) * s;
  return s;
}

// The derivative of silu, s * (1 + x * (1 - s)); the value s through `sigmoid_out`.
template <class V>
OPFUSE_INLINE V silu_slope(V x, V* sigmoid_out) {
  V complement;
  const V s = sigmoid_pair(x, &complement);
  *sigmoid_out = s;
  return s * fma(x, complement, splat<V>(1));
}

OPFUSE_INLINE F32v tanh(F32v x) {
  const F32v a = abs(x);
  const F32v z = x * x;
  F32v p = splat<F32v>(-5.70498872745e-3f);
  p = fma(p, z, splat<F32v>(2.06390887954e-2f));
  p = fma(p, z, splat<F32v>(-5.37397155531e-2f));
  p = fma(p, z, splat<F32v>(1.33314422036e-1f));
  p = fma(p, z, splat<F32v>(-3.33332819422e-1f));
  const F32v small = fma(p * z, x, x);
  const F32v e = exp_negated(at_most(splat<F32v>(40.0f), a) * -2.0f);  // exp(2|x|)
  const F32v large = with_sign(1.0f - 2.0f / (e + 1.0f), x);
  return a < 0.625f ? small : large;
}
OPFUSE_INLINE F64v tanh(F64v x) {
  return each(x, [](double v) { return __builtin_tanh(v); });
}

OPFUSE_INLINE F32v erf(F32v x) {
  const F32v t = abs(x);
  const F32v s = x * x;
  F32v r = fma(splat<F32v>(-1.72853470e-5f), t, splat<F32v>(3.83197126e-4f));
  const F32v u = fma(splat<F32v>(-3.88396438e-3f), t, splat<F32v>(2.42546219e-2f));
  r = fma(r, s, u);
  r = fma(r, t, splat<F32v>(-1.06777877e-1f));
  r = fma(r, t, splat<F32v>(-6.34846687e-1f));
  r = fma(r, t, splat<F32v>(-1.28717512e-1f));
  r = fma(r, t, -t);
  const F32v large = with_sign(1.0f - exp(r), x);
  F32v q = splat<F32v>(-5.96761703e-4f);
  q = fma(q, s, splat<F32v>(4.99119423e-3f));
  q = fma(q, s, splat<F32v>(-2.67681349e-2f));
  q = fma(q, s, splat<F32v>(1.12819925e-1f));
  q = fma(q, s, splat<F32v>(-3.76125336e-1f));
  q = fma(q, s, splat<F32v>(1.28379166e-1f));
  const F32v small = fma(q, x, x);
  return t > 0.921875f ? large : small;
}
OPFUSE_INLINE F64v erf(F64v x) {
  return each(x, [](double v) { return __builtin_erf(v); });
}

// The normal distribution: P(X <= x) and its density.
template <class V>
OPFUSE_INLINE V normal_cdf(V x) {
  return splat<V>(0.5) * (erf(x * splat<V>(0.70710678118654752)) + splat<V>(1));
}
template <class V>
OPFUSE_INLINE V normal_pdf(V x) {
  return splat<V>(0.39894228040143268) * exp(splat<V>(-0.5) * x * x);
}

OPFUSE_INLINE F32v log(F32v x) {
  const F32v scaled = x < 0x1p-126f ? x * 0x1p23f : x;  // denormals
  const I32v bits = bits_as<I32v>(scaled);
  // The exponent at which the mantissa falls into [sqrt(1/2), sqrt(2)).
  const I32v power = (bits - 0x3f3504f3) >> 23;
  const F32v m = bits_as<F32v>(bits - (power << 23)) - 1.0f;
  const F32v n = __builtin_convertvector(power, F32v) - (x < 0x1p-126f ? splat<F32v>(23) : F32v{});
  const F32v z = m * m;
  F32v p = splat<F32v>(7.0376836292e-2f);
  p = fma(p, m, splat<F32v>(-1.1514610310e-1f));
  p = fma(p, m, splat<F32v>(1.1676998740e-1f));
  p = fma(p, m, splat<F32v>(-1.2420140846e-1f));
  p = fma(p, m, splat<F32v>(1.4249322787e-1f));
  p = fma(p, m, splat<F32v>(-1.6668057665e-1f));
  p = fma(p, m, splat<F32v>(2.0000714765e-1f));
  p = fma(p, m, splat<F32v>(-2.4999993993e-1f));
  p = fma(p, m, splat<F32v>(3.3333331174e-1f));
  F32v y = fma(n, splat<F32v>(-2.12194440e-4f), p * m * z);
  y = fma(z, splat<F32v>(-0.5f), y);
  y = fma(n, splat<F32v>(0.693359375f), m + y);
  const F32v infinity = splat<F32v>(__builtin_inff());
  y = x == infinity ? infinity : y;
  y = x == 0.0f ? -infinity : y;
  return x >= 0.0f ? y : splat<F32v>(__builtin_nanf(""));
}
OPFUSE_INLINE F64v log(F64v x) {
  return each(x, [](double v) { return __builtin_log(v); });
}

}  // namespace
}  // namespace opfuse::ops
