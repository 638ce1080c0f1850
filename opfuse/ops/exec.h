#pragma once
// How a kernel runs: on which threads, and from which size on its stores bypass the cache. The
// caller fills it in; kernels know neither torch nor a thread library.

#include <cstdint>

namespace opfuse::ops {

using RangeFn = void (*)(int64_t begin, int64_t end, void* context);

struct Exec {
  // Calls `fn` on disjoint pieces that cover [0, count), on any threads, and returns when all are
  // done; pieces have at least `grain` items, except the last. Null: the calling thread does all.
  void (*parallel_for)(int64_t count, int64_t grain, RangeFn fn, void* context) = nullptr;
  // Kernels that read and write at least so many bytes store past the cache.
  int64_t stream_bytes = INT64_MAX;
};

}  // namespace opfuse::ops
