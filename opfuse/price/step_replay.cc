#include "opfuse/price/step_replay.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace opfuse::price {
namespace {

using trace::kNone;

// A kernel that starts later than this behind what explains it waited for something else.
constexpr int64_t kEventDelayNs = 10'000;
// Times of a trace may be whole microseconds, and an end is the sum of two.
constexpr int64_t kRoundingNs = 2'000;
// A queue shorter than this never stopped a launch (CUDA's holds 1024).
constexpr size_t kShortestFullQueue = 512;
constexpr int64_t kLongestGapNs = 10'000;
constexpr int64_t kLongestReplyNs = 20'000;  // from the end of work to who waits for it

int64_t median(std::vector<int64_t> values, int64_t missing) {
  if (values.empty()) return missing;
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

int64_t end_of(const trace::KernelRow& kernel) {
  return kernel.start_ns + std::max<int64_t>(kernel.dur_ns, 0);
}

}  // namespace

StepReplay::StepReplay(const trace::EventTable& table) {
  if (table.kernels.empty()) return;
  add_kernels(table);
  add_calls(table);
  find_gaps(table);
  find_lanes(table);
  find_costs(table);
}

void StepReplay::add_kernels(const trace::EventTable& table) {
  std::map<std::pair<int32_t, int32_t>, int32_t> lanes;
  std::vector<int32_t> last;
  int64_t first = std::numeric_limits<int64_t>::max(), end = std::numeric_limits<int64_t>::min();
  for (size_t i = 0; i < table.kernels.size(); ++i) {
    const trace::KernelRow& row = table.kernels[i];
    const auto [it, is_new] =
        lanes.try_emplace({row.device, row.stream}, static_cast<int32_t>(lanes.size()));
    if (is_new) last.push_back(kNone);
    Kernel& kernel = kernels_.emplace_back();
    kernel.dur_ns = std::max<int64_t>(row.dur_ns, 0);
    kernel.lane = it->second;
    kernel.previous = last[kernel.lane];
    last[kernel.lane] = static_cast<int32_t>(i);
    first = std::min(first, row.launch_ns >= 0 ? row.launch_ns : row.start_ns);
    end = std::max(end, end_of(row));
    has_host_ |= row.launch_ns >= 0;
  }
  lanes_ = static_cast<int32_t>(lanes.size());
  int64_t host_end = std::numeric_limits<int64_t>::min();
  for (const trace::EventRow& event : table.events) {
    if (!has_host_) break;
    first = std::min(first, event.start_ns);
    host_end = std::max(host_end, event.start_ns + std::max<int64_t>(event.dur_ns, 0));
  }
  for (const trace::WaitRow& wait : table.waits)
    host_end = std::max(host_end, wait.start_ns + wait.dur_ns);
  begin_ns_ = first;
  recorded_ns_ = std::max(end, host_end) - first;
  tail_ns_ = host_end;
}

void StepReplay::add_calls(const trace::EventTable& table) {
  std::map<int64_t, Call> calls;  // by start: one thread launches at a time
  for (size_t i = 0; i < table.kernels.size(); ++i) {
    const trace::KernelRow& row = table.kernels[i];
    if (row.launch_ns < 0) {
      kernels_[i].not_before_ns = row.start_ns - begin_ns_;
      unlaunched_.push_back(static_cast<int32_t>(i));
      continue;
    }
    Call& call = calls[row.launch_ns];
    call.start_ns = row.launch_ns;
    call.dur_ns = std::max<int64_t>(row.launch_dur_ns, 0);
    call.kernels.push_back(static_cast<int32_t>(i));
  }
  std::map<int32_t, std::vector<int32_t>> lanes_of_stream;
  for (size_t i = 0; i < kernels_.size(); ++i) {
    std::vector<int32_t>& lanes = lanes_of_stream[table.kernels[i].stream];
    if (std::ranges::find(lanes, kernels_[i].lane) == lanes.end())
      lanes.push_back(kernels_[i].lane);
  }
  for (const trace::WaitRow& row : table.waits) {
    Call& call = calls[row.start_ns];
    call.start_ns = row.start_ns;
    call.dur_ns = row.dur_ns;
    call.waits = true;
    const auto lanes = lanes_of_stream.find(row.stream);
    if (lanes != lanes_of_stream.end()) call.lanes = lanes->second;
  }
  for (auto& [start, call] : calls) calls_.push_back(std::move(call));
  int64_t host = begin_ns_;
  for (Call& call : calls_) {
    call.before_ns = std::max<int64_t>(call.start_ns - host, 0);
    host = std::max(host, call.start_ns + call.dur_ns);
  }
  tail_ns_ = tail_ns_ > host ? tail_ns_ - host : 0;
}

// What the device itself takes between kernels, and from a launch to a kernel on an idle stream.
void StepReplay::find_gaps(const trace::EventTable& table) {
  std::vector<int64_t> latencies;
  for (size_t i = 0; i < kernels_.size(); ++i) {
    const trace::KernelRow& row = table.kernels[i];
    const int32_t previous = kernels_[i].previous;
    const bool idle = previous == kNone || end_of(table.kernels[previous]) <= row.launch_ns;
    if (row.launch_ns >= 0 && idle) latencies.push_back(row.start_ns - row.launch_ns);
  }
  const int64_t usual = median(latencies, 5000);
  std::vector<int32_t> last_of_lane(lanes_, kNone);
  for (size_t i = 0; i < kernels_.size(); ++i) {
    const trace::KernelRow& row = table.kernels[i];
    Kernel& kernel = kernels_[i];
    const int64_t free =
        kernel.previous == kNone ? begin_ns_ : end_of(table.kernels[kernel.previous]);
    if (row.launch_ns >= 0)
      kernel.latency_ns = std::clamp<int64_t>(row.start_ns - row.launch_ns, 0, usual);
    const int64_t longest = has_host_ ? kLongestGapNs : std::numeric_limits<int64_t>::max();
    kernel.gap_ns =
        kernel.previous == kNone ? 0 : std::clamp<int64_t>(row.start_ns - free, 0, longest);
    if (row.launch_ns >= 0 && row.launch_ns + kernel.latency_ns > free)
      kernel.gap_ns = std::min<int64_t>(kernel.gap_ns, 1000);
    // Later than its stream and its launch explain.
    const int64_t explained =
        std::max(free, row.launch_ns >= 0 ? row.launch_ns + kernel.latency_ns : row.start_ns);
    if (row.start_ns > explained + kEventDelayNs) {
      const int64_t launched = row.launch_ns + std::max<int64_t>(row.launch_dur_ns, 0);
      if (kernel.previous == kNone && row.start_ns <= launched + usual + kEventDelayNs) {
        kernel.latency_ns = row.start_ns - row.launch_ns;  // a first call sets up much
      } else if (kernel.previous == kNone) {
        kernel.busy_until_ns = row.start_ns - begin_ns_;
        before_file_ns_ = std::max(before_file_ns_, kernel.busy_until_ns);
      } else {
        kernel.awaited = awaited_by(table, static_cast<int32_t>(i), explained, last_of_lane);
      }
      if (kernel.awaited != kNone)
        kernel.behind_ns = std::min<int64_t>(row.start_ns - end_of(table.kernels[kernel.awaited]),
                                             kLongestReplyNs);
    }
    last_of_lane[kernel.lane] = static_cast<int32_t>(i);
  }
}

// The kernel whose end explains at least half of the delay, or which was all but done: the last
// blocks of a kernel that fills the device leave room for the next one.
int32_t StepReplay::awaited_by(const trace::EventTable& table, int32_t kernel, int64_t explained_ns,
                               const std::vector<int32_t>& last_of_lane) const {
  const auto launched = [&](int32_t k) {
    const trace::KernelRow& row = table.kernels[k];
    return row.launch_ns >= 0 ? row.launch_ns : row.start_ns;
  };
  const int64_t start = table.kernels[kernel].start_ns, delay = start - explained_ns;
  const int64_t overlap = std::max(kRoundingNs, delay / 10);
  int32_t nearest = kNone;
  int64_t nearest_ns = std::numeric_limits<int64_t>::max();
  for (int32_t other : last_of_lane) {
    if (other == kNone || kernels_[other].lane == kernels_[kernel].lane) continue;
    for (; other != kNone; other = kernels_[other].previous) {
      const int64_t behind = start - end_of(table.kernels[other]);
      if (behind > delay / 2) break;
      if (behind < -overlap || launched(other) > launched(kernel)) continue;
      if (std::abs(behind) < nearest_ns) {
        nearest = other;
        nearest_ns = std::abs(behind);
      }
      if (behind >= 0) break;
    }
  }
  return nearest;
}

// Of a wait that names no stream: those whose work launched before it had ended when it ended.
void StepReplay::find_lanes(const trace::EventTable& table) {
  std::vector<std::vector<std::pair<int64_t, int64_t>>> launches(
      lanes_);  // and the last end so far
  for (size_t k = 0; k < kernels_.size(); ++k) {
    const trace::KernelRow& row = table.kernels[k];
    if (row.launch_ns >= 0) launches[kernels_[k].lane].emplace_back(row.launch_ns, end_of(row));
  }
  for (auto& lane : launches) {
    std::ranges::sort(lane);
    for (size_t i = 1; i < lane.size(); ++i)
      lane[i].second = std::max(lane[i].second, lane[i - 1].second);
  }
  for (Call& call : calls_) {
    if (!call.waits || !call.lanes.empty()) continue;
    for (int32_t lane = 0; lane < lanes_; ++lane) {
      const auto behind = std::ranges::upper_bound(launches[lane], call.start_ns, {},
                                                   [](const auto& launch) { return launch.first; });
      if (behind == launches[lane].begin() ||
          std::prev(behind)->second <= call.start_ns + call.dur_ns + kRoundingNs)
        call.lanes.push_back(lane);
    }
  }
}

// A launch into a full queue takes as long as the device does: that is no cost of the host's.
void StepReplay::find_costs(const trace::EventTable& table) {
  std::vector<int64_t> starts, plain;
  for (const trace::KernelRow& row : table.kernels)
    if (row.launch_ns >= 0) starts.push_back(row.start_ns);
  std::vector<size_t> queued;
  size_t launched = 0;
  for (const Call& call : calls_) {
    const auto started =
        static_cast<size_t>(std::ranges::upper_bound(starts, call.start_ns) - starts.begin());
    queued.push_back(launched > started ? launched - started : 0);
    longest_queue_ = std::max(longest_queue_, queued.back());
    launched += call.kernels.size();
    if (!call.waits && !call.kernels.empty()) plain.push_back(call.dur_ns);
  }
  std::vector<std::vector<int64_t>> ends(lanes_);  // in order, by lane
  for (size_t k = 0; k < kernels_.size(); ++k) {
    std::vector<int64_t>& lane = ends[kernels_[k].lane];
    lane.push_back(std::max(lane.empty() ? begin_ns_ : lane.back(), end_of(table.kernels[k])));
  }
  const int64_t usual = median(plain, 5000);
  const auto full = static_cast<size_t>(0.97 * static_cast<double>(longest_queue_));
  for (size_t i = 0; i < calls_.size(); ++i) {
    Call& call = calls_[i];
    call.queue_full =
        longest_queue_ >= kShortestFullQueue && queued[i] >= full && call.dur_ns > 2 * usual;
    call.cost_ns = call.queue_full || call.waits ? std::min(call.dur_ns, usual) : call.dur_ns;
    if (!call.waits) continue;
    const int64_t end = call.start_ns + call.dur_ns;
    int64_t done = begin_ns_;
    for (const int32_t lane : call.lanes) {
      const auto behind = std::ranges::upper_bound(ends[lane], end + kRoundingNs);
      if (behind != ends[lane].begin()) done = std::max(done, *std::prev(behind));
    }
    call.reply_ns = std::clamp<int64_t>(end - std::max(done, call.start_ns), 0, kLongestReplyNs);
  }
}

int64_t StepReplay::play(const ReplayChange& change, Scale scale) const {
  std::vector<char> removed(kernels_.size(), 0);
  for (const int32_t kernel : change.removed) removed[kernel] = 1;
  std::vector<int64_t> dur;
  dur.reserve(kernels_.size());
  for (const Kernel& kernel : kernels_) dur.push_back(scale.device ? kernel.dur_ns : 0);
  for (const auto& [kernel, ns] : change.durations_ns)
    if (scale.device) dur[kernel] = ns;
  std::vector<int64_t> end(kernels_.size(), 0), lane_end(lanes_, 0), starts;
  int64_t device_end = 0;
  const auto place = [&](int32_t row, int64_t launched) {
    const Kernel& kernel = kernels_[row];
    int64_t free = lane_end[kernel.lane];
    if (scale.device) free = std::max(free, kernel.busy_until_ns);
    if (removed[row]) {  // what it waited for, the stream still waits for
      if (kernel.awaited != kNone) free = std::max(free, end[kernel.awaited]);
      end[row] = lane_end[kernel.lane] = free;
      return;
    }
    int64_t start = std::max(free + (scale.device ? kernel.gap_ns : 0), launched);
    if (kernel.awaited != kNone) start = std::max(start, end[kernel.awaited] + kernel.behind_ns);
    starts.push_back(start);
    end[row] = lane_end[kernel.lane] = start + dur[row];
    device_end = std::max(device_end, end[row]);
  };
  size_t unlaunched = 0;
  const auto place_unlaunched = [&](int32_t before) {
    while (unlaunched < unlaunched_.size() && unlaunched_[unlaunched] < before) {
      const int32_t row = unlaunched_[unlaunched++];
      // Without launches the gaps are all that is known; with them it began before the window.
      place(row, has_host_ && scale.host ? kernels_[row].not_before_ns : 0);
    }
  };
  int64_t host = 0;
  for (const Call& call : calls_) {
    const bool gone = !call.kernels.empty() && !call.waits &&
                      std::ranges::all_of(call.kernels, [&](int32_t k) { return removed[k] != 0; });
    if (scale.host && !gone) host += call.before_ns;
    for (const int32_t row : call.kernels) {
      place_unlaunched(row);
      place(row, host + (scale.host ? kernels_[row].latency_ns : 0));
    }
    if (scale.host && !gone) host += call.cost_ns;
    if (call.queue_full && starts.size() > longest_queue_)
      host = std::max(host, starts[starts.size() - longest_queue_]);
    if (call.waits) {
      for (const int32_t lane : call.lanes)
        host = std::max(host, lane_end[lane] + (scale.host ? call.reply_ns : 0));
    }
  }
  place_unlaunched(std::numeric_limits<int32_t>::max());
  if (scale.host) host += tail_ns_;
  return std::max(host, device_end);
}

int64_t StepReplay::run(const ReplayChange& change) const { return play(change, {}); }
int64_t StepReplay::host_alone_ns() const { return play({}, {true, false}); }
int64_t StepReplay::device_alone_ns() const { return play({}, {false, true}); }

double StepReplay::error() const {
  if (recorded_ns_ <= 0) return 0;
  return std::abs(static_cast<double>(run() - recorded_ns_)) / static_cast<double>(recorded_ns_);
}

}  // namespace opfuse::price
