#include "opfuse/graph/infer_memory.h"

#include <algorithm>
#include <map>

namespace opfuse::graph {

MemoryTimeline::MemoryTimeline(const trace::EventTable& table) : made_by_(table.threads.size()) {
  std::map<std::pair<int8_t, int64_t>, int32_t> open;  // by device and address
  for (const trace::MemoryRow& row : table.memory) {
    constexpr int64_t kMost = int64_t{1} << 50;  // more than a machine has is damage
    if (row.bytes > kMost || row.bytes < -kMost) continue;
    const std::pair key(row.device, row.address);
    if (row.bytes > 0) {
      open[key] = static_cast<int32_t>(buffers_.size());
      made_by_[row.thread].push_back(open[key]);
      Buffer& buffer = buffers_.emplace_back();
      buffer.made_ns = row.time_ns;
      buffer.bytes = row.bytes;
      buffer.thread = row.thread;
    } else if (const auto it = open.find(key); it != open.end()) {
      buffers_[it->second].freed_ns = row.time_ns;
      open.erase(it);
    }
  }
}

std::vector<int32_t> MemoryTimeline::survivors(int32_t thread, int64_t from, int64_t to) const {
  std::vector<int32_t> found;
  const std::vector<int32_t>& made = made_by_[thread];
  auto it =
      std::ranges::lower_bound(made, from, {}, [&](int32_t id) { return buffers_[id].made_ns; });
  for (; it != made.end() && buffers_[*it].made_ns <= to; ++it)
    if (buffers_[*it].freed_ns > to) found.push_back(*it);
  return found;
}

}  // namespace opfuse::graph
