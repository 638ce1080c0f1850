#include "opfuse/base/block_cache.h"

#include <pthread.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <new>

namespace opfuse {

// Stands in the kAlignment bytes before each block. While a block is kept it is a member of two
// lists: of its size class, and of all kept blocks by the time when they were freed.
struct BlockCache::Header {
  BlockCache* cache;
  size_t capacity;
  bool cacheable;
  Header *above, *below;  // in the size class; `above` was freed later
  Header *newer, *older;  // among all
};

namespace {

std::mutex& registry_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
BlockCache* first_cache = nullptr;

}  // namespace

BlockCache::BlockCache() {
  static_assert(sizeof(Header) <= kAlignment);
  std::lock_guard lock(registry_mutex());
  if (!first_cache) pthread_atfork(&before_fork, &after_fork, &after_fork);
  next_cache_ = first_cache;
  first_cache = this;
}

// A child must not inherit a lock that another thread of the parent held.
void BlockCache::before_fork() {
  registry_mutex().lock();
  for (BlockCache* cache = first_cache; cache; cache = cache->next_cache_) cache->mutex_.lock();
}

void BlockCache::after_fork() {
  for (BlockCache* cache = first_cache; cache; cache = cache->next_cache_) cache->mutex_.unlock();
  registry_mutex().unlock();
}

BlockCache::Header* BlockCache::header_of(void* data) {
  return reinterpret_cast<Header*>(static_cast<char*>(data) - kAlignment);
}

size_t BlockCache::capacity_of(const void* data) {
  return header_of(const_cast<void*>(data))->capacity;
}

size_t BlockCache::class_size(size_t bytes) {
  if (bytes < kCachedFrom) return bytes;
  const size_t step = size_t{1} << (std::bit_width(bytes - 1) - 4);
  return (bytes + step - 1) / step * step;
}

int BlockCache::group_of(size_t capacity) {
  const int power = std::bit_width(capacity - 1);
  const size_t step = size_t{1} << (power - 4);
  return power * 8 + static_cast<int>(capacity / step) - 9;  // capacity / step is 9 to 16
}

void* BlockCache::allocate(size_t bytes) {
  if (bytes == 0 || bytes > SIZE_MAX / 4) return nullptr;
  const bool cacheable = bytes >= kCachedFrom;
  const size_t capacity = class_size(bytes);
  Header* header = cacheable ? take(capacity) : nullptr;
  if (!header) {
    void* block = nullptr;
    const size_t whole = capacity + kAlignment;
    if (posix_memalign(&block, kAlignment, whole) != 0 &&
        (trim() == 0 || posix_memalign(&block, kAlignment, whole) != 0))
      return nullptr;
    header = new (block) Header{this, capacity, cacheable, nullptr, nullptr, nullptr, nullptr};
  }
  const int64_t live = live_ += static_cast<int64_t>(capacity);
  int64_t peak = peak_.load(std::memory_order_relaxed);
  while (live > peak && !peak_.compare_exchange_weak(peak, live)) {
  }
  return reinterpret_cast<char*>(header) + kAlignment;
}

void BlockCache::release(void* data) {
  if (!data) return;
  Header* header = header_of(data);
  BlockCache* cache = header->cache;
  cache->live_ -= static_cast<int64_t>(header->capacity);
  if (header->cacheable) {
    cache->keep(header);
  } else {
    std::free(header);
  }
}

BlockCache::Header* BlockCache::take(size_t capacity) {
  std::lock_guard lock(mutex_);
  Header* header = groups_[group_of(capacity)];
  ++(header ? hits_ : misses_);
  if (header) unlink(header);
  return header;
}

void BlockCache::keep(Header* header) {
  Header* evicted = header;
  {
    std::lock_guard lock(mutex_);
    header->above = header->newer = header->older = header->below = nullptr;
    if (static_cast<int64_t>(header->capacity) <= limit_) {
      evicted = evict(limit_ - static_cast<int64_t>(header->capacity));
      Header*& top = groups_[group_of(header->capacity)];
      header->below = top;
      if (top) top->above = header;
      top = header;
      header->older = newest_;
      (newest_ ? newest_->newer : oldest_) = header;
      newest_ = header;
      cached_ += static_cast<int64_t>(header->capacity);
    }
  }
  free_chain(evicted);
}

void BlockCache::unlink(Header* header) {
  (header->above ? header->above->below : groups_[group_of(header->capacity)]) = header->below;
  if (header->below) header->below->above = header->above;
  (header->newer ? header->newer->older : newest_) = header->older;
  (header->older ? header->older->newer : oldest_) = header->newer;
  cached_ -= static_cast<int64_t>(header->capacity);
}

// Takes out the oldest until `limit` bytes are left; they come back chained by `below`.
BlockCache::Header* BlockCache::evict(int64_t limit) {
  Header* chain = nullptr;
  while (oldest_ && cached_ > limit) {
    Header* header = oldest_;
    unlink(header);
    header->below = chain;
    chain = header;
    ++evictions_;
  }
  return chain;
}

void BlockCache::free_chain(Header* header) {
  while (header) {
    Header* below = header->below;
    std::free(header);
    header = below;
  }
}

void BlockCache::set_limit(int64_t bytes) {
  Header* evicted = nullptr;
  {
    std::lock_guard lock(mutex_);
    limit_ = std::max<int64_t>(bytes, 0);
    evicted = evict(limit_);
  }
  free_chain(evicted);
}

int64_t BlockCache::trim() {
  Header* all = nullptr;
  int64_t bytes = 0;
  {
    std::lock_guard lock(mutex_);
    bytes = cached_;
    const int64_t before = evictions_;
    all = evict(0);
    evictions_ = before;  // asked for, not forced by the limit
  }
  free_chain(all);
  return bytes;
}

BlockCache::Statistics BlockCache::statistics() const {
  std::lock_guard lock(mutex_);
  return {live_, peak_, cached_, hits_, misses_, evictions_};
}

void BlockCache::reset_peak() { peak_ = live_.load(); }

}  // namespace opfuse
