// z = (x - mean) slope + bias,  a = act(z),  p = mean of a over space of a sample
// h = reduce p + reduce_bias,  l = expand hidden_act(h) + expand_bias,  s = gate(l),  y = a s
//
// Backward, per sample and channel, with d the gradient of y, a' = act'(z), u = x - mean:
//   A = sum d a',  B = sum d a' u,  E = sum a',  F = sum a' u,  G = sum d a
//   grad_l = G gate'(l), through the two layers to grad_p; q = grad_p / space
//   gradient of z: g = (d s + q) a', so over a sample  sum g = s A + q E,  sum g u = s B + q F
// So one pass gives the sums of everything and a second grad_x, although q needs the whole sample.

#include "opfuse/ops/batch_norm_act_se/batch_norm_act_se.h"

#include "opfuse/ops/batch_norm_act/affine.h"
#include "opfuse/ops/batch_norm_act/statistics.h"
#include "opfuse/ops/simd/activation.h"
#include "opfuse/ops/simd/gate.h"
#include "opfuse/ops/simd/reduce.h"

namespace opfuse::ops {
namespace {

constexpr int kSums = 5;  // A, B, E, F, G

// All in steps of 8 bytes; see squeeze_workspace_bytes.
template <class T>
struct Workspace : ChannelLines<T> {
  double *statistics, *sums;  // sums: [samples][kSums][channels]
  T* tiles;                   // of the statistics
  double* scratch;            // [samples][squeeze_scratch]

