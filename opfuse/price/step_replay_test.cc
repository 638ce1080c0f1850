// Steps of a host lane and device lanes, small enough to reckon by hand.

#include "opfuse/price/step_replay.h"

#include <gtest/gtest.h>

namespace opfuse::price {
namespace {

// One kernel a launch, on stream 7; times in microseconds.
trace::EventTable table(std::initializer_list<std::array<int64_t, 4>> kernels) {
  trace::EventTable table;
  for (const auto& [launch, cost, start, dur] : kernels) {
    trace::KernelRow& row = table.kernels.emplace_back();
    row.device = 0;
    row.stream = 7;
    row.launch_ns = launch * 1000;
    row.launch_dur_ns = cost * 1000;
    row.start_ns = start * 1000;
    row.dur_ns = dur * 1000;
  }
  return table;
}

TEST(StepReplay, AHostThatIsSlowerDecides) {
  const auto events = table({{0, 5, 6, 2}, {20, 5, 26, 2}, {40, 5, 46, 2}});
  const StepReplay replay(events);
  EXPECT_EQ(replay.recorded_ns(), 48000);
  EXPECT_EQ(replay.run(), 48000);
  EXPECT_EQ(replay.run({{}, {{0, 0}, {1, 0}}}), 48000);  // faster kernels change nothing
  EXPECT_EQ(replay.run({{1}, {}}), 28000);               // a launch fewer is 20 us of the host
}

TEST(StepReplay, ADeviceThatIsSlowerDecides) {
  const auto events = table({{0, 1, 5, 50}, {2, 1, 55, 50}, {4, 1, 105, 50}});
  const StepReplay replay(events);
  EXPECT_EQ(replay.recorded_ns(), 155000);
  EXPECT_EQ(replay.run(), 155000);
  EXPECT_EQ(replay.run({{1}, {}}), 105000);
  EXPECT_EQ(replay.run({{}, {{1, 10000}}}), 115000);
  EXPECT_GT(replay.device_alone_ns(), replay.host_alone_ns());
}

TEST(StepReplay, AWaitEndsWithTheWorkThatItWaitsFor) {
  auto events = table({{0, 1, 5, 50}, {60, 1, 65, 5}});
  events.waits.push_back({2000, 54000, 0, 7});  // until 56 us
  const StepReplay replay(events);
  EXPECT_EQ(replay.run(), replay.recorded_ns());
  // The work before the wait takes 40 us less, so the host goes on 40 us earlier.
  EXPECT_EQ(replay.recorded_ns() - replay.run({{}, {{0, 10000}}}), 40000);
}

TEST(StepReplay, WithoutLaunchesTheGapsStay) {
  trace::EventTable events;
  for (int64_t start : {0, 100}) {
    trace::KernelRow& row = events.kernels.emplace_back();
    row.start_ns = start * 1000;
    row.dur_ns = 20000;
  }
  const StepReplay replay(events);
  EXPECT_FALSE(replay.has_host());
  EXPECT_EQ(replay.run(), 120000);
  EXPECT_EQ(replay.run({{}, {{1, 5000}}}), 105000);
}

TEST(StepReplay, AnEmptyTableHasNothingToPlay) {
  EXPECT_TRUE(StepReplay(trace::EventTable{}).empty());
  EXPECT_EQ(StepReplay(trace::EventTable{}).run(), 0);
}

}  // namespace
}  // namespace opfuse::price
