// torch's CPU memory from a BlockCache, switched on and off at run time. C functions for
// python/opfuse/memory.py.
//
// Safe while tensors are alive: each carries the function that frees it, and the cache is never
// destroyed. resize_() of a tensor goes to the allocator that made it.

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <mutex>

#include "opfuse/base/block_cache.h"

namespace opfuse::torch_ops {
namespace {

BlockCache& cache() {
  static auto* instance = new BlockCache;  // never deleted: blocks outlive everything
  return *instance;
}

void release(void* data) {
  if (!data) return;
  c10::profiledCPUMemoryReporter().Delete(data);  // the profiler's memory events, as torch's own
  BlockCache::release(data);
}

class CachingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = cache().allocate(bytes);
    if (bytes != 0 && !data) {
      c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
      TORCH_CHECK_WITH(OutOfMemoryError, false, "opfuse: expected ", bytes,
                       " bytes of memory, found none");
    }
    if (data) c10::profiledCPUMemoryReporter().New(data, bytes);
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t count) const override {
    std::memcpy(to, from, count);
  }
};

CachingAllocator* allocator() {
  static auto* instance = new CachingAllocator;
  return instance;
}

std::mutex switch_mutex;
c10::Allocator* previous = nullptr;  // what was there before; null while ours is not in use

}  // namespace
}  // namespace opfuse::torch_ops

#define OPFUSE_API __attribute__((visibility("default")))

extern "C" {

// Uses the caching allocator for CPU tensors from now on; it keeps at most `limit` bytes of freed
// blocks. 1, or 0 when somebody has installed an allocator of a higher priority since.
OPFUSE_API int opfuse_memory_use(int64_t limit) {
  using namespace opfuse::torch_ops;
  std::lock_guard lock(switch_mutex);
  cache().set_limit(limit);
  c10::Allocator* current = c10::GetCPUAllocator();
  if (current == allocator()) return 1;
  c10::SetCPUAllocator(allocator());
  if (c10::GetCPUAllocator() != allocator()) return 0;
  previous = current;
  return 1;
}

// Puts the allocator back that was there before, and gives kept blocks to the system. Tensors that
// are alive stay valid.
OPFUSE_API void opfuse_memory_stop() {
  using namespace opfuse::torch_ops;
  std::lock_guard lock(switch_mutex);
  if (previous && c10::GetCPUAllocator() == allocator()) c10::SetCPUAllocator(previous);
  previous = nullptr;
  cache().set_limit(0);
}

OPFUSE_API int opfuse_memory_in_use() {
  return c10::GetCPUAllocator() == opfuse::torch_ops::allocator();
}

OPFUSE_API int64_t opfuse_memory_trim() { return opfuse::torch_ops::cache().trim(); }

OPFUSE_API void opfuse_memory_reset_peak() { opfuse::torch_ops::cache().reset_peak(); }

// live, peak, cached bytes; hits, misses, evictions.
OPFUSE_API void opfuse_memory_statistics(int64_t* out) {
  const opfuse::BlockCache::Statistics s = opfuse::torch_ops::cache().statistics();
  const int64_t values[] = {s.live_bytes, s.peak_bytes, s.cached_bytes,
                            s.hits,       s.misses,     s.evictions};
  std::memcpy(out, values, sizeof values);
}
}
