#pragma once
// Loops of gated activations. Kernel text.
//
// out       = act(g) u
// grad_gate = d u act'(g)
// grad_up   = d act(g)
//
// `Act` has value(g) and slope(g, &value), which gives both.

#include "opfuse/ops/gated.h"
#include "opfuse/ops/simd/dispatch.h"
#include "opfuse/ops/simd/math.h"
#include "opfuse/ops/simd/pieces.h"

namespace opfuse::ops {
namespace {

template <class Act, class S>
void gated_forward(const Exec& exec, const GatedArgs& a) {
  const bool no_gaps = a.gate_stride == a.cols && a.up_stride == a.cols;
  const Pieces pieces(a.rows, a.cols, no_gaps);
  const bool past_cache = a.rows * a.cols * int64_t{3 * sizeof(S)} >= exec.stream_bytes &&
                          pieces.length % kLanes<S> == 0 && is_aligned(out<S>(a.out));
  with_choice(past_cache, [&](auto streamed) {
    for_pieces(exec, pieces, [&](int64_t piece) {
      const S* gate = in<S>(a.gate) + piece * pieces.step(a.gate_stride);
      const S* up = in<S>(a.up) + piece * pieces.step(a.up_stride);
      S* y = out<S>(a.out) + piece * pieces.length;
      sweep<kLanes<S>>(
          pieces.size(piece),
          [&](int64_t i) {
            put<decltype(streamed)::value>(y + i, Act::value(load(gate + i)) * load(up + i));
          },
          [&](int64_t i, int64_t n) {
            store_n(y + i, Act::value(load_n(gate + i, n)) * load_n(up + i, n), n);
          });
      if (decltype(streamed)::value) finish_streams();
    });
  });
}

template <class Act, class S, bool kGate, bool kUp>
void gated_backward(const Exec& exec, const GatedBackwardArgs& a) {
  const bool no_gaps = a.grad_stride == a.cols && a.gate_stride == a.cols && a.up_stride == a.cols;
  const Pieces pieces(a.rows, a.cols, no_gaps);
  const bool past_cache = a.rows * a.cols * int64_t{5 * sizeof(S)} >= exec.stream_bytes &&
                          pieces.length % kLanes<S> == 0 && is_aligned(out<S>(a.grad_gate)) &&
                          is_aligned(out<S>(a.grad_up));
  with_choice(past_cache, [&](auto streamed) {
    for_pieces(exec, pieces, [&](int64_t piece) {
      const S* grad = in<S>(a.grad) + piece * pieces.step(a.grad_stride);
      const S* gate = in<S>(a.gate) + piece * pieces.step(a.gate_stride);
      const S* up = in<S>(a.up) + piece * pieces.step(a.up_stride);
      S* dgate = out<S>(a.grad_gate) + piece * pieces.length;
      S* dup = out<S>(a.grad_up) + piece * pieces.length;
      sweep<kLanes<S>>(
          pieces.size(piece),
          [&](int64_t i) {
            VectorOf<S> value;
            const auto g = load(gate + i), d = load(grad + i);
            const auto slope = Act::slope(g, &value);
            if (kGate) put<decltype(streamed)::value>(dgate + i, d * load(up + i) * slope);
            if (kUp) put<decltype(streamed)::value>(dup + i, d * value);
          },
          [&](int64_t i, int64_t n) {
            VectorOf<S> value;
            const auto g = load_n(gate + i, n), d = load_n(grad + i, n);
            const auto slope = Act::slope(g, &value);
            if (kGate) store_n(dgate + i, d * load_n(up + i, n) * slope, n);
            if (kUp) store_n(dup + i, d * value, n);
          });
      if (decltype(streamed)::value) finish_streams();
    });
  });
}

template <class Act>
void forward(const Exec& exec, const GatedArgs& a) {
  with_storage(a.dtype, [&](auto s) { gated_forward<Act, decltype(s)>(exec, a); });
}

template <class Act>
void backward(const Exec& exec, const GatedBackwardArgs& a) {
  with_storage(a.dtype, [&](auto s) {
    using S = decltype(s);
    if (a.grad_gate && a.grad_up)
      gated_backward<Act, S, true, true>(exec, a);
    else if (a.grad_gate)
      gated_backward<Act, S, true, false>(exec, a);
    else if (a.grad_up)
      gated_backward<Act, S, false, true>(exec, a);
  });
}

}  // namespace
}  // namespace opfuse::ops
