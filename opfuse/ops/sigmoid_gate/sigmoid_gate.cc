// s = sigmoid(gate) or clamp(gate / 6 + 1/2, 0, 1)
// y         = x s
// grad_x    = d s
// grad_gate = s'(gate) sum over space of d x

#include "opfuse/ops/sigmoid_gate/sigmoid_gate.h"

#include "opfuse/ops/simd/dispatch.h"
#include "opfuse/ops/simd/gate.h"
#include "opfuse/ops/simd/parallel.h"
#include "opfuse/ops/simd/reduce.h"

namespace opfuse::ops {
namespace {

// The gates of all samples, in the compute type.
template <class S>
void compute_gates(const S* gate, bool hard, int64_t n, ScalarOf<S>* out) {
  sweep<kLanes<S>>(
      n, [&](int64_t i) { store(out + i, gate_value(load(gate + i), hard)); },
      [&](int64_t i, int64_t left) {
        store_n(out + i, gate_value(load_n(gate + i, left), hard), left);
      });
}

template <class S, bool kStream>
OPFUSE_INLINE void scale_row(const S* x, const ScalarOf<S>* s, S* y, int64_t n) {
  sweep<kLanes<S>>(
      n, [&](int64_t i) { put<kStream>(y + i, load(x + i) * load(s + i)); },
      [&](int64_t i, int64_t left) {
        store_n(y + i, load_n(x + i, left) * load_n(s + i, left), left);
      });
}

template <class S, bool kStream>
OPFUSE_INLINE void scale_row(const S* x, ScalarOf<S> s, S* y, int64_t n) {
  sweep<kLanes<S>>(
      n, [&](int64_t i) { put<kStream>(y + i, load(x + i) * s); },
      [&](int64_t i, int64_t left) { store_n(y + i, load_n(x + i, left) * s, left); });
}

// y = x * gate for all rows: a row is one position (channels_last) or one plane.
template <class S>
void scale_all(const Exec& exec, int64_t samples, int64_t channels, int64_t space,
               bool channels_last, const S* x, const ScalarOf<S>* gates, S* y) {
  const int64_t rows = samples * (channels_last ? space : channels);
  const int64_t length = channels_last ? channels : space;
  const bool past_cache = rows * length * int64_t{2 * sizeof(S)} >= exec.stream_bytes &&
                          length % kLanes<S> == 0 && is_aligned(y);
  with_choice(past_cache, [&](auto streamed) {
    constexpr bool kStream = decltype(streamed)::value;
    parallel(exec, rows, max_of(1, 32768 / max_of(1, length)), [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const int64_t at = row * length;
        if (channels_last)
          scale_row<S, kStream>(x + at, gates + row / space * channels, y + at, length);
        else
          scale_row<S, kStream>(x + at, gates[row], y + at, length);
      }
      if (kStream) finish_streams();
    });
  });
}

template <class S>
void forward_typed(const Exec& exec, const SigmoidGateArgs& a) {
  auto* gates = out<ScalarOf<S>>(a.workspace);
  compute_gates(in<S>(a.gate), a.hard, a.samples * a.channels, gates);
  scale_all(exec, a.samples, a.channels, a.space, a.channels_last, in<S>(a.x), gates, out<S>(a.y));
}

// sums[c] += d x over positions [first, last) of one sample; f32 over 128 positions, then f64.
template <class S, bool kGradX>
void sum_positions(const S* grad, const S* x, const ScalarOf<S>* gates, S* grad_x, int64_t first,
                   int64_t last, int64_t channels, double* sums, ScalarOf<S>* tile) {
  for (int64_t from = first; from < last; from += 128) {
    std::memset(tile, 0, static_cast<size_t>(channels) * sizeof(*tile));
    for (int64_t position = from; position < min_of(from + 128, last); ++position) {
      const int64_t at = position * channels;
      sweep<kLanes<S>>(
          channels,
          [&](int64_t c) {
            const auto d = load(grad + at + c);
            store(tile + c, fma(d, load(x + at + c), load(tile + c)));
            if (kGradX) store(grad_x + at + c, d * load(gates + c));
          },
          [&](int64_t c, int64_t n) {
            const auto d = load_n(grad + at + c, n);
            store_n(tile + c, fma(d, load_n(x + at + c, n), load_n(tile + c, n)), n);
            if (kGradX) store_n(grad_x + at + c, d * load_n(gates + c, n), n);
          });
    }
    for (int64_t c = 0; c < channels; ++c) sums[c] += tile[c];
  }
}

// sums[(sample, part, channel)] of d x, and grad_x on the way where it is wanted.
template <class S>
void backward_sums(const Exec& exec, const SigmoidGateBackwardArgs& a, int64_t parts,
                   const ScalarOf<S>* gates, double* sums) {
  const int64_t volume = a.channels * a.space;
  auto* tiles = reinterpret_cast<ScalarOf<S>*>(sums + a.samples * parts * a.channels);
  parallel(exec, a.samples * parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t item = first; item < last; ++item) {
      const int64_t sample = item / parts, part = item % parts;
      const S* grad = in<S>(a.grad) + sample * volume;
      const S* x = in<S>(a.x) + sample * volume;
      S* grad_x = a.grad_x ? out<S>(a.grad_x) + sample * volume : nullptr;
      const ScalarOf<S>* gate = gates + sample * a.channels;
      double* sum = sums + item * a.channels;
      const int64_t begin = part_begin(a.space, parts, part);
      const int64_t end = part_begin(a.space, parts, part + 1);
      if (a.channels_last) {
        std::memset(sum, 0, static_cast<size_t>(a.channels) * sizeof(double));
        (grad_x ? sum_positions<S, true> : sum_positions<S, false>)(grad, x, gate, grad_x, begin,
                                                                    end, a.channels, sum,
                                                                    tiles + item * a.channels);
        continue;
      }
      for (int64_t c = 0; c < a.channels; ++c) {
        const int64_t at = c * a.space + begin;
        sum[c] = dot(grad + at, x + at, end - begin);
        if (grad_x) scale_row<S, false>(grad + at, gate[c], grad_x + at, end - begin);
      }
    }
  });
}

