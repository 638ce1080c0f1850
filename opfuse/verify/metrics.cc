#include "opfuse/verify/metrics.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "opfuse/base/check.h"

namespace opfuse::verify {
namespace {

constexpr int kLanes = 8;         // independent maxima, so that the loops vectorise
constexpr int64_t kBlock = 1024;  // the worst element's index is searched only in a new worst block
constexpr double kMax = std::numeric_limits<double>::max();

struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};

inline double load(double x) { return x; }
inline double load(float x) { return x; }
inline double load(Brain x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
inline double load(Half x) {
  const uint32_t sign = uint32_t{x.bits & 0x8000u} << 16;
  const uint32_t rest = x.bits & 0x7fffu;
  // The exponent is rebased by a multiplication, which also normalises denormals.
  float value = std::bit_cast<float>(rest << 13) * 0x1p112f;
  if (rest >= 0x7c00u) value = std::bit_cast<float>(0x7f800000u | (rest & 0x3ffu) << 13);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}
template <class T>
  requires std::is_integral_v<T>
inline double load(T x) {
  return static_cast<double>(x);
}

// Calls f with a typed pointer to the elements of a view.
template <class F>
void with_elements(const TensorView& view, F f) {
  switch (view.dtype) {
    case DType::kF64:
      return f(static_cast<const double*>(view.data));
    case DType::kF32:
      return f(static_cast<const float*>(view.data));
    case DType::kBF16:
      return f(static_cast<const Brain*>(view.data));
    case DType::kF16:
      return f(static_cast<const Half*>(view.data));
    case DType::kI64:
      return f(static_cast<const int64_t*>(view.data));
    case DType::kI32:
      return f(static_cast<const int32_t*>(view.data));
    case DType::kI16:
      return f(static_cast<const int16_t*>(view.data));
    case DType::kI8:
      return f(static_cast<const int8_t*>(view.data));
    case DType::kU8:
    case DType::kBool:
      return f(static_cast<const uint8_t*>(view.data));
    default:
      OPFUSE_CHECK(false, "elements of this dtype cannot be compared");
  }
}

// Roundoff, the magnitude below which errors are absolute, largest finite number. Intermediates may
// underflow in one order of the factors and not in another, and are then scaled up by later ones:
// hence 2^10 times the smallest normal number. f16 is computed in f32, where nothing underflows.
struct Range {
  double unit, smallest, largest;
};

Range range_of(DType dtype) {
  const double u = unit_roundoff(dtype);
  switch (dtype) {
    case DType::kF16:
      return {u, 0x1p-14, 65504.0};
    case DType::kBF16:
      return {u, 0x1p-116, 0x1.fep127};
    case DType::kF32:
      return {u, 0x1p-116, std::numeric_limits<float>::max()};
    case DType::kF64:
      return {u, 0x1p-1012, kMax};
    default:
      OPFUSE_CHECK(false, "accuracy is defined for floating dtypes");
  }
}

inline bool differ_beyond_finite(double a, double b) {
  const bool finite = std::abs(a) <= kMax && std::abs(b) <= kMax;
  return !finite && !(a == b) && !(a != a && b != b);
}

template <int N>
using Maxima = std::array<std::array<double, kLanes>, N>;

// Runs `measure(i, out)` over [0, n), where out[k] >= 0 are N quantities; keeps their maxima in
// `worst` and calls improved(k, i) when quantity k has a new worst element.
template <int N, class Measure, class Improved>
void scan(int64_t n, std::array<double*, N> worst, Measure measure, Improved improved) {
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    Maxima<N> maxima{};
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        double values[N];
        measure(i + lane, values);
        for (int k = 0; k < N; ++k)
          maxima[k][lane] = values[k] > maxima[k][lane] ? values[k] : maxima[k][lane];
      }
    }
    for (; i < end; ++i) {
      double values[N];
      measure(i, values);
      for (int k = 0; k < N; ++k) maxima[k][0] = std::max(maxima[k][0], values[k]);
    }
    for (int k = 0; k < N; ++k) {
      const double block = *std::max_element(maxima[k].begin(), maxima[k].end());
      if (!(block > *worst[k])) continue;
      *worst[k] = block;
      for (int64_t j = begin; j < end; ++j) {
        double values[N];
        measure(j, values);
        if (values[k] == block) {
          improved(k, j);
          break;
        }
      }
    }
  }
}

