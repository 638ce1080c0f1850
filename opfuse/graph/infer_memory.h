#pragma once
// Blocks of memory over time, from the allocation events of a trace file. Internal to graph/.

#include <cstdint>
#include <limits>
#include <vector>

#include "opfuse/trace/event_table.h"

namespace opfuse::graph {

struct Buffer {
  int64_t made_ns = std::numeric_limits<int64_t>::min();  // before the file began
  int64_t freed_ns = std::numeric_limits<int64_t>::max();
  int64_t bytes = 0;
  int32_t thread = trace::kNone;
};

// Allocators round up to this many bytes (CUDACachingAllocator's kMinBlockSize).
constexpr int64_t kAllocationGrain = 512;

inline bool fits_buffer(int64_t bytes, const Buffer& buffer) {
  return bytes == buffer.bytes ||
         (bytes + kAllocationGrain - 1) / kAllocationGrain * kAllocationGrain == buffer.bytes;
}

class MemoryTimeline {
 public:
  explicit MemoryTimeline(const trace::EventTable& table);

  const Buffer& buffer(int32_t id) const { return buffers_[id]; }
  size_t size() const { return buffers_.size(); }
  // Blocks made on `thread` in [from, to] that are alive after `to`, in order.
  std::vector<int32_t> survivors(int32_t thread, int64_t from, int64_t to) const;

 private:
  std::vector<Buffer> buffers_;
  std::vector<std::vector<int32_t>> made_by_;  // by thread, in order of time
};

}  // namespace opfuse::graph
