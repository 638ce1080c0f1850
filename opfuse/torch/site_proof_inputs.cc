#include "opfuse/torch/site_proof_inputs.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cmath>
#include <limits>

#include "opfuse/base/dtype.h"

namespace opfuse::torch_bridge {
namespace {

struct Range {
  double smallest, largest;  // normal numbers
  double denormal;           // the smallest
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

std::vector<double> special_inputs(const Range& range) {
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

GeneratedCase special_case(c10::ScalarType dtype) {
  const Range range = range_of(dtype);
  const std::vector<double> inputs = special_inputs(range);
  std::vector<double> xs, gs;
  for (double g : special_cotangents(range))
    for (double x : inputs) {
      if (std::isfinite(x) && std::abs(x) * std::max(1.0, std::abs(g)) > 1e300) continue;
      xs.push_back(x);
      gs.push_back(g);
    }
  return {"special values", to_tensor(xs, dtype), to_tensor(gs, dtype)};
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

std::vector<GeneratedCase> generate_cases(c10::ScalarType dtype) {
  std::vector<GeneratedCase> cases = {special_case(dtype)};
  const auto add = [&](std::string name, std::vector<int64_t> shape, auto view) {
    cases.push_back(
        {std::move(name), view(ordinary(shape, dtype, 1)), view(ordinary(shape, dtype, 2))});
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

}  // namespace opfuse::torch_bridge
