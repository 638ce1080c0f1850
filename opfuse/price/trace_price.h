#pragma once
// What a chain of a trace file costs and what its fused operator would cost, from the trace's own
// kernels: bytes it must move over the bandwidth that this trace's pointwise kernels of that size
// reached, but no less than the shortest of them. Predicted, never measured.

#include <array>
#include <cstdint>
#include <vector>

#include "opfuse/graph/infer.h"
#include "opfuse/match/match.h"

namespace opfuse::price {

struct Price {
  int64_t now_ns = 0;                           // of the chain's operators in the trace
  int64_t low_ns = 0, mid_ns = 0, high_ns = 0;  // expected; low: at the best bandwidth of the size
  int64_t bytes = -1;                           // that the fused operator must move; -1: unknown
  int32_t launches = 0;                         // of the chain; the fused operator has one
  bool known = false;                           // low, mid and high are
};

class TracePrices {
 public:
  explicit TracePrices(const graph::InferredGraph& inferred);
  Price of(const match::Match& match) const;
  // Of these backward operators of the match: what the gradient of a fused operator must move is
  // the gradients of its results and, twice, its inputs (read, and their gradients written).
  Price of_backward(const match::Match& match, const std::vector<graph::NodeId>& nodes) const;

 private:
  void predict(Price* price) const;  // from its bytes

  // Of one power of two of bytes: bytes per nanosecond of the kernels there, in order.
  std::array<std::vector<double>, 64> rates_;
  int64_t shortest_ns_ = 0;
  const graph::InferredGraph& inferred_;
};

}  // namespace opfuse::price
