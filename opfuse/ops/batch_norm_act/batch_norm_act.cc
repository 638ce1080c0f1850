// r = 1 / sqrt(var + eps),  a = weight r,  z = (x - mean) a + bias,  R = elements of a channel
// y           = act(z) scale + residual
// g           = grad scale act'(z)
// grad_bias   = sum g
// grad_weight = r sum g (x - mean)
// grad_x      = a (g - sum g / R - (x - mean) r^2 sum g (x - mean) / R), or a g in evaluation
//
// Backward, channels_last: what fits into the cache leaves g in grad_x in the first pass and goes
// on in place; beyond it act' is computed twice, which moves 5 arrays instead of 8 (with those that
// a store to memory reads first).

#include "opfuse/ops/batch_norm_act/batch_norm_act.h"

#include "opfuse/ops/batch_norm_act/affine.h"
#include "opfuse/ops/batch_norm_act/statistics.h"
#include "opfuse/ops/simd/activation.h"

namespace opfuse::ops {
namespace {

// What the kernels need, cut from the workspace.
template <class T>
struct Workspace : ChannelLines<T> {
  double* sums;
  T* tiles;

  Workspace(const BatchNormShape& s, void* memory) {
    const int64_t parts = s.channels_last ? part_count(s.samples * s.space, s.channels * 4) : 0;
    sums = static_cast<double*>(memory);
    tiles = reinterpret_cast<T*>(sums + parts * 2 * s.channels);
    this->cut(tiles + parts * 2 * s.channels, s.channels);
  }
};

template <class S, Kind kKind, bool kStream>
void apply_rows(const Exec& exec, const BatchNormActArgs& a, const Workspace<ScalarOf<S>>& w) {
  using V = VectorOf<S>;
  const BatchNormShape& s = a.shape;
  const Activate<V> activate(a.act);
  const int64_t channels = s.channels;
  const auto* mean = in<ScalarOf<S>>(a.mean);
  const auto* scale = in<ScalarOf<S>>(a.scale);
  const S* residual = in<S>(a.residual);
  const auto rows = [&, channels, mean, scale, residual, activate, slopes = w.slope,
                     biases = w.bias](int64_t row, auto count) {
    const S* x = in<S>(a.x) + row * channels;
    const S* r = residual ? residual + row * channels : nullptr;
    S* y = out<S>(a.y) + row * channels;
    V k[decltype(count)::value];
    for (int i = 0; i < decltype(count)::value; ++i)
      k[i] = splat<V>(scale ? scale[(row + i) / s.space] : 1);
    sweep_lanes<S>(channels, [&](int64_t c, auto lanes) {
      const V m = load(mean + c, lanes), slope = load(slopes + c, lanes);
      const V bias = load(biases + c, lanes);
      for (int i = 0; i < decltype(count)::value; ++i) {
        const int64_t at = i * channels + c;
        prefetch(x + at + 4 * channels);
        V v = activate.template value<kKind>(fma(load(x + at, lanes) - m, slope, bias));
        if (scale) v *= k[i];
        if (r) v += load(r + at, lanes);
        put<kStream>(y + at, v, lanes);
      }
    });
  };
  parallel(exec, s.samples * s.space, row_grain(channels), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) rows(row, RowCount<1>{});
    if (kStream) finish_streams();
  });
}

template <class S, Kind kKind, bool kStream>
void apply_plane(const BatchNormActArgs& a, const Workspace<ScalarOf<S>>& w, int64_t channel) {
  using V = VectorOf<S>;
  const BatchNormShape& s = a.shape;
  const Activate<V> activate(a.act);
  const V mean = splat<V>(in<ScalarOf<S>>(a.mean)[channel]);
  const V slope = splat<V>(w.slope[channel]), bias = splat<V>(w.bias[channel]);
  const auto* scale = in<ScalarOf<S>>(a.scale);
  const S* residual = in<S>(a.residual);
  for (int64_t sample = 0; sample < s.samples; ++sample) {
    const int64_t plane = (sample * s.channels + channel) * s.space;
    const V k = splat<V>(scale ? scale[sample] : 1);
    sweep_lanes<S>(s.space, [&](int64_t i, auto lanes) {
      const V x = load(in<S>(a.x) + plane + i, lanes);
      V v = activate.template value<kKind>(fma(x - mean, slope, bias));
      if (scale) v *= k;
      if (residual) v += load(residual + plane + i, lanes);
      put<kStream>(out<S>(a.y) + plane + i, v, lanes);
    });
  }
  if (kStream) finish_streams();
}

