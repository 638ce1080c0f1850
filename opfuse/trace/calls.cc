#include "opfuse/trace/calls.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

#include "opfuse/trace/id_index.h"

namespace opfuse::trace {
namespace {

constexpr int64_t kSlackNs = 1000;

class CallFinder {
 public:
  CallFinder(const TraceFile& file, LossLog* losses) : file_(file), losses_(*losses) {}

  Calls run() {
    calls_.parent.assign(file_.size(), kNone);
    calls_.launch.assign(file_.size(), kNone);
    calls_.operator_of.assign(file_.size(), kNone);
    sort_host();
    nest();
    join_device();
    clip_device();
    return std::move(calls_);
  }

 private:
  int64_t start(int32_t row) const { return file_.start_ns[row]; }
  int64_t end(int32_t row) const {
    return file_.start_ns[row] + std::max<int64_t>(file_.dur_ns[row], 0);
  }

  void sort_host() {
    std::vector<int32_t>& rows = calls_.host;
    for (size_t i = 0; i < file_.size(); ++i)
      if (is_host(file_.kind[i]) && file_.start_ns[i] != kNoTime)
        rows.push_back(static_cast<int32_t>(i));
    // Of equal times the row that comes first in the file is the outer one, as in every sample.
    const auto before = [&](int32_t a, int32_t b) {
      return std::tuple(file_.thread[a], start(a), -end(a), a) <
             std::tuple(file_.thread[b], start(b), -end(b), b);
    };
    if (!std::ranges::is_sorted(rows, before)) std::ranges::sort(rows, before);
  }

  void nest() {
    std::vector<int32_t> open;
    int32_t thread = kNone;
    for (int32_t row : calls_.host) {
      if (file_.thread[row] != thread) open.clear();
      thread = file_.thread[row];
      while (!open.empty() && !inside(row, open.back())) open.pop_back();
      if (!open.empty()) {
        calls_.parent[row] = open.back();
        if (end(row) > end(open.back()) + kSlackNs) losses_.add(LossKind::kCrossingSlices);
      }
      open.push_back(row);
    }
  }

  bool inside(int32_t row, int32_t outer) const {
    if (start(row) >= end(outer)) return false;
    // One that only touches the end by rounding follows it.
    return end(row) <= end(outer) + kSlackNs || end(outer) - start(row) > kSlackNs;
  }

  void join_device() {
    IdIndex launches(file_, FileKind::kRuntime), operators(file_, FileKind::kOperator);
    learn_processes(&launches, &operators);
    std::unordered_map<int32_t, int32_t> kernels_of;  // by launch
    find_flows();
    for (size_t i = 0; i < file_.size(); ++i) {
      if (!is_device_work(file_.kind[i])) continue;
      const int64_t correlation = file_.id[i];
      if (correlation == 0) losses_.add(LossKind::kCorrelationZero);
      if (launches.shared(correlation)) losses_.add(LossKind::kCorrelationShared);
      const int32_t launch = launches.find(correlation, static_cast<int32_t>(i));
      if (launch != kNone) {
        calls_.launch[i] = launch;
        calls_.operator_of[i] = operator_around(launch);
        if (++kernels_of[launch] == 2) ++calls_.graph_launches;
      }
      if (calls_.operator_of[i] == kNone && external_of(i) != kNone)
        calls_.operator_of[i] = operators.find(external_of(i), static_cast<int32_t>(i));
      if (calls_.operator_of[i] == kNone) join_by_flow(i);
      if (file_.kind[i] == FileKind::kKernel && calls_.launch[i] == kNone &&
          calls_.operator_of[i] == kNone && !is_operator_itself(i)) {
        ++calls_.orphans;
        losses_.add(LossKind::kKernelOrphan);
      }
    }
  }

  int32_t operator_around(int32_t row) const {
    for (row = calls_.parent[row]; row != kNone; row = calls_.parent[row])
      if (file_.kind[row] == FileKind::kOperator) return row;
    return kNone;
  }

  // Ascend: an arrow from the host (torch_to_npu) ends exactly where the kernel starts.
  bool is_npu_flow(size_t row, char phase) const {
    return file_.kind[row] == FileKind::kFlow && file_.phase[row] == phase &&
           file_.text(file_.categories[file_.category[row]]) == "async_npu";
  }

