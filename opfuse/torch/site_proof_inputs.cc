#include "opfuse/torch/site_proof_inputs.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "opfuse/base/dtype.h"

namespace opfuse::torch_bridge {
namespace {

struct Range {
  double smallest, largest;  // normal numbers
  double denormal;           // the smallest
  // Up to here squares, or where these leave f16 early eighths, are in range.
  double moderate() const { return std::max(std::sqrt(largest), std::min(largest / 8, 1e18)); }
};

Range range_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kHalf:
      return {0x1p-14, 65504, 0x1p-24};
    case c10::kBFloat16:
      return {0x1p-126, 0x1.fep127, 0x1p-133};
    case c10::kFloat:
      return {0x1p-126, std::numeric_limits<float>::max(), 0x1p-149};
    default:
      return {0x1p-1022, std::numeric_limits<double>::max(), 0x1p-1074};
  }
}

std::vector<double> special_inputs(const Range& range, bool finite) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<double> values = {0.0,
                                kInfinity,
                                std::numeric_limits<double>::quiet_NaN(),
                                range.largest,
                                range.largest / 2,
                                range.smallest,
                                range.smallest / 2,
                                range.denormal,
                                3 * range.denormal};
  constexpr int kDecades = 160;
  const double low = std::log(range.smallest), high = std::log(range.largest);
  for (int i = 0; i <= kDecades; ++i)
    values.push_back(std::exp(low + (high - low) * i / kDecades * 0.999));
  for (int i = 1; i <= 400; ++i) values.push_back(i * 0.05 + 1e-3 * (i % 7));
  for (double edge : {87.0, 88.72, 89.0, 103.9, 104.5, 708.0, 710.0, 745.0}) values.push_back(edge);
  if (finite)
    std::erase_if(values, [&](double x) { return !std::isnan(x) && !(x <= range.moderate()); });
  const size_t positive = values.size();
  for (size_t i = 0; i < positive; ++i) values.push_back(-values[i]);
  return values;
}

std::vector<double> special_cotangents(const Range& range) {
  std::vector<double> values;
  for (int exponent = -30; exponent <= 30; exponent += 3) {
    const double magnitude = std::pow(10.0, exponent) * 1.2345;
    if (magnitude < range.denormal || magnitude > range.largest) continue;
    values.push_back(magnitude);
    values.push_back(-magnitude);
  }
  for (double one : {0.0, 1.0, -1.0, 7.5, 8.5, -20.0}) values.push_back(one);
  return values;
}

at::Tensor to_tensor(std::vector<double>& values, c10::ScalarType dtype) {
  return at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, c10::kDouble)
      .to(dtype, false, true);
}

// The values of one input beside another: every value meets many others.
std::vector<double> turned(const std::vector<double>& values, size_t by) {
  std::vector<double> out;
  out.reserve(values.size());
  for (size_t i = 0; i < values.size(); ++i) out.push_back(values[(i * 7 + by) % values.size()]);
  return out;
}

GeneratedCase special_case(c10::ScalarType dtype, size_t inputs_count, bool finite) {
  const Range range = range_of(dtype);
  const std::vector<double> inputs = special_inputs(range, finite);
  std::vector<double> xs, gs;
  for (double g : special_cotangents(range))
    for (double x : inputs) {
      if (std::isfinite(x) && std::abs(x) * std::max(1.0, std::abs(g)) > 1e300) continue;
      xs.push_back(x);
      gs.push_back(g);
    }
  GeneratedCase out{"special values", {to_tensor(xs, dtype)}, to_tensor(gs, dtype)};
  for (size_t i = 1; i < inputs_count; ++i) {
    std::vector<double> others = turned(xs, 101 * i);
    // Products of several values must stay in the range of fp64.
    for (size_t k = 0; k < others.size(); ++k)
      if (std::isfinite(others[k]) && std::abs(others[k]) > 1e15)
        others[k] = others[k] > 0 ? 3 : -3;
    out.inputs.push_back(to_tensor(others, dtype));
  }
  return out;
}

// Ordinary values in a given shape: a fixed sequence, both signs, up to about 8.
at::Tensor ordinary(std::vector<int64_t> shape, c10::ScalarType dtype, int seed) {
  int64_t n = 1;
  for (int64_t size : shape) n *= size;
  std::vector<double> values;
  uint64_t state = 0x9e3779b97f4a7c15u * static_cast<uint64_t>(seed + 1);
  for (int64_t i = 0; i < n; ++i) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    const double unit = static_cast<double>(state >> 11) * 0x1p-53 - 0.5;
    values.push_back(16 * unit);
  }
  return to_tensor(values, dtype).reshape(shape);
}

}  // namespace