template <class T>
void accuracy(const double* truth, const T* old_value, const T* new_value, const double* magnitude,
              int64_t n, int64_t base, const Range& range, Comparison* into) {
  const double border = 8 * range.unit;
  int64_t odd = 0, first_odd = -1;
  const auto measure = [&](int64_t i, double* out) {
    const double t = truth[i], a = load(old_value[i]), b = load(new_value[i]);
    const bool finite = std::abs(t) <= kMax && std::abs(b) <= kMax;
    const bool finite_old = std::abs(a) <= kMax;
    const double scale =
        range.unit * (magnitude[i] > range.smallest ? magnitude[i] : range.smallest);
    // An old value that overflowed on its way allows the new one no error beyond roundoff.
    const double error_old = finite_old ? std::abs(a - t) : 0, error_new = std::abs(b - t);
    out[0] = finite ? error_old : 0;
    out[1] = finite ? error_new : 0;
    out[2] = finite ? (error_new - 2 * error_old) / scale : 0;
    out[3] = finite && magnitude[i] <= kMax ? magnitude[i] : 0;
  };
  std::array<double*, 4> worst = {&into->error.error_old, &into->error.error_new,
                                  &into->error.excess, &into->magnitude};
  scan<4>(n, worst, measure, [&](int k, int64_t i) {
    if (k == 2) into->accuracy = {base + i, truth[i], load(new_value[i])};
  });
  for (int64_t i = 0; i < n; ++i) {
    const double t = std::abs(truth[i]), a = load(old_value[i]), b = load(new_value[i]);
    if (!differ_beyond_finite(a, b)) continue;
    if (std::abs(t / range.largest - 1) <= border) continue;
    if (t <= kMax && std::abs(b) <= kMax) {
      ++into->error.mended;
      continue;
    }
    if (odd++ == 0) first_odd = i;
  }
  if (odd != 0 && into->error.nonfinite_differences == 0)
    into->nonfinite = {base + first_odd, load(old_value[first_odd]), load(new_value[first_odd])};
  into->error.nonfinite_differences += odd;
}

}  // namespace

void compare_function(const TensorView& truth, const TensorView& rule, const TensorView& magnitude,
                      int64_t base, Comparison* into) {
  OPFUSE_CHECK(
      truth.dtype == DType::kF64 && rule.dtype == DType::kF64 && magnitude.dtype == DType::kF64,
      "truth, rule and magnitude are f64");
  const int64_t n = truth.numel();
  OPFUSE_CHECK(rule.numel() == n && magnitude.numel() == n, "equal element counts");
  const auto* t = static_cast<const double*>(truth.data);
  const auto* r = static_cast<const double*>(rule.data);
  const auto* s = static_cast<const double*>(magnitude.data);
  constexpr double kSmallest = std::numeric_limits<double>::min();
  const auto measure = [&](int64_t i, double* out) {
    const bool finite = std::abs(t[i]) <= kMax && std::abs(r[i]) <= kMax;
    const double scale = s[i] > kSmallest ? s[i] : kSmallest;
    out[0] = finite ? std::abs(t[i] - r[i]) / scale : 0;
  };
  scan<1>(n, {&into->error.same_function}, measure,
          [&](int, int64_t i) { into->function = {base + i, t[i], r[i]}; });
  int64_t odd = 0, first_odd = -1;
  for (int64_t i = 0; i < n; ++i) {
    if (differ_beyond_finite(t[i], r[i]) && odd++ == 0) first_odd = i;
  }
  if (odd != 0 && into->error.nonfinite_differences == 0)
    into->nonfinite = {base + first_odd, t[first_odd], r[first_odd]};
  into->error.nonfinite_differences += odd;
  into->error.elements += n;
}