template <class S>
void backward_typed(const Exec& exec, const SigmoidGateBackwardArgs& a) {
  using T = ScalarOf<S>;
  using V = VectorOf<S>;
  T* gates = out<T>(a.workspace);
  const int64_t count = a.samples * a.channels;
  compute_gates(in<S>(a.gate), a.hard, count, gates);
  if (!a.grad_gate) {
    scale_all(exec, a.samples, a.channels, a.space, a.channels_last, in<S>(a.grad), gates,
              out<S>(a.grad_x));
    return;
  }
  const int64_t parts = sigmoid_gate_parts(a.samples, a.channels, a.space);
  double* sums = out<double>(a.workspace) + count;
  backward_sums<S>(exec, a, parts, gates, sums);
  // The gates are used up: their memory takes the totals.
  for (int64_t i = 0; i < count; ++i) {
    double total = 0;
    for (int64_t part = 0; part < parts; ++part)
      total += sums[(i / a.channels * parts + part) * a.channels + i % a.channels];
    gates[i] = static_cast<T>(total);
  }
  const S* gate = in<S>(a.gate);
  S* grad_gate = out<S>(a.grad_gate);
  sweep<kLanes<S>>(
      count,
      [&](int64_t i) {
        store(grad_gate + i, gate_gradient<V>(load(gates + i), load(gate + i), a.hard));
      },
      [&](int64_t i, int64_t n) {
        store_n(grad_gate + i, gate_gradient<V>(load_n(gates + i, n), load_n(gate + i, n), a.hard),
                n);
      });
}

void forward(const Exec& exec, const SigmoidGateArgs& a) {
  with_storage(a.dtype, [&](auto s) { forward_typed<decltype(s)>(exec, a); });
}

void backward(const Exec& exec, const SigmoidGateBackwardArgs& a) {
  with_storage(a.dtype, [&](auto s) { backward_typed<decltype(s)>(exec, a); });
}

}  // namespace

const SigmoidGateKernels OPFUSE_LEVEL::sigmoid_gate = {forward, backward};

}  // namespace opfuse::ops