std::vector<GeneratedCase> generate_cases(c10::ScalarType dtype, size_t inputs, bool finite) {
  std::vector<GeneratedCase> cases = {special_case(dtype, inputs, finite)};
  const auto add = [&](std::string name, std::vector<int64_t> shape, auto view) {
    GeneratedCase one{std::move(name), {}, view(ordinary(shape, dtype, 2))};
    for (size_t i = 0; i < inputs; ++i)
      one.inputs.push_back(view(ordinary(shape, dtype, i == 0 ? 1 : 2 + static_cast<int>(i))));
    cases.push_back(std::move(one));
  };
  const auto same = [](const at::Tensor& t) { return t; };
  add("no element", {0}, same);
  add("no element of many dimensions", {2, 0, 3}, same);
  add("one element", {1}, same);
  add("a scalar", {}, same);
  add("an odd length", {1027}, same);
  add("four dimensions", {2, 3, 5, 7}, same);
  add("channels_last", {2, 3, 5, 7},
      [](const at::Tensor& t) { return t.contiguous(at::MemoryFormat::ChannelsLast); });
  add("one channel, channels_last", {2, 1, 5, 7},
      [](const at::Tensor& t) { return t.contiguous(at::MemoryFormat::ChannelsLast); });
  add("transposed", {5, 9}, [](const at::Tensor& t) { return t.t(); });
  add("permuted", {3, 4, 5}, [](const at::Tensor& t) { return t.permute({2, 0, 1}); });
  add("strided", {6, 64}, [](const at::Tensor& t) { return t.slice(1, 1, 63, 3); });
  add("at an odd offset", {65}, [](const at::Tensor& t) { return t.slice(0, 1, 65); });
  add("expanded", {3, 1, 5}, [](const at::Tensor& t) { return t.expand({3, 4, 5}); });
  return cases;
}

namespace {

// Fills a tensor of any layout element by element, in the order of its indices.
void fill(const at::Tensor& tensor, const std::function<double(int64_t)>& value) {
  std::vector<double> values(static_cast<size_t>(tensor.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = value(static_cast<int64_t>(i));
  tensor.copy_(at::from_blob(values.data(), tensor.sizes(), c10::kDouble));
}

double unit(int64_t i, int seed) {
  uint64_t state = 0x9e3779b97f4a7c15u * static_cast<uint64_t>(seed + 1) + static_cast<uint64_t>(i);
  state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
  state = (state ^ (state >> 27)) * 0x94d049bb133111ebu;
  return static_cast<double>((state ^ (state >> 31)) >> 11) * 0x1p-53 - 0.5;
}

}  // namespace

std::vector<GeneratedCase> generate_like(const std::vector<at::Tensor>& tensors,
                                         const std::vector<at::Tensor>& whole_numbers,
                                         bool has_cotangent, c10::ScalarType dtype, bool finite) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const Range range = range_of(dtype);
  // Squares and sums of squares stay in range; beyond it both sides give what overflows first.
  const double large = std::sqrt(range.largest) * 0x1p-10,
               small = std::sqrt(range.smallest) * 0x1p10;
  struct Kind {
    const char* name;
    std::function<double(int64_t row, int64_t i, int seed)> value;
  };
  const auto scaled = [](double scale) {
    return [scale](int64_t, int64_t i, int seed) { return scale * unit(i, seed); };
  };
  const std::vector<Kind> kinds = {
      {"ordinary values", scaled(8)},
      {"small values", scaled(small)},
      {"large values", scaled(large)},
      {"rows of every size",
       [=](int64_t row, int64_t i, int seed) {
         const double at = static_cast<double>(row % 17) / 16;
         return unit(i, seed) * std::exp(std::log(small) * (1 - at) + std::log(large) * at);
       }},
      {"far from zero", [](int64_t, int64_t i, int seed) { return 100 + unit(i, seed); }},
      {"zeros", [](int64_t, int64_t, int) { return 0.0; }},
      {"equal values",
       [](int64_t row, int64_t, int) { return 1.5 + static_cast<double>(row % 3); }},
      {"infinities and NaN", [=](int64_t row, int64_t i, int seed) {
         if (!finite && row % 4 == 1 && i % 5 == 2) return kInfinity;
         if (!finite && row % 4 == 2 && i % 5 == 3) return -kInfinity;
         return row % 4 == 3 && i % 7 == 1 ? kNaN : 4 * unit(i, seed);
       }}};
  std::vector<GeneratedCase> cases;
  for (const Kind& kind : kinds) {
    GeneratedCase one{kind.name, {}, {}};
    for (size_t k = 0; k < tensors.size(); ++k) {
      const at::Tensor& like = tensors[k];
      const bool cotangent = has_cotangent && k + 1 == tensors.size();
      at::Tensor made = like;
      if (like.defined() && !like.is_floating_point()) {
        made = k < whole_numbers.size() ? whole_numbers[k] : like;
      } else if (like.defined()) {
        made = at::as_strided(
            at::zeros({static_cast<int64_t>(like.storage().nbytes() / like.element_size())}, dtype),
            like.sizes(), like.strides(), like.storage_offset());
        const int64_t row = like.dim() > 0 ? std::max<int64_t>(like.size(-1), 1) : 1;
        // Beside the first input (what is normalised) the others and the cotangent are ordinary.
        const Kind& how = k == 0 ? kind : kinds[0];
        fill(made, [&](int64_t i) { return how.value(i / row, i, static_cast<int>(k)); });
      }
      (cotangent ? one.cotangent : one.inputs.emplace_back()) = made;
    }
    cases.push_back(std::move(one));
  }
  return cases;
}

}  // namespace opfuse::torch_bridge