int64_t elements(const BatchNormShape& s) { return s.samples * s.channels * s.space; }
// Channels that make a piece of work worth another thread.
int64_t channel_grain(const BatchNormShape& s) {
  return max_of(1, 32768 / max_of(1, s.samples * s.space));
}

template <class S>
void forward_typed(const Exec& exec, const BatchNormActArgs& a) {
  using T = ScalarOf<S>;
  const BatchNormShape& s = a.shape;
  Workspace<T> w(s, a.workspace);
  T *mean = out<T>(a.mean), *var = out<T>(a.var);
  const int64_t run = s.channels_last ? s.channels : s.space;
  const bool past_cache = elements(s) * int64_t{2 * sizeof(S)} >= exec.stream_bytes &&
                          run % kLanes<S> == 0 && is_aligned(out<S>(a.y));
  const auto affine = [&] {
    fill_affine(s.channels, a.eps, in<T>(a.weight), in<T>(a.bias), var, w);
  };
  with_kind<S>(a.act, [&](auto kind) {
    with_choice(past_cache, [&](auto streamed) {
      constexpr Kind kKind = decltype(kind)::value;
      constexpr bool kStream = decltype(streamed)::value && sizeof(S) == 4;
      if (s.channels_last) {
        if (a.training) statistics_of_rows(exec, s, in<S>(a.x), w.sums, w.tiles, mean, var);
        affine();
        apply_rows<S, kKind, kStream>(exec, a, w);
        return;
      }
      if (!a.training) affine();
      parallel(exec, s.channels, channel_grain(s), [&](int64_t first, int64_t last) {
        for (int64_t c = first; c < last; ++c) {
          if (a.training) {
            statistics_of_planes(in<S>(a.x) + c * s.space, s.samples, s.space, s.channels * s.space,
                                 c, mean, var);
            ChannelLines<T> own = w;
            own.slope += c;
            own.bias += c;
            fill_affine(1, a.eps, a.weight ? in<T>(a.weight) + c : nullptr,
                        a.bias ? in<T>(a.bias) + c : nullptr, var + c, own);
          }
          apply_plane<S, kKind, kStream>(a, w, c);
        }
      });
    });
  });
}

template <class T>
void finish_channel(const BatchNormActBackwardArgs& a, int64_t c, double sum, double product,
                    Workspace<T>* w) {
  finish_channel(a.shape.samples * a.shape.space, a.eps, a.training, in<T>(a.var), c, sum, product,
                 out<T>(a.grad_weight), out<T>(a.grad_bias), *w);
}

// Do x, grad and grad_x go past the cache? f32 only: 16-bit kernels are bound by their arithmetic.
template <class S>
bool streams_backward(const Exec& exec, const BatchNormActBackwardArgs& a) {
  return sizeof(S) == 4 && elements(a.shape) * int64_t{3 * sizeof(S)} >= exec.stream_bytes &&
         can_stream(out<S>(a.grad_x), a.shape.channels);
}

