// Accuracy of simd/math.h on every level that this machine has, against the C library in double.
// Every 509th f32 is tried; OPFUSE_FLOAT_STRIDE=1 tries all.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "opfuse/ops/simd/math_table.h"

namespace opfuse::ops {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Distance in units in the last place of f32 at `wanted`; denormals count as the smallest normal.
double ulp_distance(float got, double wanted) {
  const float rounded = static_cast<float>(wanted);
  if (std::isnan(got) || std::isnan(rounded))
    return std::isnan(got) == std::isnan(rounded) ? 0 : 1e30;
  if (std::isinf(got) || std::isinf(rounded)) return got == rounded ? 0 : 1e30;
  int exponent = 0;
  std::frexp(std::max(std::fabs(wanted), 0x1p-126), &exponent);
  return std::fabs(got - wanted) / std::ldexp(1.0, exponent - 24);
}

struct Function {
  const char* name;
  MathFn MathKernels::* fn;
  double (*reference)(double);
  double bound;  // ulp
  float from, to;
};

double sigmoid(double x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}
double silu(double x) { return x * sigmoid(x); }
double rsqrt(double x) { return 1 / std::sqrt(x); }

// Below -87 sigmoid and silu follow torch, whose exp(-x) overflows there; see the tail test.
const Function kFunctions[] = {
    {"exp", &MathKernels::exp, std::exp, 1.2, -kInf, kInf},
    {"log", &MathKernels::log, std::log, 1.0, -kInf, kInf},
    {"tanh", &MathKernels::tanh, std::tanh, 1.6, -kInf, kInf},
    {"erf", &MathKernels::erf, std::erf, 1.3, -kInf, kInf},
    {"rsqrt", &MathKernels::rsqrt, rsqrt, 1.6, 0, kInf},
    {"sigmoid", &MathKernels::sigmoid, sigmoid, 2.6, -87, kInf},
    {"silu", &MathKernels::silu, silu, 3.0, -87, std::numeric_limits<float>::max()},
};

double worst_ulp(const Function& function, MathFn fn, float* where) {
  const char* asked = std::getenv("OPFUSE_FLOAT_STRIDE");
  const uint64_t stride = asked ? std::strtoull(asked, nullptr, 10) : 509;
  constexpr int64_t kBlock = 4096;
  std::vector<float> x, y(kBlock);
  double worst = 0;
  auto flush = [&] {
    fn(x.data(), y.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      const double distance = ulp_distance(y[i], function.reference(x[i]));
      if (distance <= worst) continue;
      worst = distance;
      *where = x[i];
    }
    x.clear();
  };
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += stride) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (std::isnan(value) || !(value >= function.from && value <= function.to)) continue;
    x.push_back(value);
    if (x.size() == kBlock) flush();
  }
  flush();
  return worst;
}

class Levels : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!isa_supported(GetParam())) GTEST_SKIP() << "this processor lacks " << isa_name(GetParam());
  }
  const MathKernels& kernels() const { return math_kernels(GetParam()); }
};

TEST_P(Levels, FunctionsKeepTheirUlpBounds) {
  for (const Function& function : kFunctions) {
    float where = 0;
    const double worst = worst_ulp(function, kernels().*function.fn, &where);
    RecordProperty(function.name, std::to_string(worst));
    EXPECT_LE(worst, function.bound) << function.name << " at " << where;
  }
}

TEST_P(Levels, SpecialValuesAreThoseOfTheCLibrary) {
  for (const Function& function : kFunctions)
    for (float x : {0.0f, -0.0f, kInf, kNan, 1e-40f, -1e-40f, 3e38f, 88.7f, -1.0f}) {
      float y = 0;
      (kernels().*function.fn)(&x, &y, 1);
      EXPECT_LE(ulp_distance(y, function.reference(x)), function.bound)
          << function.name << " " << x;
    }
}

// torch computes x / (1 + exp(-x)): NaN at -infinity, -0 where exp(-x) overflows.
TEST_P(Levels, SiluEndsAsTorchDoes) {
  for (float x : {-kInf, -200.0f, -90.0f, -88.5f, -88.0f, -87.5f}) {
    float y = 0;
    kernels().silu(&x, &y, 1);
    const float torch = x / (1 + std::exp(-x));
    if (std::isnan(torch))
      EXPECT_TRUE(std::isnan(y));
    else
      EXPECT_LE(std::fabs(y - torch), 1e-5 * std::fabs(torch)) << x;
  }
}

TEST_P(Levels, NarrowTypesRoundToNearestEven) {
  // Halves between two numbers of the type, on both sides of even; overflow; denormals of f16.
  const std::vector<float> x = {1.0f + 0x1p-8f,
                                1.0f + 0x3p-8f,
                                -1.0f - 0x1p-8f,
                                kInf,
                                kNan,
                                3.39e38f,
                                1.0f + 0x1p-11f,
                                1.0f + 0x3p-11f,
                                65519.0f,
                                65520.0f,
                                0x1p-24f,
                                0x1p-25f,
                                0x1.8p-24f,
                                -0x1.004p-14f,
                                0.0f,
                                -0.0f,
                                1e-8f};
  std::vector<float> bf16(x.size()), f16(x.size());
  kernels().round_bf16(x.data(), bf16.data(), static_cast<int64_t>(x.size()));
  kernels().round_f16(x.data(), f16.data(), static_cast<int64_t>(x.size()));
  EXPECT_EQ(bf16[0], 1.0f);
  EXPECT_EQ(bf16[1], 1.0f + 0x1p-6f);
  EXPECT_EQ(bf16[2], -1.0f);
  EXPECT_EQ(bf16[3], kInf);
  EXPECT_TRUE(std::isnan(bf16[4]));
  EXPECT_EQ(bf16[5], 0x1.fep127f);
  EXPECT_EQ(f16[3], kInf);
  EXPECT_TRUE(std::isnan(f16[4]));
  EXPECT_EQ(f16[6], 1.0f);
  EXPECT_EQ(f16[7], 1.0f + 0x1p-9f);
  EXPECT_EQ(f16[8], 65504.0f);
  EXPECT_EQ(f16[9], kInf);
  EXPECT_EQ(f16[10], 0x1p-24f);
  EXPECT_EQ(f16[11], 0.0f);
  EXPECT_EQ(f16[12], 0x1p-23f);
  EXPECT_EQ(f16[13], -0x1.004p-14f);
  EXPECT_TRUE(std::signbit(f16[15]));
  EXPECT_EQ(f16[16], 0.0f);
}

INSTANTIATE_TEST_SUITE_P(All, Levels, testing::ValuesIn(kAllIsas),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

}  // namespace
}  // namespace opfuse::ops