  Workspace(const SqueezeShape& s, void* memory) {
    const int64_t channels = s.norm.channels;
    const int64_t parts = part_count(s.norm.samples * s.norm.space, channels * 4);
    double* next = static_cast<double*>(memory);
    this->cut(reinterpret_cast<T*>(next), channels);
    next += 4 * channels;
    statistics = next;
    next += parts * 2 * channels;
    tiles = reinterpret_cast<T*>(next);
    next += parts * 2 * channels;
    sums = next;
    next += s.norm.samples * kSums * channels;
    scratch = next;
  }
};

// The two layers for one sample: before and logits from pooled. `act` holds the activated values.
template <class T>
void two_layers(const BatchNormActSeArgs& a, int64_t n, T* act) {
  using V = VectorOf<T>;
  const int64_t channels = a.shape.norm.channels, hidden = a.shape.hidden;
  const T* pooled = in<T>(a.pooled) + n * channels;
  T *before = out<T>(a.before) + n * hidden, *logits = out<T>(a.logits) + n * channels;
  for (int64_t j = 0; j < hidden; ++j)
    before[j] = dot(pooled, in<T>(a.reduce) + j * channels, channels) +
                (a.reduce_bias ? in<T>(a.reduce_bias)[j] : T(0));
  const Activate<V> activate(a.shape.hidden_act);
  sweep_lanes<T>(hidden, [&](int64_t j, auto lanes) {
    store(act + j, activate.template value<Kind::kAny>(load(before + j, lanes)), lanes);
  });
  sweep_lanes<T>(channels, [&](int64_t c, auto lanes) {
    V sum = a.expand_bias ? load(in<T>(a.expand_bias) + c, lanes) : V{};
    for (int64_t j = 0; j < hidden; ++j)
      sum = fma(splat<V>(act[j]), load(in<T>(a.expand) + j * channels + c, lanes), sum);
    store(logits + c, sum, lanes);
  });
}

// y = act(z) of one sample, and its sum over space into `total`.
template <class S, Kind kKind>
void activate_sample(const BatchNormActSeArgs& a, const Workspace<ScalarOf<S>>& w, int64_t n,
                     double* total, ScalarOf<S>* tile) {
  using V = VectorOf<S>;
  using T = ScalarOf<S>;
  const int64_t channels = a.shape.norm.channels, space = a.shape.norm.space;
  const Activate<V> activate(a.shape.act);
  std::memset(total, 0, static_cast<size_t>(channels) * sizeof(double));
  const auto rows = [&, activate, channels, x = in<S>(a.x) + n * space * channels,
                     y = out<S>(a.y) + n * space * channels, mean = in<T>(a.mean), slope = w.slope,
                     bias = w.bias, tile](int64_t row, auto count) {
    sweep_lanes<S>(channels, [&](int64_t c, auto lanes) {
      const V m = load(mean + c, lanes), k = load(slope + c, lanes), b = load(bias + c, lanes);
      V sum = load(tile + c, lanes);
      for (int i = 0; i < decltype(count)::value; ++i) {
        const int64_t at = (row + i) * channels + c;
        prefetch(x + at + 4 * channels);
        const V v = activate.template value<kKind>(fma(load(x + at, lanes) - m, k, b));
        sum += v;
        store(y + at, v, lanes);
      }
      store(tile + c, sum, lanes);
    });
  };
  for (int64_t first = 0; first < space; first += kTileRows) {
    std::memset(tile, 0, static_cast<size_t>(channels) * sizeof(T));
    rows_in_fours(first, min_of(first + kTileRows, space), rows);
    for (int64_t c = 0; c < channels; ++c) total[c] += tile[c];
  }
}

// y = y * gate of one sample, just written and still in cache.
template <class S>
void gate_sample(const BatchNormActSeArgs& a, int64_t n, ScalarOf<S>* gates) {
  const int64_t channels = a.shape.norm.channels, space = a.shape.norm.space;
  using T = ScalarOf<S>;
  const T* logits = in<T>(a.logits) + n * channels;
  sweep_lanes<T>(channels, [&](int64_t c, auto lanes) {
    store(gates + c, gate_value(load(logits + c, lanes), a.shape.hard), lanes);
  });
  S* y = out<S>(a.y) + n * space * channels;
  rows_in_fours(0, space, [=](int64_t row, auto count) {
    sweep_lanes<S>(channels, [&](int64_t c, auto lanes) {
      const auto gate = load(gates + c, lanes);
      for (int i = 0; i < decltype(count)::value; ++i) {
        S* at = y + (row + i) * channels + c;
        store(at, load(at, lanes) * gate, lanes);
      }
    });
  });
}

template <class S>
void forward_typed(const Exec& exec, const BatchNormActSeArgs& a) {
  using T = ScalarOf<S>;
  const BatchNormShape& s = a.shape.norm;
  const Workspace<T> w(a.shape, a.workspace);
  T *mean = out<T>(a.mean), *var = out<T>(a.var);
  if (a.measure) statistics_of_rows(exec, s, in<S>(a.x), w.statistics, w.tiles, mean, var);
  fill_affine(s.channels, a.eps, in<T>(a.weight), in<T>(a.bias), var, w);
  with_kind<S>(a.shape.act, [&](auto kind) {
    parallel(exec, s.samples, 1, [&](int64_t first, int64_t last) {
      double* total = w.scratch + first * squeeze_scratch(a.shape);
      T* tile = reinterpret_cast<T*>(total + s.channels);
      T* gates = tile + s.channels;
      T* act = gates + s.channels;
      // Backwards: the statistics read the last samples last.
      for (int64_t n = last - 1; n >= first; --n) {
        activate_sample<S, decltype(kind)::value>(a, w, n, total, tile);
        T* pooled = out<T>(a.pooled) + n * s.channels;
        for (int64_t c = 0; c < s.channels; ++c)
          pooled[c] = static_cast<T>(total[c] / static_cast<double>(s.space));
        two_layers(a, n, act);
        gate_sample<S>(a, n, gates);
      }
    });
  });
}

// The five sums of one sample.
template <class S, Kind kKind>
void sum_sample(const BatchNormActSeBackwardArgs& a, const Workspace<ScalarOf<S>>& w, int64_t n,
                ScalarOf<S>* tile) {
  using V = VectorOf<S>;
  using T = ScalarOf<S>;
  const int64_t channels = a.shape.norm.channels, space = a.shape.norm.space;
  const Activate<V> activate(a.shape.act);
  double* total = w.sums + n * kSums * channels;
  std::memset(total, 0, static_cast<size_t>(kSums * channels) * sizeof(double));
  const auto rows = [=, x = in<S>(a.x) + n * space * channels,
                     grad = in<S>(a.grad) + n * space * channels, mean = in<T>(a.mean),
                     slope = w.slope, bias = w.bias](int64_t row, auto count) {
    sweep_lanes<S>(channels, [&](int64_t c, auto lanes) {
      const V m = load(mean + c, lanes), k = load(slope + c, lanes), b = load(bias + c, lanes);
      T* at_tile = tile + c;
      V sum[kSums];
      for (int i = 0; i < kSums; ++i) sum[i] = load(at_tile + i * channels, lanes);
      for (int i = 0; i < decltype(count)::value; ++i) {
        const int64_t at = (row + i) * channels + c;
        prefetch(x + at + 4 * channels);
        prefetch(grad + at + 4 * channels);
        const V u = load(x + at, lanes) - m, d = load(grad + at, lanes), z = fma(u, k, b);
        V slope_of_act;
        const V value = activate.template value_and_slope<kKind>(z, &slope_of_act);
        const V through = activate.template gradient_by_slope<kKind>(z, d, slope_of_act);
        sum[0] += through;
        sum[1] = fma(through, u, sum[1]);
        sum[2] += slope_of_act;
        sum[3] = fma(slope_of_act, u, sum[3]);
        sum[4] = fma(d, value, sum[4]);
      }
      for (int i = 0; i < kSums; ++i) store(at_tile + i * channels, sum[i], lanes);
    });
  };
  for (int64_t first = 0; first < space; first += kTileRows) {
    std::memset(tile, 0, static_cast<size_t>(kSums * channels) * sizeof(T));
    rows_in_fours(first, min_of(first + kTileRows, space), rows);
    for (int64_t c = 0; c < kSums * channels; ++c) total[c] += tile[c];
  }
  T* grad_logits = out<T>(a.grad_logits) + n * channels;
  const T* logits = in<T>(a.logits) + n * channels;
  for (int64_t c = 0; c < channels; ++c) tile[c] = static_cast<T>(total[4 * channels + c]);
  sweep_lanes<T>(channels, [&](int64_t c, auto lanes) {
    store(grad_logits + c,
          gate_gradient(load(tile + c, lanes), load(logits + c, lanes), a.shape.hard), lanes);
  });
}

template <class S>
void backward_sums_typed(const Exec& exec, const BatchNormActSeBackwardArgs& a) {
  using T = ScalarOf<S>;
  const BatchNormShape& s = a.shape.norm;
  const Workspace<T> w(a.shape, a.workspace);
  fill_affine(s.channels, a.eps, in<T>(a.weight), in<T>(a.bias), in<T>(a.var), w);
  with_kind<S>(a.shape.act, [&](auto kind) {
    parallel(exec, s.samples, 1, [&](int64_t first, int64_t last) {
      T* tile = reinterpret_cast<T*>(w.scratch + first * squeeze_scratch(a.shape));
      for (int64_t n = first; n < last; ++n) sum_sample<S, decltype(kind)::value>(a, w, n, tile);
    });
  });
}

template <class S, Kind kKind, bool kStream>
void apply_rows(const Exec& exec, const BatchNormActSeBackwardArgs& a,
                const Workspace<ScalarOf<S>>& w, const ScalarOf<S>* gates) {
  using V = VectorOf<S>;
  using T = ScalarOf<S>;
  const int64_t channels = a.shape.norm.channels, space = a.shape.norm.space;
  const Activate<V> activate(a.shape.act);
  const ChannelLines<T> lines = w;
  const auto row_of = [=, training = a.training, x = in<S>(a.x), grad = in<S>(a.grad),
                       y = out<S>(a.grad_x), pooled = in<T>(a.grad_pooled),
                       mean = in<T>(a.mean)](int64_t row) {
    const T* gate = gates + row / space * channels;
    const T* share = pooled + row / space * channels;
    sweep_lanes<S>(channels, [&](int64_t c, auto lanes) {
      const int64_t at = row * channels + c;
      prefetch(x + at + 4 * channels);
      prefetch(grad + at + 4 * channels);
      const V u = load(x + at, lanes) - load(mean + c, lanes), k = load(lines.slope + c, lanes);
      const V d = fma(load(grad + at, lanes), load(gate + c, lanes), load(share + c, lanes));
      const V g = activate.template gradient<kKind>(fma(u, k, load(lines.bias + c, lanes)), d);
      const V line =
          training ? fma(load(lines.linear + c, lanes), u, load(lines.constant + c, lanes)) : V{};
      put<kStream>(y + at, fma(k, g, line), lanes);
    });
  };
  tiles_backwards(exec, a.shape.norm.samples * space, channels, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) row_of(row);
    if (kStream) finish_streams();
  });
}

