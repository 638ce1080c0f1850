#include "opfuse/verify/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace opfuse::verify {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <class T>
TensorView view(const std::vector<T>& values, DType dtype) {
  return {values.data(), dtype, {static_cast<int64_t>(values.size())}};
}
TensorView f64(const std::vector<double>& values) { return view(values, DType::kF64); }
TensorView f32(const std::vector<float>& values) { return view(values, DType::kF32); }

Comparison function(const std::vector<double>& t, const std::vector<double>& r,
                    const std::vector<double>& s) {
  Comparison c;
  compare_function(f64(t), f64(r), f64(s), 0, &c);
  return c;
}

TEST(Metrics, FunctionErrorIsRelativeToTheMagnitudeNotToTheValue) {
  // A difference of 2^-42 where T is almost cancelled: fine beside terms of size 1.
  const Comparison c = function({0x1p-20, 3}, {0x1p-20 + 0x1p-42, 3}, {1, 3});
  EXPECT_DOUBLE_EQ(c.error.same_function, 0x1p-42);
  EXPECT_EQ(c.function.index, 0);
  EXPECT_TRUE(same_function(c.error));
  EXPECT_FALSE(same_function(function({1}, {1 + 0x1p-39}, {1}).error));
}

TEST(Metrics, TheWorstElementIsNamedInATailAndAcrossPieces) {
  std::vector<double> t(5003, 1.0), r = t, s = t;
  r[5001] = 1 + 0x1p-30;
  Comparison c = function(t, r, s);
  EXPECT_EQ(c.function.index, 5001);
  compare_function(f64({1.0}), f64({1.5}), f64({1.0}), 5003, &c);
  EXPECT_EQ(c.function.index, 5003);
  EXPECT_DOUBLE_EQ(c.error.same_function, 0.5);
  EXPECT_EQ(c.error.elements, 5004);
}

TEST(Metrics, NanAndInfinitiesMustStandAtTheSamePositions) {
  EXPECT_EQ(
      function({kNan, kInf, -kInf}, {kNan, kInf, -kInf}, {1, 1, 1}).error.nonfinite_differences, 0);
  const Comparison c = function({1, kInf, kNan, 2}, {kNan, -kInf, kInf, 2}, {1, 1, 1, 1});
  EXPECT_EQ(c.error.nonfinite_differences, 3);
  EXPECT_EQ(c.nonfinite.index, 0);
  EXPECT_FALSE(same_function(c.error));
}

Comparison accuracy(const std::vector<double>& t, const std::vector<float>& a,
                    const std::vector<float>& b, const std::vector<double>& s) {
  Comparison c;
  compare_accuracy(f64(t), f32(a), f32(b), f64(s), 0, &c);
  return c;
}

TEST(Metrics, ExcessIsNewMinusTwiceOldInRoundoffsOfTheMagnitude) {
  const float ulp = 0x1p-23f;  // two roundoffs at 1
  const Comparison c = accuracy({1, 1}, {1 + ulp, 1}, {1 + 4 * ulp, 1 + 2 * ulp}, {1, 1});
  EXPECT_DOUBLE_EQ(c.error.excess, 4);  // (8 - 2*2) and (4 - 0) roundoffs
  EXPECT_DOUBLE_EQ(c.error.error_old, ulp);
  EXPECT_DOUBLE_EQ(c.error.error_new, 4 * ulp);
  EXPECT_DOUBLE_EQ(c.magnitude, 1);
  EXPECT_TRUE(same_accuracy(c.error));
  EXPECT_FALSE(same_accuracy(accuracy({1}, {1}, {1 + 5 * ulp}, {1}).error));
}

TEST(Metrics, ARareExcessIsAllowedOnlyWhereTheLargestErrorDidNotGrow) {
  const float u = 0x1p-24f;
  EXPECT_TRUE(same_accuracy(accuracy({1, 9}, {1, 9 + 16 * u}, {1 + 10 * u, 9}, {1, 9}).error));
  EXPECT_FALSE(same_accuracy(accuracy({1, 9}, {1, 9}, {1 + 10 * u, 9}, {1, 9}).error));
  EXPECT_FALSE(same_accuracy(accuracy({1, 9}, {1, 9 + 16 * u}, {1 + 14 * u, 9}, {1, 9}).error));
}