  void find_flows() {
    std::unordered_map<int64_t, int32_t> begun;
    for (size_t i = 0; i < file_.size(); ++i)
      if (is_npu_flow(i, 's')) begun.emplace(file_.id[i], static_cast<int32_t>(i));
    for (size_t i = 0; i < file_.size() && !begun.empty(); ++i) {
      if (!is_npu_flow(i, 'f')) continue;
      const auto it = begun.find(file_.id[i]);
      if (it != begun.end()) flow_start_[{file_.thread[i], file_.start_ns[i]}] = it->second;
    }
  }

  // The arrow's beginning stands for the launch.
  void join_by_flow(size_t row) {
    const auto it = flow_start_.find({file_.thread[row], file_.start_ns[row]});
    if (it == flow_start_.end()) return;
    calls_.operator_of[row] = operator_at(it->second);
    if (calls_.launch[row] == kNone) calls_.launch[row] = it->second;
  }

  // The innermost operator on the thread of `row` at its time.
  int32_t operator_at(int32_t row) const {
    const auto before = [&](int32_t a, int32_t b) {
      return std::tuple(file_.thread[a], start(a)) < std::tuple(file_.thread[b], start(b));
    };
    auto it = std::upper_bound(calls_.host.begin(), calls_.host.end(), row, before);
    if (it == calls_.host.begin()) return kNone;
    int32_t found = *--it;
    if (file_.thread[found] != file_.thread[row]) return kNone;
    while (found != kNone && (end(found) < start(row) || file_.kind[found] != FileKind::kOperator))
      found = calls_.parent[found];
    return found;
  }

  int64_t external_of(size_t row) const {
    return file_.detail[row] == kNone ? kNone : file_.devices[file_.detail[row]].external;
  }

  void learn_processes(IdIndex* launches, IdIndex* operators) const {
    if (!launches->ambiguous() && !operators->ambiguous()) return;
    std::vector<std::pair<int32_t, int64_t>> correlations, externals;
    for (size_t i = 0; i < file_.size(); ++i) {
      if (!is_device_work(file_.kind[i])) continue;
      correlations.emplace_back(static_cast<int32_t>(i), file_.id[i]);
      externals.emplace_back(static_cast<int32_t>(i), external_of(i));
    }
    launches->learn(correlations);
    operators->learn(externals);
  }

  // A row of a table of kernels, which says what it computes.
  bool is_operator_itself(size_t row) const {
    return file_.detail[row] != kNone && file_.devices[file_.detail[row]].shapes != kNone;
  }

  // One stream runs its work in order. What begins before the one before it ends - a programmatic
  // dependent launch, or a duration that is too long - ends that one's time.
  void clip_device() {
    std::vector<int32_t> rows;
    for (size_t i = 0; i < file_.size(); ++i)
      if (is_device_work(file_.kind[i]) && file_.start_ns[i] != kNoTime && file_.dur_ns[i] >= 0)
        rows.push_back(static_cast<int32_t>(i));
    std::ranges::stable_sort(
        rows, {}, [&](int32_t row) { return std::pair(file_.thread[row], file_.start_ns[row]); });
    for (size_t i = 0; i + 1 < rows.size(); ++i) {
      const int32_t row = rows[i], next = rows[i + 1];
      if (file_.thread[next] != file_.thread[row] || start(next) + kSlackNs >= end(row)) continue;
      calls_.clipped_ns[row] = start(next) - start(row);
      losses_.add(LossKind::kKernelOverlap);
    }
  }

  const TraceFile& file_;
  LossLog& losses_;
  std::map<std::pair<int32_t, int64_t>, int32_t> flow_start_;  // by thread and time of its end
  Calls calls_;
};

}  // namespace

bool is_host(FileKind kind) {
  return kind == FileKind::kOperator || kind == FileKind::kAnnotation ||
         kind == FileKind::kPython || kind == FileKind::kRuntime;
}

bool is_device_work(FileKind kind) {
  return kind == FileKind::kKernel || kind == FileKind::kMemcpy || kind == FileKind::kMemset;
}

Calls find_calls(const TraceFile& file, LossLog* losses) { return CallFinder(file, losses).run(); }

}  // namespace opfuse::trace
