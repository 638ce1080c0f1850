#include "opfuse/report/advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace opfuse::report {
namespace {

using ::testing::HasSubstr;

Report half_second_steps() {
  Report report;
  report.machine.isa = "avx2";
  report.plain.steps = 3, report.plain.time_median_s = 0.5;
  return report;
}

TEST(Advice, NothingIsSaidOfAStepThatIsFine) {
  EXPECT_TRUE(advice_of(Report{}).empty());
  Report report = half_second_steps();
  report.plain.data_mean_s = 0.01;
  EXPECT_TRUE(advice_of(report).empty());
}

TEST(Advice, WaitingForDataIsBoundedByItsShare) {
  Report report = half_second_steps();
  report.plain.data_mean_s = 0.5;
  const auto advice = advice_of(report);
  ASSERT_EQ(advice.size(), 1u);
  EXPECT_THAT(advice[0].text, HasSubstr("waits 500 ms a step for data, 50 % of the time"));
  EXPECT_DOUBLE_EQ(advice[0].at_most, 2);
}

TEST(Advice, Bf16IsToldOnlyWhereTheProcessorLacksIt) {
  Report report = half_second_steps();
  report.step.low_precision = "bf16", report.step.low_precision_ms = 250;
  ASSERT_EQ(advice_of(report).size(), 1u);
  EXPECT_THAT(advice_of(report)[0].text, HasSubstr("bf16 take 50 % of the time"));
  report.machine.isa = "avx512bf16";
  EXPECT_TRUE(advice_of(report).empty());
  report.step.low_precision = "f16";
  EXPECT_EQ(advice_of(report).size(), 1u);
}

TEST(Advice, AttentionThatIsWrittenOutNamesItsLongestPlaceAndComesInOrder) {
  Report report = half_second_steps();
  report.plain.data_mean_s = 0.1;
  for (const double ms : {50.0, 200.0}) {
    Site& site = report.sites.emplace_back();
    site.rule = "attention", site.calls = 2, site.file = "/a/net.py";
    site.line = static_cast<int>(ms), site.forward_ms = ms, site.backward_ms = 10;
  }
  const auto advice = advice_of(report);
  ASSERT_EQ(advice.size(), 2u);
  EXPECT_THAT(advice[0].text, HasSubstr("written out in 4 places (net.py:200)"));
  EXPECT_NEAR(advice[0].at_most, 1 / (1 - 0.27 / 0.6), 1e-12);
  EXPECT_THAT(advice[1].text, HasSubstr("waits 100 ms"));
  report.sites[1].kept = true;
  EXPECT_THAT(advice_of(report)[0].text, HasSubstr("waits 100 ms"));
}

}  // namespace
}  // namespace opfuse::report
