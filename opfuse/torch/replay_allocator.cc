#include "opfuse/torch/replay_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstring>

#include "opfuse/base/block_cache.h"

namespace opfuse::torch_bridge {
namespace {

constexpr int64_t kKeepAll = INT64_MAX / 2;
// Of other threads: those that help the replay want little at a time.
constexpr int64_t kKeepOthers = 256 << 20;

class ReplayAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes == 0 ? nullptr : get(bytes);
    return {data, data, &BlockCache::release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &BlockCache::release; }
  void copy_data(void* to, const void* from, size_t count) const override {
    std::memcpy(to, from, count);
  }

  static ReplayAllocator& instance() {
    static auto* allocator = new ReplayAllocator;  // never deleted: blocks outlive everything
    return *allocator;
  }

  void begin(int64_t max_bytes) {
    limit_ = max_bytes;
    own_.reset_peak();
    own_.set_limit(kKeepAll);
    others_.set_limit(kKeepOthers);
  }
  // Blocks that were kept stay for the next replay; what is freed from now on does not.
  void end() {
    if (--active_ == 0) others_.set_limit(0);
  }
  void trim() {
    own_.trim();
    if (active_ == 0) own_.set_limit(0);
  }
  int64_t peak_bytes() const { return own_.statistics().peak_bytes; }

  static thread_local bool replays;  // this thread runs a replay
  std::atomic<int> active_{0};       // replays in progress

 private:
  void* get(size_t bytes) {
    BlockCache& cache = replays ? own_ : others_;
    if (replays && limit_ >= 0) {
      const int64_t now = own_.live_bytes() + static_cast<int64_t>(BlockCache::class_size(bytes));
      TORCH_CHECK_WITH(OutOfMemoryError, now <= limit_, "replay: expected at most ", limit_.load(),
                       " bytes of tensors, found ", now);
    }
    void* data = cache.allocate(bytes);
    TORCH_CHECK_WITH(OutOfMemoryError, data != nullptr, "replay: expected ", bytes,
                     " bytes, found none");
    return data;
  }

  BlockCache own_, others_;
  std::atomic<int64_t> limit_{-1};
};

thread_local bool ReplayAllocator::replays = false;

}  // namespace

ReplayMemory::ReplayMemory(int64_t max_bytes) : previous_(c10::GetCPUAllocator()) {
  ReplayAllocator& allocator = ReplayAllocator::instance();
  ++allocator.active_;
  allocator.begin(max_bytes);
  ReplayAllocator::replays = true;
  c10::SetCPUAllocator(&allocator);
}

ReplayMemory::~ReplayMemory() {
  c10::SetCPUAllocator(previous_);
  ReplayAllocator::replays = false;
  ReplayAllocator::instance().end();
}

int64_t ReplayMemory::peak_bytes() const { return ReplayAllocator::instance().peak_bytes(); }

void trim_replay_memory() { ReplayAllocator::instance().trim(); }

}  // namespace opfuse::torch_bridge