template <class S>
void backward_apply_typed(const Exec& exec, const BatchNormActSeBackwardArgs& a) {
  using T = ScalarOf<S>;
  const BatchNormShape& s = a.shape.norm;
  const Workspace<T> w(a.shape, a.workspace);
  const int64_t channels = s.channels;
  T* gates = reinterpret_cast<T*>(w.scratch);
  sweep_lanes<T>(s.samples * channels, [&](int64_t i, auto lanes) {
    store(gates + i, gate_value(load(in<T>(a.logits) + i, lanes), a.shape.hard), lanes);
  });
  for (int64_t c = 0; c < channels; ++c) {
    double sum = 0, product = 0;
    for (int64_t n = 0; n < s.samples; ++n) {
      const double* total = w.sums + n * kSums * channels + c;
      const double gate = gates[n * channels + c];
      const double share = in<T>(a.grad_pooled)[n * channels + c];
      sum += gate * total[0] + share * total[2 * channels];
      product += gate * total[channels] + share * total[3 * channels];
    }
    finish_channel(s.samples * s.space, a.eps, a.training, in<T>(a.var), c, sum, product,
                   out<T>(a.grad_weight), out<T>(a.grad_bias), w);
  }
  const bool past_cache =
      sizeof(S) == 4 &&
      s.samples * s.space * channels * int64_t{3 * sizeof(S)} >= exec.stream_bytes &&
      can_stream(out<S>(a.grad_x), channels);
  with_kind<S>(a.shape.act, [&](auto kind) {
    with_choice(past_cache, [&](auto streamed) {
      constexpr bool kStream = decltype(streamed)::value && sizeof(S) == 4;
      apply_rows<S, decltype(kind)::value, kStream>(exec, a, w, gates);
    });
  });
}

void forward(const Exec& exec, const BatchNormActSeArgs& a) {
  with_storage(a.shape.norm.dtype, [&](auto s) { forward_typed<decltype(s)>(exec, a); });
}

void backward_sums(const Exec& exec, const BatchNormActSeBackwardArgs& a) {
  with_storage(a.shape.norm.dtype, [&](auto s) { backward_sums_typed<decltype(s)>(exec, a); });
}

void backward_apply(const Exec& exec, const BatchNormActSeBackwardArgs& a) {
  with_storage(a.shape.norm.dtype, [&](auto s) { backward_apply_typed<decltype(s)>(exec, a); });
}

}  // namespace

const BatchNormActSeKernels OPFUSE_LEVEL::batch_norm_act_se = {forward, backward_sums,
                                                               backward_apply};

}  // namespace opfuse::ops
