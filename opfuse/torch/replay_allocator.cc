#include "opfuse/torch/replay_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <pthread.h>

#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

namespace opfuse::torch_bridge {
namespace {

constexpr size_t kAlignment = 64;         // as c10's own allocator
constexpr size_t kCachedFrom = 64 << 10;  // smaller blocks: malloc keeps their pages itself

// Stands in the kAlignment bytes before each block.
struct Header {
  size_t capacity;
  bool cached;   // goes back to the free lists
  bool limited;  // counts against the replay's limit
};
static_assert(sizeof(Header) <= kAlignment);

// Eight classes per power of two: at most 12.5 % are wasted.
size_t class_of(size_t bytes) {
  const int power = std::bit_width(bytes - 1);
  const size_t step = size_t{1} << (power - 4);
  return (bytes + step - 1) / step * step;
}

class CachingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = get(bytes);
    return {data, data, &CachingAllocator::release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &CachingAllocator::release; }
  void copy_data(void* to, const void* from, size_t count) const override {
    std::memcpy(to, from, count);
  }

  static CachingAllocator& instance() {
    static CachingAllocator* allocator = [] {
      auto* made = new CachingAllocator;  // never deleted: blocks outlive everything
      pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                     [] { instance().mutex_.unlock(); });
      return made;
    }();
    return *allocator;
  }

  void trim() {
    std::vector<FreeList> lists;
    {
      std::lock_guard lock(mutex_);
      lists.swap(lists_);
    }
    for (FreeList& list : lists)
      for (void* block : list.blocks) std::free(block);
  }

  static thread_local bool limited_thread;
  std::atomic<int64_t> limit{-1}, live{0}, peak{0};

 private:
  struct FreeList {
    size_t capacity;
    std::vector<void*> blocks;
  };

  static Header* header_of(void* data) {
    return reinterpret_cast<Header*>(static_cast<char*>(data) - kAlignment);
  }

  void* get(size_t bytes) {
    if (bytes == 0) return nullptr;
    const bool cached = bytes >= kCachedFrom;
    const size_t capacity = cached ? class_of(bytes) : bytes;
    if (limited_thread) count(static_cast<int64_t>(capacity));
    void* block = cached ? take(capacity) : nullptr;
    if (!block && posix_memalign(&block, kAlignment, capacity + kAlignment) != 0) {
      if (limited_thread) live -= static_cast<int64_t>(capacity);
      TORCH_CHECK_WITH(OutOfMemoryError, false, "replay: expected ", bytes, " bytes, found none");
    }
    void* data = static_cast<char*>(block) + kAlignment;
    *header_of(data) = {capacity, cached, limited_thread};
    return data;
  }

  void count(int64_t bytes) {
    const int64_t now = live += bytes;
    if (now > peak) peak = now;
    if (limit < 0 || now <= limit) return;
    live -= bytes;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "replay: expected at most ", limit.load(),
                     " bytes of tensors, found ", now);
  }

  void* take(size_t capacity) {
    std::lock_guard lock(mutex_);
    for (FreeList& list : lists_) {
      if (list.capacity != capacity || list.blocks.empty()) continue;
      void* block = list.blocks.back();
      list.blocks.pop_back();
      return block;
    }
    return nullptr;
  }

  static void release(void* data) {
    if (!data) return;
    const Header header = *header_of(data);
    void* block = header_of(data);
    CachingAllocator& self = instance();
    if (header.limited) self.live -= static_cast<int64_t>(header.capacity);
    if (header.cached && self.active_ > 0 && self.give(header.capacity, block)) return;
    std::free(block);
  }

  bool give(size_t capacity, void* block) {
    std::lock_guard lock(mutex_);
    for (FreeList& list : lists_) {
      if (list.capacity != capacity) continue;
      list.blocks.push_back(block);
      return true;
    }
    lists_.push_back({capacity, {block}});
    return true;
  }

  std::mutex mutex_;
  std::vector<FreeList> lists_;  // a few dozen sizes in a step

 public:
  std::atomic<int> active_{0};  // replays in progress: outside of them blocks are not kept
};

thread_local bool CachingAllocator::limited_thread = false;

}  // namespace

ReplayMemory::ReplayMemory(int64_t max_bytes) : previous_(c10::GetCPUAllocator()) {
  CachingAllocator& allocator = CachingAllocator::instance();
  allocator.limit = max_bytes;
  allocator.peak = allocator.live.load();
  ++allocator.active_;
  CachingAllocator::limited_thread = true;
  c10::SetCPUAllocator(&allocator);
}

ReplayMemory::~ReplayMemory() {
  c10::SetCPUAllocator(previous_);
  CachingAllocator::limited_thread = false;
  --CachingAllocator::instance().active_;
}

int64_t ReplayMemory::peak_bytes() const { return CachingAllocator::instance().peak; }

void trim_replay_memory() { CachingAllocator::instance().trim(); }

}  // namespace opfuse::torch_bridge