// The second pass from x and grad, stored past the cache.
template <class S, Kind kKind>
void finish_rows_again(const Exec& exec, const BatchNormActBackwardArgs& a,
                       const ChannelLines<ScalarOf<S>>& lines) {
  using V = VectorOf<S>;
  using T = ScalarOf<S>;
  if constexpr (sizeof(S) == 4) {
    const int64_t channels = a.shape.channels, space = a.shape.space;
    const Activate<V> activate(a.act);
    const auto row_of = [=, training = a.training, x = in<S>(a.x), grad = in<S>(a.grad),
                         y = out<S>(a.grad_x), mean = in<T>(a.mean),
                         scale = in<T>(a.scale)](int64_t row) {
      const V k = splat<V>(scale ? scale[row / space] : 1);
      for (int64_t c = 0; c < channels; c += kLanes<S>) {
        const int64_t at = row * channels + c;
        prefetch(x + at + 4 * channels);
        prefetch(grad + at + 4 * channels);
        const V u = load(x + at) - load(mean + c), slope = load(lines.slope + c);
        V g = load(grad + at);
        if (scale) g *= k;
        g = activate.template gradient<kKind>(fma(u, slope, load(lines.bias + c)), g);
        const V line = training ? fma(load(lines.linear + c), u, load(lines.constant + c)) : V{};
        stream(y + at, fma(slope, g, line));
      }
    };
    tiles_backwards(exec, a.shape.samples * space, channels, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) row_of(row);
      finish_streams();
    });
  }
}

// g of a row position into grad_x, unless g is grad itself (no activation, no scale).
template <class S, Kind kKind>
void backward_rows(const Exec& exec, const BatchNormActBackwardArgs& a, Workspace<ScalarOf<S>> w) {
  using V = VectorOf<S>;
  using T = ScalarOf<S>;
  const BatchNormShape& s = a.shape;
  const Activate<V> activate(a.act);
  const int64_t channels = s.channels, rows = s.samples * s.space;
  const int64_t parts = part_count(rows, channels * 4);
  const T *mean = in<T>(a.mean), *scale = in<T>(a.scale);
  const bool again = streams_backward<S>(exec, a);
  const bool in_place = (kKind != Kind::kNone || scale) && !again;
  sum_rows(exec, rows, s.space, channels, parts, w.sums, w.tiles,
           [&, channels, mean, scale, in_place, activate, slopes = w.slope, biases = w.bias](
               int64_t first, int64_t last, T* sum_out, T* product_out) {
             const V k = splat<V>(scale ? scale[first / s.space] : 1);
             rows_in_fours(first, last, [&](int64_t row, auto count) {
               const S* x = in<S>(a.x) + row * channels;
               const S* grad = in<S>(a.grad) + row * channels;
               S* g_out = out<S>(a.grad_x) + row * channels;
               sweep_lanes<S>(channels, [&](int64_t c, auto lanes) {
                 const V m = load(mean + c, lanes);
                 V slope{}, bias{};
                 if (kKind != Kind::kNone) {
                   slope = load(slopes + c, lanes);
                   bias = load(biases + c, lanes);
                 }
                 V sum = load(sum_out + c, lanes), product = load(product_out + c, lanes);
                 for (int i = 0; i < decltype(count)::value; ++i) {
                   const int64_t at = i * channels + c;
                   prefetch(x + at + 4 * channels);
                   prefetch(grad + at + 4 * channels);
                   const V centered = load(x + at, lanes) - m;
                   V g = load(grad + at, lanes);
                   if (scale) g *= k;
                   g = activate.template gradient<kKind>(fma(centered, slope, bias), g);
                   if (in_place) store(g_out + at, g, lanes);
                   sum += g;
                   product = fma(g, centered, product);
                 }
                 store(sum_out + c, sum, lanes);
                 store(product_out + c, product, lanes);
               });
             });
           });
  for (int64_t c = 0; c < channels; ++c) finish_channel(a, c, w.sums[c], w.sums[channels + c], &w);
  if (again) return finish_rows_again<S, kKind>(exec, a, w);
  finish_rows<S>(exec, rows, channels, a.training, in<S>(a.x),
                 in_place ? out<S>(a.grad_x) : in<S>(a.grad), out<S>(a.grad_x), mean, w);
}