TEST(Metrics, ErrorsNearUnderflowAreAbsolute) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  EXPECT_TRUE(same_accuracy(accuracy({0}, {0}, {tiny}, {0}).error));
  EXPECT_TRUE(same_accuracy(accuracy({0}, {0}, {1000 * tiny}, {0}).error));
  EXPECT_FALSE(same_accuracy(accuracy({0}, {0}, {10000 * tiny}, {0}).error));
}

TEST(Metrics, MendingAnOverflowIsAllowedIfTheNewValueIsRight) {
  const float inf = std::numeric_limits<float>::infinity();
  const Comparison right = accuracy({1.5, 2}, {inf, std::nanf("")}, {1.5, 2}, {1.5, 2});
  EXPECT_TRUE(same_accuracy(right.error));
  EXPECT_EQ(right.error.mended, 2);
  EXPECT_FALSE(same_accuracy(accuracy({1.5}, {inf}, {1.51}, {1.5}).error));
  EXPECT_FALSE(same_accuracy(accuracy({kInf}, {inf}, {1e30f}, {kInf}).error));
}

TEST(Metrics, OverflowIsADifferenceExceptAtTheBorderOfTheRange) {
  const float inf = std::numeric_limits<float>::infinity();
  const double largest = std::numeric_limits<float>::max();
  EXPECT_EQ(accuracy({1e30}, {1e30f}, {inf}, {1e30}).error.nonfinite_differences, 1);
  EXPECT_EQ(accuracy({largest}, {static_cast<float>(largest)}, {inf}, {largest})
                .error.nonfinite_differences,
            0);
}

TEST(Metrics, HalfAndBrainFloatsAreReadExactly) {
  const std::vector<uint16_t> half = {0x3c00, 0xc000, 0x0001, 0x7bff, 0x7c00, 0x8000};
  const TensorView h = view(half, DType::kF16);
  EXPECT_EQ(element(h, 0), 1);
  EXPECT_EQ(element(h, 1), -2);
  EXPECT_EQ(element(h, 2), 0x1p-24);
  EXPECT_EQ(element(h, 3), 65504);
  EXPECT_EQ(element(h, 4), kInf);
  EXPECT_TRUE(std::signbit(element(h, 5)));
  const std::vector<uint16_t> brain = {0x3f80, 0x7fc0};
  EXPECT_EQ(element(view(brain, DType::kBF16), 0), 1);
  EXPECT_TRUE(std::isnan(element(view(brain, DType::kBF16), 1)));
}

TEST(Metrics, GradientsThatAreDenormalAsAWholeAreStillFaithful) {
  const std::vector<double> truth = {1.3e-43};
  const std::vector<float> rounded = {1.4e-43f};
  Comparison c = accuracy(truth, rounded, rounded, truth);
  EXPECT_GT(c.error.error_old, kFaithfulUnits * 0x1p-24 * c.magnitude);  // far, in relative terms
  EXPECT_TRUE(faithful(c, DType::kF32));
  c = accuracy({1}, {1.001f}, {1.001f}, {1});
  EXPECT_FALSE(faithful(c, DType::kF32));
}

TEST(Metrics, NormsCompareAcrossDtypes) {
  EXPECT_DOUBLE_EQ(difference_norm(f32({4, 0, 1}), f64({1, 4, 1})), 5);
  EXPECT_EQ(difference_norm(f32({1}), f64({kNan})), kInf);
  EXPECT_EQ(difference_norm(f64({kNan}), f64({kNan})), 0);
  EXPECT_DOUBLE_EQ(norm(f64({3, 4})), 5);
  EXPECT_TRUE(same_bits(f64({kNan}), f64({kNan})));
  EXPECT_FALSE(same_bits(f64({0.0}), f64({-0.0})));
}

}  // namespace
}  // namespace opfuse::verify
