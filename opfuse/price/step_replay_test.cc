// Steps of a host lane and device lanes, small enough to reckon by hand.

#include "opfuse/price/step_replay.h"

#include <algorithm>

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

// Times in microseconds; the kernel's stream stands first.
void add_kernel(trace::EventTable* table, int32_t stream, int64_t launch, int64_t start,
                int64_t dur) {
  trace::KernelRow& row = table->kernels.emplace_back();
  row.device = 0;
  row.stream = stream;
  row.launch_ns = launch * 1000;
  row.launch_dur_ns = 1000;
  row.start_ns = start * 1000;
  row.dur_ns = dur * 1000;
}

TEST(StepReplay, AKernelWaitsForAnotherStreamHoweverLateItStarts) {
  trace::EventTable events;
  add_kernel(&events, 7, 0, 5, 500);
  add_kernel(&events, 9, 2, 7, 3);
  add_kernel(&events, 9, 4, 530, 20);  // 25 us behind the work of stream 7
  const StepReplay replay(events);
  EXPECT_EQ(replay.recorded_ns(), 550000);
  EXPECT_NEAR(static_cast<double>(replay.run()), 550000, 6000);
  EXPECT_EQ(replay.run() - replay.run({{}, {{0, 100000}}}), 400000);
  // The wait is the stream's: it stays when the kernel that waited is gone.
  EXPECT_GT(replay.run({{2}, {}}), 500000);
}

// The device is full: the other stream begins while the last blocks of the long kernel run.
TEST(StepReplay, AKernelThatFillsTheDeviceHoldsUpOtherStreams) {
  trace::EventTable events;
  add_kernel(&events, 7, 0, 5, 1000);
  add_kernel(&events, 9, 2, 7, 3);
  add_kernel(&events, 9, 4, 975, 50);  // 30 us before the long one ends
  const StepReplay replay(events);
  EXPECT_EQ(replay.run(), replay.recorded_ns());
  EXPECT_EQ(replay.run() - replay.run({{}, {{0, 400000}}}), 600000);
}

// What nothing in the file explains stays an error that can be seen.
TEST(StepReplay, AKernelThatIsLaunchedLaterIsNotWaitedFor) {
  trace::EventTable events;
  add_kernel(&events, 9, 2, 7, 3);
  add_kernel(&events, 7, 100, 110, 89);
  add_kernel(&events, 9, 4, 200, 20);
  const StepReplay replay(events);
  EXPECT_EQ(replay.recorded_ns(), 218000);
  EXPECT_EQ(replay.run(), 197000);
  EXPECT_GT(replay.error(), 0.05);
}

// A wait that names no stream ended while stream 7 was busy: it waited for stream 9.
TEST(StepReplay, AWaitIsNotForAStreamThatWasBusyLonger) {
  trace::EventTable events;
  add_kernel(&events, 7, 0, 5, 500);
  add_kernel(&events, 9, 2, 7, 40);
  events.waits.push_back({4000, 44000, 0, -1});  // until 48 us
  add_kernel(&events, 9, 60, 65, 5);
  const StepReplay replay(events);
  EXPECT_EQ(replay.run(), replay.recorded_ns());
  EXPECT_EQ(replay.host_alone_ns() < 100000, true);
  EXPECT_EQ(replay.run({{}, {{0, 0}}}), 70000);  // the wait never was for stream 7
}

TEST(StepReplay, AStreamThatWorkFromBeforeTheFileKeepsBusyBeginsWhenItDid) {
  trace::EventTable events;
  for (int i = 0; i < 4; ++i) add_kernel(&events, 9, 20 * i, 20 * i + 5, 3);
  add_kernel(&events, 7, 100, 463000, 10);
  add_kernel(&events, 7, 102, 463011, 10);
  const StepReplay replay(events);
  EXPECT_EQ(replay.before_file_ns(), 463000000);
  EXPECT_EQ(replay.run(), replay.recorded_ns());
  EXPECT_GT(replay.run({{4}, {}}), 463000000);
}

// The first call of a process loads modules: the kernel begins when it returns.
TEST(StepReplay, AFirstCallThatTakesLongIsTheHosts) {
  trace::EventTable events;
  for (int i = 0; i < 4; ++i) add_kernel(&events, 9, 20 * i, 20 * i + 5, 3);
  add_kernel(&events, 7, 100, 5100, 10);
  events.kernels.back().launch_dur_ns = 4998000;
  const StepReplay replay(events);
  EXPECT_EQ(replay.before_file_ns(), 0);
  EXPECT_EQ(replay.run(), replay.recorded_ns());
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
