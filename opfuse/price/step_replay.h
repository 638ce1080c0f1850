#pragma once
// A recorded step played again as a list schedule of two kinds of lanes: the host, which launches
// one after another and waits where it waited, and one lane a stream of the device. Edges: a kernel
// starts after its launch, after the kernel before it on its stream, and after one of another
// stream that it was seen to wait for; a waiting call ends after the work that it waits for; a
// launch waits while the queue is as long as it ever was; the first kernel of a stream that began
// long after its launch waited for work from before the file. Played as recorded it must give the
// recorded time; with chains replaced it predicts what the step gains. Predicted, never measured.
//
// Traces do not say which kernel another one waited for. Of the kernels of other streams that were
// launched earlier, it is the one whose end is nearest to the start that nothing else explains: an
// event that it waited for, or a kernel that filled the device, whose last blocks may overlap. A
// wait that does not name its stream is not for a stream whose earlier work ended later.

#include <cstdint>
#include <vector>

#include "opfuse/trace/event_table.h"

namespace opfuse::price {

// What a chain's calls become: rows of EventTable::kernels.
struct ReplayChange {
  std::vector<int32_t> removed;                           // with the host's time for their launch
  std::vector<std::pair<int32_t, int64_t>> durations_ns;  // kernels that take another time
};

class StepReplay {
 public:
  explicit StepReplay(const trace::EventTable& table);

  // False where the file has no launches: the device's lanes alone are played then, with the gaps
  // as they were.
  bool has_host() const { return has_host_; }
  bool empty() const { return kernels_.empty(); }
  int64_t recorded_ns() const { return recorded_ns_; }
  // Of the recorded time: until the last stream began that work from before the file kept busy.
  int64_t before_file_ns() const { return before_file_ns_; }
  int64_t run(const ReplayChange& change = {}) const;
  // With all of the device's work, or all of the host's, in no time: who decides the step.
  int64_t host_alone_ns() const;
  int64_t device_alone_ns() const;
  // |played as recorded - recorded| / recorded.
  double error() const;

 private:
  struct Kernel {
    int64_t dur_ns = 0;
    int64_t latency_ns = 0;           // from its launch, at least
    int64_t gap_ns = 0;               // behind the kernel before it on its stream, at least
    int64_t not_before_ns = -1;       // without a launch: its recorded start
    int64_t busy_until_ns = 0;        // of its stream, by work from before the file
    int32_t previous = trace::kNone;  // on its stream
    int32_t awaited = trace::kNone;   // on another stream
    int64_t behind_ns = 0;            // its start behind the end of that one; below 0: overlapping
    int32_t lane = 0;
  };
  // A call of the host: launches, or waits, or both.
  struct Call {
    int64_t start_ns = 0, dur_ns = 0;  // as recorded
    int64_t before_ns = 0;             // the host's own time since the call before
    int64_t cost_ns = 0;               // of the call itself
    int64_t reply_ns = 0;              // from the end of the work to the end of the wait
    std::vector<int32_t> kernels;
    bool waits = false, queue_full = false;
    std::vector<int32_t> lanes;  // waited for
  };
  struct Scale {
    bool host = true, device = true;  // false: takes no time
  };

  void add_kernels(const trace::EventTable& table);
  void add_calls(const trace::EventTable& table);
  void find_gaps(const trace::EventTable& table);
  int32_t awaited_by(const trace::EventTable& table, int32_t kernel, int64_t explained_ns,
                     const std::vector<int32_t>& last_of_lane) const;
  void find_lanes(const trace::EventTable& table);
  void find_costs(const trace::EventTable& table);
  int64_t play(const ReplayChange& change, Scale scale) const;

  std::vector<Kernel> kernels_;  // rows of the table
  std::vector<Call> calls_;      // in order of start
  std::vector<int32_t> unlaunched_;
  int64_t begin_ns_ = 0, recorded_ns_ = 0, before_file_ns_ = 0;
  int64_t tail_ns_ = 0;  // the host's time behind its calls
  int32_t lanes_ = 0;
  size_t longest_queue_ = 0;
  bool has_host_ = false;
};

}  // namespace opfuse::price
