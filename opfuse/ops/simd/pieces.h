#pragma once
// How elementwise kernels walk rows: one row at a time, or, where no operand has gaps between its
// rows, pieces of a fixed length of the whole. Which element ends in which lane depends on the
// shape alone.

#include "opfuse/ops/simd/memory.h"
#include "opfuse/ops/simd/parallel.h"

namespace opfuse::ops {
namespace {

constexpr int64_t kPieceElements = 8192;
// Fewer elements than this stay on the calling thread: an OpenMP region costs about 1.3 us on a
// quiet machine and milliseconds on a busy one.
constexpr int64_t kGrainElements = 32768;

struct Pieces {
  int64_t count, length, total;
  bool flat;

  Pieces(int64_t rows, int64_t cols, bool no_gaps)
      : count(no_gaps ? ceil_div(rows * cols, kPieceElements) : rows),
        length(no_gaps ? kPieceElements : cols),
        total(rows * cols),
        flat(no_gaps) {}

  int64_t size(int64_t piece) const { return min_of(length, total - piece * length); }
  // Elements from one piece to the next of an operand with `row_stride`.
  int64_t step(int64_t row_stride) const { return flat ? length : row_stride; }
  int64_t grain() const { return max_of(1, kGrainElements / max_of(1, length)); }
};

// f(piece) for each piece, on the threads of `exec`.
template <class F>
OPFUSE_INLINE void for_pieces(const Exec& exec, const Pieces& pieces, const F& f) {
  parallel(exec, pieces.count, pieces.grain(), [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) f(piece);
  });
}

}  // namespace
}  // namespace opfuse::ops
