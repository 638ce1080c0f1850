#pragma once
// Sums that cross items (rows, samples) go through a fixed number of parts, one partial result
// each, added in order, so that the result is the same bits on 1 thread and on n.

#include <cstdint>

namespace opfuse::ops {
namespace {

inline constexpr int64_t kMaxParts = 64;

// Into how many parts `items` of `item_bytes` each are cut: a matter of size alone. 64 KiB a part
// amortize the adding of its partial result.
constexpr int64_t part_count(int64_t items, int64_t item_bytes) {
  const int64_t wanted = (items * item_bytes + (int64_t{64} << 10) - 1) / (int64_t{64} << 10);
  const int64_t most = items < kMaxParts ? items : kMaxParts;
  return wanted < 1 || most < 1 ? 1 : (wanted < most ? wanted : most);
}

// Where part `part` of `parts` begins; part_begin(parts) is `items`.
constexpr int64_t part_begin(int64_t items, int64_t parts, int64_t part) {
  return items / parts * part + (items % parts) * part / parts;
}

}  // namespace
}  // namespace opfuse::ops
