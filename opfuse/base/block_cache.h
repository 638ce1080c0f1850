#pragma once
// Memory blocks that are kept when they are freed and handed out again: fresh pages of the system
// cost two to three times the work of a pointwise operator on them, because the kernel clears each
// at first touch. Safe with threads and fork; blocks may be freed after the cache is switched off.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace opfuse {

class BlockCache {
 public:
  struct Statistics {
    int64_t live_bytes = 0;    // handed out now, rounded up to their size class
    int64_t peak_bytes = 0;    // the most of live_bytes since reset_peak()
    int64_t cached_bytes = 0;  // kept for the next request
    int64_t hits = 0;          // requests served from kept blocks
    int64_t misses = 0;        // requests of a cacheable size that went to the system
    int64_t evictions = 0;     // kept blocks given back because of the limit
  };

  static constexpr size_t kAlignment = 64;         // bytes; as c10's own CPU allocator
  static constexpr size_t kCachedFrom = 64 << 10;  // below it malloc keeps the pages itself

  // Must never be destroyed: blocks may outlive everything.
  BlockCache();
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  // At least `bytes`, aligned; null for 0 bytes, and when the system has none even after the kept
  // blocks were given back.
  void* allocate(size_t bytes);
  // Any block of any cache, from any thread. Null is allowed.
  static void release(void* data);
  // Bytes that a block really has.
  static size_t capacity_of(const void* data);
  // What `bytes` are rounded up to: eight classes per power of two, at most 12.5 % more.
  static size_t class_size(size_t bytes);

  // Kept blocks may have this many bytes together; the least recently freed go first. 0 keeps none.
  void set_limit(int64_t bytes);
  // Gives all kept blocks back; returns their bytes.
  int64_t trim();
  Statistics statistics() const;
  int64_t live_bytes() const { return live_; }
  void reset_peak();

 private:
  struct Header;
  static constexpr int kGroups = 64 * 8;  // one per size class

  static Header* header_of(void* data);
  static int group_of(size_t capacity);
  Header* take(size_t capacity);
  void keep(Header* header);
  void unlink(Header* header);
  Header* evict(int64_t limit);
  static void free_chain(Header* header);
  static void before_fork();
  static void after_fork();

  mutable std::mutex mutex_;
  std::array<Header*, kGroups> groups_{};  // kept blocks by size class, last freed first
  Header *newest_ = nullptr, *oldest_ = nullptr;
  int64_t limit_ = 0, cached_ = 0, evictions_ = 0, hits_ = 0, misses_ = 0;
  std::atomic<int64_t> live_{0}, peak_{0};
  BlockCache* next_cache_ = nullptr;
};

}  // namespace opfuse
