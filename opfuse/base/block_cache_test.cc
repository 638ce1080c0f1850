#include "opfuse/base/block_cache.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace opfuse {
namespace {

constexpr size_t kMiB = 1 << 20;

BlockCache& make_cache(int64_t limit) {
  auto* cache = new BlockCache;  // never destroyed: see the header
  cache->set_limit(limit);
  return *cache;
}

TEST(BlockCache, HandsAFreedBlockOutAgain) {
  BlockCache& cache = make_cache(64 * kMiB);
  void* first = cache.allocate(3 * kMiB);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % BlockCache::kAlignment, 0u);
  std::memset(first, 1, 3 * kMiB);
  BlockCache::release(first);
  EXPECT_EQ(cache.allocate(3 * kMiB - 100), first);  // the same size class
  const BlockCache::Statistics statistics = cache.statistics();
  EXPECT_EQ(statistics.hits, 1);
  EXPECT_EQ(statistics.misses, 1);
  EXPECT_EQ(statistics.cached_bytes, 0);
  EXPECT_EQ(statistics.live_bytes, static_cast<int64_t>(3 * kMiB));
  BlockCache::release(first);
}

TEST(BlockCache, SizeClassesWasteAtMostAnEighth) {
  for (size_t bytes = BlockCache::kCachedFrom; bytes < 64 * kMiB; bytes += bytes / 37 + 1) {
    const size_t size = BlockCache::class_size(bytes);
    ASSERT_GE(size, bytes);
    ASSERT_LE(size, bytes + bytes / 8 + 1);
    ASSERT_EQ(BlockCache::class_size(size), size);
  }
  EXPECT_EQ(BlockCache::class_size(100), 100u);
}

TEST(BlockCache, TheLeastRecentlyFreedGoesFirst) {
  BlockCache& cache = make_cache(3 * kMiB);
  void* blocks[4];
  for (void*& block : blocks) block = cache.allocate(kMiB);
  for (void* block : blocks) BlockCache::release(block);
  EXPECT_EQ(cache.statistics().cached_bytes, static_cast<int64_t>(3 * kMiB));
  EXPECT_EQ(cache.statistics().evictions, 1);
  EXPECT_EQ(cache.allocate(kMiB), blocks[3]);
  EXPECT_EQ(cache.allocate(kMiB), blocks[2]);
  EXPECT_EQ(cache.allocate(kMiB), blocks[1]);
}

TEST(BlockCache, ABlockLargerThanTheLimitIsNotKept) {
  BlockCache& cache = make_cache(kMiB);
  void* small = cache.allocate(kMiB / 2);
  BlockCache::release(small);
  BlockCache::release(cache.allocate(2 * kMiB));
  EXPECT_EQ(cache.statistics().cached_bytes, static_cast<int64_t>(kMiB / 2));
}

TEST(BlockCache, TrimAndALowerLimitGiveMemoryBack) {
  BlockCache& cache = make_cache(64 * kMiB);
  std::vector<void*> blocks;
  for (int i = 1; i <= 8; ++i) blocks.push_back(cache.allocate(i * kMiB));
  for (void* block : blocks) BlockCache::release(block);
  cache.set_limit(10 * kMiB);
  EXPECT_LE(cache.statistics().cached_bytes, static_cast<int64_t>(10 * kMiB));
  EXPECT_GT(cache.trim(), 0);
  EXPECT_EQ(cache.statistics().cached_bytes, 0);
  EXPECT_EQ(cache.trim(), 0);
}

TEST(BlockCache, SmallAndEmptyRequestsAreNotKept) {
  BlockCache& cache = make_cache(64 * kMiB);
  EXPECT_EQ(cache.allocate(0), nullptr);
  BlockCache::release(nullptr);
  void* small = cache.allocate(100);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(small) % BlockCache::kAlignment, 0u);
  BlockCache::release(small);
  EXPECT_EQ(cache.statistics().cached_bytes, 0);
  EXPECT_EQ(cache.statistics().misses, 0);
}

TEST(BlockCache, WhatTheSystemHasNotIsNull) {
  BlockCache& cache = make_cache(64 * kMiB);
  BlockCache::release(cache.allocate(kMiB));
  EXPECT_EQ(cache.allocate(SIZE_MAX / 8), nullptr);
  EXPECT_EQ(cache.statistics().cached_bytes, 0);  // given back for a second try
  EXPECT_EQ(cache.allocate(SIZE_MAX - 10), nullptr);
}

// Each block keeps what its thread wrote, whoever frees it.
TEST(BlockCache, ThreadsShareItSafely) {
  BlockCache& cache = make_cache(8 * kMiB);
  const auto work = [&cache](unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::pair<unsigned char*, size_t>> held;
    for (int i = 0; i < 3000; ++i) {
      if (held.size() > 12 || (!held.empty() && random() % 2)) {
        const auto [block, size] = held.back();
        held.pop_back();
        ASSERT_EQ(block[0], static_cast<unsigned char>(seed));
        ASSERT_EQ(block[size - 1], static_cast<unsigned char>(seed));
        BlockCache::release(block);
      } else {
        const size_t size = BlockCache::kCachedFrom << (random() % 4);
        auto* block = static_cast<unsigned char*>(cache.allocate(size));
        block[0] = block[size - 1] = static_cast<unsigned char>(seed);
        held.emplace_back(block, size);
      }
    }
    for (const auto& [block, size] : held) BlockCache::release(block);
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i <= 4; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cache.statistics().live_bytes, 0);
  EXPECT_LE(cache.statistics().cached_bytes, static_cast<int64_t>(8 * kMiB));
}

// A fork while other threads hold the lock must leave the child able to use the cache.
TEST(BlockCache, AForkedChildCanUseIt) {
  BlockCache& cache = make_cache(8 * kMiB);
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) BlockCache::release(cache.allocate(kMiB));
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(20);
      void* block = cache.allocate(kMiB);
      BlockCache::release(block);
      _exit(block ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  stop = true;
  busy.join();
}

}  // namespace
}  // namespace opfuse