template <class S, Kind kKind>
void backward_channel(const BatchNormActBackwardArgs& a, Workspace<ScalarOf<S>>* w, int64_t c) {
  using V = VectorOf<S>;
  using T = ScalarOf<S>;
  const BatchNormShape& s = a.shape;
  const Activate<V> activate(a.act);
  const V mean = splat<V>(in<T>(a.mean)[c]);
  const V slope = splat<V>(w->slope[c]), bias = splat<V>(w->bias[c]);
  const T* scale = in<T>(a.scale);
  const bool in_place = kKind != Kind::kNone || scale;
  double sum = 0, product = 0;
  for (int64_t sample = 0; sample < s.samples; ++sample) {
    const int64_t plane = (sample * s.channels + c) * s.space;
    const V k = splat<V>(scale ? scale[sample] : 1);
    for (int64_t from = 0; from < s.space; from += 4096) {
      const S* x = in<S>(a.x) + plane + from;
      const S* grad = in<S>(a.grad) + plane + from;
      S* g_out = out<S>(a.grad_x) + plane + from;
      Chains<V> sums, products;
      const auto add = [&](int64_t i, int chain, auto lanes) {
        const V centered = load(x + i, lanes) - mean;
        V g = load(grad + i, lanes);
        if (scale) g *= k;
        g = activate.template gradient<kKind>(fma(centered, slope, bias), g);
        if (in_place) store(g_out + i, g, lanes);
        sums.sum[chain] += g;
        products.sum[chain] = fma(g, centered, products.sum[chain]);
      };
      // Lanes beyond the end hold grad = 0; g is 0 there unless act'(z) is not finite, and z is.
      sweep_chains<kLanes<S>>(
          min_of(4096, s.space - from), [&](int64_t i, int chain) { add(i, chain, Full{}); },
          [&](int64_t i, int64_t left) { add(i, 0, Part{left}); });
      sum += sums.total();
      product += products.total();
    }
  }
  finish_channel(a, c, sum, product, w);
  const S* g_in = in_place ? out<S>(a.grad_x) : in<S>(a.grad);
  const V constant = splat<V>(w->constant[c]), linear = splat<V>(w->linear[c]);
  for (int64_t sample = s.samples - 1; sample >= 0; --sample) {
    const int64_t plane = (sample * s.channels + c) * s.space;
    sweep_lanes<S>(s.space, [&](int64_t i, auto lanes) {
      const V line =
          a.training ? fma(linear, load(in<S>(a.x) + plane + i, lanes) - mean, constant) : V{};
      store(out<S>(a.grad_x) + plane + i, fma(slope, load(g_in + plane + i, lanes), line), lanes);
    });
  }
}

template <class S>
void backward_typed(const Exec& exec, const BatchNormActBackwardArgs& a) {
  using T = ScalarOf<S>;
  Workspace<T> w(a.shape, a.workspace);
  fill_affine(a.shape.channels, a.eps, in<T>(a.weight), in<T>(a.bias), in<T>(a.var), w);
  with_kind<S>(a.act, [&](auto kind) {
    constexpr Kind kKind = decltype(kind)::value;
    if (a.shape.channels_last) {
      backward_rows<S, kKind>(exec, a, w);
      return;
    }
    parallel(exec, a.shape.channels, channel_grain(a.shape), [&](int64_t first, int64_t last) {
      for (int64_t c = first; c < last; ++c) backward_channel<S, kKind>(a, &w, c);
    });
  });
}

void forward(const Exec& exec, const BatchNormActArgs& a) {
  with_storage(a.shape.dtype, [&](auto s) { forward_typed<decltype(s)>(exec, a); });
}

void backward(const Exec& exec, const BatchNormActBackwardArgs& a) {
  with_storage(a.shape.dtype, [&](auto s) { backward_typed<decltype(s)>(exec, a); });
}

}  // namespace

const BatchNormActKernels OPFUSE_LEVEL::batch_norm_act = {forward, backward};

}  // namespace opfuse::ops
