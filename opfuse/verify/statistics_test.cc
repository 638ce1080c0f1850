#include "opfuse/verify/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace opfuse::verify {
namespace {

// Noise of a shared machine: log-normal with one step in ten up to several times slower.
double noisy(std::mt19937_64* random) {
  std::normal_distribution<double> core(0, 0.08);
  std::exponential_distribution<double> spike(1.0);
  std::uniform_real_distribution<double> uniform(0, 1);
  double log_time = core(*random);
  if (uniform(*random) < 0.1) log_time += spike(*random);
  return std::exp(log_time);
}

// Runs a whole test where the replaced side is `speed` times faster.
AbTest run(double speed, uint64_t seed, AbOptions options = {}) {
  std::mt19937_64 random(seed);
  options.seed = seed;
  AbTest test(options);
  for (int step = 0; step < 500 && test.phase() != AbPhase::kDone; ++step) {
    StepSample sample;
    sample.replaced = test.next();
    sample.wall_s = noisy(&random) / (sample.replaced ? speed : 1.0);
    sample.cpu_s = sample.wall_s;
    sample.step = step;
    test.add(sample);
  }
  return test;
}

TEST(RatioInterval, MatchesTheTablesOfWilcoxonsTest) {
  // n = 6 at 5 %: only the extreme rank sums are left out; n = 5 cannot reach 5 %.
  const RatioInterval six = ratio_interval({.1, .2, .3, .4, .5, .6}, 0.05);
  EXPECT_DOUBLE_EQ(six.low, std::exp(.1));
  EXPECT_DOUBLE_EQ(six.high, std::exp(.6));
  EXPECT_DOUBLE_EQ(six.ratio, std::exp(.35));
  EXPECT_TRUE(std::isinf(ratio_interval({.1, .2, .3, .4, .5}, 0.05).high));
  // n = 12 at 5 %: the table's critical value is 13, so the 14th Walsh average from each end.
  std::vector<double> logs, walsh;
  for (int i = 0; i < 12; ++i) logs.push_back(i * i * 0.01);
  for (int i = 0; i < 12; ++i)
    for (int j = i; j < 12; ++j) walsh.push_back((logs[i] + logs[j]) / 2);
  std::sort(walsh.begin(), walsh.end());
  EXPECT_DOUBLE_EQ(ratio_interval(logs, 0.05).low, std::exp(walsh[13]));
  EXPECT_DOUBLE_EQ(ratio_interval(logs, 0.05).high, std::exp(walsh[walsh.size() - 14]));
}

TEST(RatioInterval, OneOutlierDoesNotMoveTheRatio) {
  std::vector<double> logs(12, std::log(1.2));
  logs[3] = 5;
  const RatioInterval interval = ratio_interval(logs, 0.05);
  EXPECT_NEAR(interval.ratio, 1.2, 1e-12);
  EXPECT_GT(interval.low, 1.19);
}

TEST(RatioInterval, CoversTheTrueRatioAsOftenAsItSaysUnderHeavyTails) {
  std::mt19937_64 random(42);
  for (int pairs : {8, 12, 20}) {
    int covered = 0;
    double width = 0;
    constexpr int kRuns = 4000;
    for (int i = 0; i < kRuns; ++i) {
      std::vector<double> logs;
      for (int p = 0; p < pairs; ++p)
        logs.push_back(std::log(1.25 * noisy(&random) / noisy(&random)));
      const RatioInterval interval = ratio_interval(logs, 0.05);
      covered += interval.low <= 1.25 && 1.25 <= interval.high;
      width += std::log(interval.high / interval.low) / kRuns;
    }
    EXPECT_GE(covered, 0.942 * kRuns) << pairs;  // 0.95 less 2.3 standard errors
    if (pairs == 12) {
      EXPECT_LT(width, 0.6);
    }
  }
}

TEST(AbTest, KeepsAnEqualSideInFewerThanFiveOfAHundredRuns) {
  int chosen = 0, tuned = 0;
  constexpr int kRuns = 3000;
  for (int i = 0; i < kRuns; ++i) {
    const AbTest test = run(1.0, 1000 + i);
    chosen += test.headline_wall().pairs > 0;
    tuned += test.outcome() == AbOutcome::kTuned;
  }
  EXPECT_LT(chosen, 0.05 * kRuns);  // the choosing phase alone, under repeated looks
  EXPECT_LT(tuned, 0.01 * kRuns);
}

TEST(AbTest, FindsAClearGainAndReportsItFromFreshPairs) {
  int tuned = 0;
  AbOptions options;
  options.max_seconds = 1e9;
  for (int i = 0; i < 300; ++i) {
    const AbTest test = run(1.4, 7000 + i, options);
    tuned += test.outcome() == AbOutcome::kTuned;
    EXPECT_LE(test.counted_steps(), 64);
    if (test.outcome() == AbOutcome::kTuned) {
      EXPECT_EQ(test.headline_wall().pairs, 12);
      EXPECT_GT(test.headline_wall().low, 1);
    }
  }
  EXPECT_GT(tuned, 220);  // one pair in five is hit by a spike
}

TEST(AbTest, StopsEarlyWhenItIsSlower) {
  AbOptions options;
  AbTest test = run(0.5, 5, options);
  EXPECT_EQ(test.outcome(), AbOutcome::kNotFaster);
  EXPECT_LT(test.counted_steps(), 40);
  EXPECT_FALSE(test.next());
}

TEST(AbTest, ABudgetTooSmallToDecideLeavesTheOriginal) {
  AbOptions options;
  options.max_steps = 30;  // 3 pairs beside the headline
  const AbTest test = run(2.0, 1, options);
  EXPECT_EQ(test.outcome(), AbOutcome::kUndecided);
  EXPECT_EQ(test.counted_steps(), 0);
}

TEST(AbTest, TheSecondsBudgetEndsInUndecided) {
  AbOptions options;
  options.max_seconds = 5;
  EXPECT_EQ(run(1.0, 3, options).outcome(), AbOutcome::kUndecided);
}

TEST(AbTest, TheSameSeedGivesTheSameSidesAndBothOrdersOccur) {
  AbTest a({}), b({});
  int old_first = 0, new_first = 0;
  for (int pair = 0; pair < 8; ++pair) {
    bool sides[2];
    for (bool& side : sides) {
      side = a.next();
      EXPECT_EQ(side, b.next());
      a.add({.replaced = side, .wall_s = 1, .cpu_s = 1});
      b.add({.replaced = side, .wall_s = 2, .cpu_s = 1});
    }
    EXPECT_NE(sides[0], sides[1]);
    ++(sides[0] ? new_first : old_first);
  }
  EXPECT_GT(old_first, 0);
  EXPECT_GT(new_first, 0);
}

TEST(AbTest, PairsOnlyStepsOfEqualSignature) {
  AbTest test({});
  const bool first = test.next();
  test.add({.replaced = first, .wall_s = 1, .cpu_s = 1, .signature = 7});
  test.add({.replaced = test.next(), .wall_s = 1, .cpu_s = 1, .signature = 8});
  EXPECT_EQ(test.counted_steps(), 0);
  test.add({.replaced = !first, .wall_s = 1, .cpu_s = 1, .signature = 7});
  EXPECT_EQ(test.counted_steps(), 2);
}

TEST(AbTest, ADiscardedStepRunsItsSideAgain) {
  AbTest test({});
  const bool first = test.next();
  test.add({.replaced = first, .wall_s = 1, .cpu_s = 1});
  test.discard();
  EXPECT_EQ(test.next(), !first);
}

TEST(AbTest, ErrorIsSplitOverTheCandidates) {
  const double one = 0.05 / look_schedule(4, 20, 0.05).size();
  const double five = 0.01 / look_schedule(4, 20, 0.01).size();
  EXPECT_LT(five, one);
  for (int n : look_schedule(4, 20, 0.01)) EXPECT_LE(std::ldexp(2.0, -n), five);
}

}  // namespace
}  // namespace opfuse::verify