void compare_accuracy(const TensorView& truth, const TensorView& old_value,
                      const TensorView& new_value, const TensorView& magnitude, int64_t base,
                      Comparison* into) {
  OPFUSE_CHECK(truth.dtype == DType::kF64 && magnitude.dtype == DType::kF64, "truth is f64");
  OPFUSE_CHECK(old_value.dtype == new_value.dtype, "old and new have one dtype");
  const int64_t n = truth.numel();
  OPFUSE_CHECK(old_value.numel() == n && new_value.numel() == n && magnitude.numel() == n,
               "equal element counts");
  const Range range = range_of(old_value.dtype);
  with_elements(old_value, [&](const auto* first) {
    accuracy(static_cast<const double*>(truth.data), first,
             static_cast<decltype(first)>(new_value.data),
             static_cast<const double*>(magnitude.data), n, base, range, into);
  });
}

void merge(const Comparison& from, Comparison* into) {
  if (from.error.same_function > into->error.same_function) into->function = from.function;
  if (from.error.excess > into->error.excess) into->accuracy = from.accuracy;
  if (into->error.nonfinite_differences == 0) into->nonfinite = from.nonfinite;
  TensorError& a = into->error;
  const TensorError& b = from.error;
  a.elements += b.elements;
  a.same_function = std::max(a.same_function, b.same_function);
  a.error_old = std::max(a.error_old, b.error_old);
  a.error_new = std::max(a.error_new, b.error_new);
  a.excess = std::max(a.excess, b.excess);
  a.nonfinite_differences += b.nonfinite_differences;
  a.mended += b.mended;
  into->magnitude = std::max(into->magnitude, from.magnitude);
}

bool faithful(const Comparison& comparison, DType dtype) {
  const Range range = range_of(dtype);
  const double scale = std::max(comparison.magnitude, range.smallest);
  return comparison.error.error_old <= kFaithfulUnits * range.unit * scale;
}

bool same_function(const TensorError& error) {
  return error.same_function <= kSameFunction && error.nonfinite_differences == 0;
}

bool same_accuracy(const TensorError& error) {
  if (error.nonfinite_differences != 0) return false;
  if (error.excess <= kAllowedExcess) return true;
  return error.excess <= kRareExcess && error.error_new <= 2 * error.error_old;
}

double difference_norm(const TensorView& a, const TensorView& b) {
  OPFUSE_CHECK(a.numel() == b.numel(), "equal element counts");
  const int64_t n = a.numel();
  double sum = 0;
  bool odd = false;
  with_elements(a, [&](const auto* x) {
    with_elements(b, [&](const auto* y) {
      std::array<double, kLanes> lanes{};
      for (int64_t i = 0; i < n; ++i) {
        const double p = load(x[i]), q = load(y[i]);
        const bool finite = std::abs(p) <= kMax && std::abs(q) <= kMax;
        const double d = finite ? p - q : 0;
        odd |= differ_beyond_finite(p, q);
        lanes[i % kLanes] += d * d;
      }
      for (double lane : lanes) sum += lane;
    });
  });
  return odd ? std::numeric_limits<double>::infinity() : std::sqrt(sum);
}

double norm(const TensorView& a) {
  double sum = 0;
  with_elements(a, [&](const auto* x) {
    std::array<double, kLanes> lanes{};
    for (int64_t i = 0, n = a.numel(); i < n; ++i) {
      const double p = load(x[i]);
      lanes[i % kLanes] += std::abs(p) <= kMax ? p * p : 0;
    }
    for (double lane : lanes) sum += lane;
  });
  return std::sqrt(sum);
}

double absolute_sum(const TensorView& a) {
  double sum = 0;
  with_elements(a, [&](const auto* x) {
    for (int64_t i = 0, n = a.numel(); i < n; ++i) {
      const double p = std::abs(static_cast<double>(load(x[i])));
      sum += p <= kMax ? p : 0;
    }
  });
  return sum;
}

bool same_bits(const TensorView& a, const TensorView& b) {
  if (a.dtype != b.dtype || a.shape != b.shape) return false;
  const size_t bytes = static_cast<size_t>(a.numel()) * dtype_size(a.dtype);
  return bytes == 0 || std::memcmp(a.data, b.data, bytes) == 0;
}

double element(const TensorView& view, int64_t i) {
  double value = 0;
  with_elements(view, [&](const auto* x) { value = load(x[i]); });
  return value;
}

}  // namespace opfuse::verify
