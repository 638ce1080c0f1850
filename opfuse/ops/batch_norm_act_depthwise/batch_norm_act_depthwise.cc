// z = (x - mean) slope + bias,  a = act(z)
// y[oh, ow]      = sum over kh, kw of a[oh s + kh - top, ow s + kw - left] w[kh, kw]
// grad_w[kh, kw] = sum over oh, ow of grad[oh, ow] a[oh s + kh - top, ow s + kw - left]
// g              = act'(z) (gradient of a: grad convolved with the turned filters)
// grad_x         from g as in ops/batch_norm_act
//
// Backward computes a and act' of a row of x once, for g of this row and for the filters'
// gradients of the rows of results that it completes, and leaves g in grad_x; a second pass over
// grad_x follows.

#include "opfuse/ops/batch_norm_act_depthwise/batch_norm_act_depthwise.h"

#include "opfuse/ops/batch_norm_act/affine.h"
#include "opfuse/ops/batch_norm_act/statistics.h"
#include "opfuse/ops/batch_norm_act_depthwise/ring.h"
#include "opfuse/ops/simd/activation.h"

namespace opfuse::ops {
namespace {

// In steps of 8 bytes; see norm_depthwise_workspace_bytes.
template <class T>
struct Workspace : ChannelLines<T> {
  DepthwiseRing sizes;
  double* statistics;
  T* tiles;
  double *sums, *filter_sums;  // [parts][2][channels], [parts][filters]
  T *filters, *turned;         // padded to whole vectors; turned by half a circle
  double* parts;               // [parts][sizes.elements()]

  Workspace(const DepthwiseShape& s, void* memory, const T* given) : sizes(s) {
    const int64_t norm = part_count(s.samples * s.height * s.width, s.channels * 4);
    const int64_t count = DepthwiseParts(s, false).count;
    double* next = static_cast<double*>(memory);
    const auto take = [&](int64_t n) { return (next += n) - n; };
    this->cut(reinterpret_cast<T*>(take(4 * s.channels)), s.channels);
    statistics = take(norm * 2 * s.channels);
    tiles = reinterpret_cast<T*>(take(norm * 2 * s.channels));
    sums = take(count * 2 * sizes.channels);
    filter_sums = take(count * sizes.filters);
    filters = reinterpret_cast<T*>(take(sizes.filters));
    turned = reinterpret_cast<T*>(take(sizes.filters));
    parts = next;
    const int64_t taps = s.kernel * s.kernel;
    std::memset(filters, 0, static_cast<size_t>(sizes.filters) * sizeof(T));
    for (int64_t tap = 0; tap < taps; ++tap)
      std::memcpy(filters + tap * sizes.channels, given + tap * s.channels,
                  static_cast<size_t>(s.channels) * sizeof(T));
    for (int64_t tap = 0; tap < taps; ++tap)
      std::memcpy(turned + tap * sizes.channels, filters + (taps - 1 - tap) * sizes.channels,
                  static_cast<size_t>(sizes.channels) * sizeof(T));
  }
};

// What a part works in.
template <class T>
struct PartMemory {
  T *ring, *slopes, *inner, *out_row, *sample, *tile, *shift, *filter_tile;

  PartMemory(const Workspace<T>& w, int64_t part) {
    ring = reinterpret_cast<T*>(w.parts + part * w.sizes.elements());
    slopes = ring + w.sizes.ring;
    inner = slopes + w.sizes.row;
    out_row = inner + w.sizes.row;
    sample = out_row + w.sizes.out_row;
    tile = sample + w.sizes.sample;
    shift = tile + 2 * w.sizes.channels;
    filter_tile = shift + w.sizes.channels;
  }
};

template <class T>
struct Line {
  int64_t width, channels, pitch;  // pitch: channels rounded up
  const T *mean, *slope, *bias;
  Activation act;
};

// Flat in places: the gradient there is 0, whatever comes in, as in torch.
inline bool has_flat_parts(Activation act) {
  return act == Activation::kRelu || act == Activation::kRelu6 || act == Activation::kHardswish;
}

// A row of x, activated, into a row of the ring; with `slopes` act'(z) as well.
template <class S, Kind kKind, bool kSlopes>
void fill_row(const Line<ScalarOf<S>>& line, const S* x, ScalarOf<S>* row, ScalarOf<S>* slopes) {
  using V = VectorOf<S>;
  using T = ScalarOf<S>;
  const Activate<V> activate(line.act);
  const int64_t channels = line.channels, pitch = line.pitch, ahead = line.width * channels;
  const T *mean = line.mean, *slope = line.slope, *bias = line.bias;
  rows_in_fours(0, line.width, [=](int64_t column, auto count) {
    sweep_lanes<S>(channels, [&](int64_t c, auto lanes) {
      const V m = load(mean + c, lanes), k = load(slope + c, lanes), b = load(bias + c, lanes);
      for (int i = 0; i < decltype(count)::value; ++i) {
        const S* at = x + (column + i) * channels + c;
        __builtin_prefetch(at + ahead, 0, 2);
        const V z = fma(load(at, lanes) - m, k, b);
        const int64_t to = (column + i) * pitch + c;
        if constexpr (kSlopes) {
          V derivative;
          store(row + to, activate.template value_and_slope<kKind>(z, &derivative), lanes);
          store(slopes + to, derivative, lanes);
        } else {
          store(row + to, activate.template value<kKind>(z), lanes);
        }
      }
    });
  });
}

template <class S>
using FillRow = void (*)(const Line<ScalarOf<S>>&, const S*, ScalarOf<S>*, ScalarOf<S>*);
template <class S, bool kSlopes>
FillRow<S> fill_of(Activation act) {
  FillRow<S> fill = nullptr;
  with_kind<S>(act, [&](auto kind) { fill = fill_row<S, decltype(kind)::value, kSlopes>; });
  return fill;
}

// Sums of y and y^2 of one channel, from sums of y - shift over `n` values.
template <class T>
void add_shifted(int64_t channels, int64_t n, const T* tile, const T* shift, int64_t pitch,
                 double* sums) {
  for (int64_t c = 0; c < channels; ++c) {
    const double s = tile[c], q = tile[pitch + c], k = shift[c], count = static_cast<double>(n);
    sums[c] += s + count * k;
    sums[pitch + c] += q + k * (2 * s + count * k);
  }
}

// The statistics of rows of results as they are stored, while they are in cache.
template <class S>
struct RowSums {
  using T = ScalarOf<S>;
  int64_t channels, width, pitch, seen = 0;
  T *tile, *shift;
  double* sums;

  void add(const S* y) {
    using V = VectorOf<S>;
    if (!seen) {
      std::memset(tile, 0, static_cast<size_t>(2 * pitch) * sizeof(T));
      // The mean of a few values: one alone may lie far from the mean, which costs digits.
      const int64_t few = min_of(4, width);
      const V share = splat<V>(1.0 / static_cast<double>(few));
      sweep_lanes<S>(channels, [&](int64_t c, auto lanes) {
        V sum{};
        for (int64_t column = 0; column < few; ++column)
          sum += load(y + column * channels + c, lanes);
        store(shift + c, sum * share, lanes);
      });
    }
    const T* k = shift;
    T *s = tile, *q = tile + pitch;
    const int64_t n = channels;
    rows_in_fours(0, width, [=](int64_t column, auto count) {
      sweep_lanes<S>(n, [&](int64_t c, auto lanes) {
        const V from = load(k + c, lanes);
        V sum = load(s + c, lanes), squares = load(q + c, lanes);
        for (int i = 0; i < decltype(count)::value; ++i) {
          const V v = load(y + (column + i) * n + c, lanes) - from;
          sum += v;
          squares = fma(v, v, squares);
        }
        store(s + c, sum, lanes);
        store(q + c, squares, lanes);
      });
    });
    seen += width;
    if (seen >= kTileRows) flush();
  }
  void flush() {
    if (seen) add_shifted(channels, seen, tile, shift, pitch, sums);
    seen = 0;
  }
};

// Rows of the ring are activated in order: `next` is the first that is not yet.
template <class S>
struct Ring {
  using T = ScalarOf<S>;
  const DepthwiseShape& shape;
  const DepthwiseRing& sizes;
  T* memory;

  T* row(int64_t ih) const {
    return memory + (ih % shape.kernel * sizes.columns + shape.pad_left) * sizes.channels;
  }
  const S* source(const S* sample, int64_t ih) const {
    return sample + ih * shape.width * shape.channels;
  }
};

template <class T>
Line<T> line_of(const DepthwiseShape& s, const DepthwiseRing& sizes, const ChannelLines<T>& lines,
                const void* mean, Activation act) {
  return {s.width, s.channels, sizes.channels, in<T>(mean), lines.slope, lines.bias, act};
}

// Rows [first, last) of the results of one sample.
template <class S>
void forward_band(const BatchNormActDepthwiseArgs& a, const Workspace<ScalarOf<S>>& w,
                  const PartMemory<ScalarOf<S>>& memory, FillRow<S> fill,
                  const RowLoops<ScalarOf<S>>& loops, int64_t n, int64_t first, int64_t last,
                  RowSums<S>* sums) {
  using T = ScalarOf<S>;
  const DepthwiseShape& s = a.shape;
  const int64_t channels = s.channels, pitch = w.sizes.channels;
  const auto line = line_of<T>(s, w.sizes, w, a.mean, a.act);
  const Ring<S> ring{s, w.sizes, memory.ring};
  const S* x = in<S>(a.x) + n * s.height * s.width * channels;
  S* y = out<S>(a.y) + n * s.out_height * s.out_width * channels;
  int64_t next = max_of(0, first * s.stride - s.pad_top);
  for (int64_t oh = first; oh < last; ++oh) {
    const int64_t end = min_of(s.height, oh * s.stride - s.pad_top + s.kernel);
    for (; next < end; ++next) fill(line, ring.source(x, next), ring.row(next), nullptr);
    const Window<T> window(s, w.sizes, memory.ring, oh);
    S* row = y + oh * s.out_width * channels;
    if constexpr (sizeof(S) == sizeof(T)) {
      if (channels == pitch) {
        loops.forward(s, window, w.filters, row, pitch);
        sums->add(row);
        continue;
      }
    }
    loops.forward(s, window, w.filters, memory.out_row, pitch);
    for (int64_t ow = 0; ow < s.out_width; ++ow)
      sweep_lanes<S>(channels, [&](int64_t c, auto lanes) {
        store(row + ow * channels + c, load(memory.out_row + ow * pitch + c, lanes), lanes);
      });
    sums->add(row);
  }
}

template <class T>
void clear_ring(const DepthwiseRing& sizes, const PartMemory<T>& memory) {
  std::memset(memory.ring, 0, static_cast<size_t>(sizes.ring) * sizeof(T));
}

template <class S>
void forward_typed(const Exec& exec, const BatchNormActDepthwiseArgs& a) {
  using T = ScalarOf<S>;
  const DepthwiseShape& s = a.shape;
  const Workspace<T> w(s, a.workspace, in<T>(a.filters));
  T *mean = out<T>(a.mean), *var = out<T>(a.var);
  if (a.training)
    statistics_of_rows(exec, norm_of(s), in<S>(a.x), w.statistics, w.tiles, mean, var);
  fill_affine(s.channels, a.eps, in<T>(a.weight), in<T>(a.bias), var, w);
  const DepthwiseParts cut(s, false);
  const int64_t items = s.samples * cut.bands, pitch = w.sizes.channels;
  const auto fill = fill_of<S, false>(a.act);
  const auto loops = row_loops<T>(s);
  parallel(exec, cut.count, 1, [&](int64_t begin, int64_t end) {
    const PartMemory<T> memory(w, begin);  // one for the whole piece: it stays in cache
    clear_ring(w.sizes, memory);
    for (int64_t part = begin; part < end; ++part) {
      RowSums<S> sums{
          s.channels, s.out_width, pitch, 0, memory.tile, memory.shift, w.sums + part * 2 * pitch};
      std::memset(sums.sums, 0, static_cast<size_t>(2 * pitch) * sizeof(double));
      for (int64_t item = part_begin(items, cut.count, part);
           item < part_begin(items, cut.count, part + 1); ++item) {
        const int64_t band = item % cut.bands;
        forward_band<S>(a, w, memory, fill, loops, item / cut.bands,
                        part_begin(s.out_height, cut.bands, band),
                        part_begin(s.out_height, cut.bands, band + 1), &sums);
        sums.flush();
      }
    }
  });
  const double count = static_cast<double>(s.samples * s.out_height * s.out_width);
  for (int64_t c = 0; c < s.channels; ++c) {
    double sum = 0, squares = 0;
    for (int64_t part = 0; part < cut.count; ++part) {
      sum += w.sums[part * 2 * pitch + c];
      squares += w.sums[(part * 2 + 1) * pitch + c];
    }
    finish_statistics(c, sum, squares, 0, count, out<T>(a.y_mean), out<T>(a.y_var));
  }
}

// The gradient of one sample's results as whole vectors of the compute type.
template <class S>
const ScalarOf<S>* gradient_of_sample(const DepthwiseShape& s, const DepthwiseRing& sizes,
                                      const S* grad, ScalarOf<S>* memory) {
  if constexpr (sizeof(S) == sizeof(ScalarOf<S>)) {
    if (s.channels == sizes.channels) return grad;
  }
  std::memset(memory, 0, static_cast<size_t>(sizes.sample) * sizeof(*memory));
  for (int64_t i = 0; i < s.out_height * s.out_width; ++i)
    sweep_lanes<S>(s.channels, [&](int64_t c, auto lanes) {
      store(memory + i * sizes.channels + c, load(grad + i * s.channels + c, lanes), lanes);
    });
  return memory;
}

// g = inner * slopes of one row into grad_x, and the sums of g and of g (x - mean) into `tile`.
template <class S>
void finish_row(const Line<ScalarOf<S>>& line, const ScalarOf<S>* inner, const ScalarOf<S>* slopes,
                const S* x, S* grad_x, ScalarOf<S>* tile) {
  using V = VectorOf<S>;
  const int64_t channels = line.channels, pitch = line.pitch;
  const auto* mean = line.mean;
  const bool flat = has_flat_parts(line.act);
  rows_in_fours(0, line.width, [=](int64_t column, auto count) {
    sweep_lanes<S>(channels, [&](int64_t c, auto lanes) {
      const V m = load(mean + c, lanes);
      V sum = load(tile + c, lanes), product = load(tile + pitch + c, lanes);
      for (int i = 0; i < decltype(count)::value; ++i) {
        const int64_t at = (column + i) * channels + c, from = (column + i) * pitch + c;
        const V slope = load(slopes + from, lanes);
        V g = load(inner + from, lanes) * slope;
        if (flat) g = slope == V{} ? V{} : g;
        store(grad_x + at, g, lanes);
        sum += g;
        product = fma(g, load(x + at, lanes) - m, product);
      }
      store(tile + c, sum, lanes);
      store(tile + pitch + c, product, lanes);
    });
  });
}

// Sums in the compute type over about kTileRows positions, then in f64.
template <class T>
struct FilterSums {
  int64_t size;
  T* tile;
  double* sums;
  int64_t seen = 0;

  T* open() {
    if (!seen) std::memset(tile, 0, static_cast<size_t>(size) * sizeof(T));
    return tile;
  }
  void add(int64_t positions) {
    seen += positions;
    if (seen >= kTileRows) flush();
  }
  void flush() {
    if (seen)
      for (int64_t i = 0; i < size; ++i) sums[i] += tile[i];
    seen = 0;
  }
};

template <class S>
void backward_sample(const BatchNormActDepthwiseBackwardArgs& a, const Workspace<ScalarOf<S>>& w,
                     const PartMemory<ScalarOf<S>>& memory, FillRow<S> fill,
                     const RowLoops<ScalarOf<S>>& loops, int64_t n, double* sums,
                     FilterSums<ScalarOf<S>>* filter_sums) {
  using T = ScalarOf<S>;
  const DepthwiseShape& s = a.shape;
  const int64_t pitch = w.sizes.channels, volume = s.height * s.width * s.channels;
  const auto line = line_of<T>(s, w.sizes, w, a.mean, a.act);
  const Ring<S> ring{s, w.sizes, memory.ring};
  const S* x = in<S>(a.x) + n * volume;
  S* grad_x = out<S>(a.grad_x) + n * volume;
  const T* grad = gradient_of_sample<S>(
      s, w.sizes, in<S>(a.grad) + n * s.out_height * s.out_width * s.channels, memory.sample);
  // The gradient of x is a convolution of grad too, with the turned filters.
  DepthwiseShape data = s;
  data.channels = pitch;
  if (s.stride == 1) {
    data.height = s.out_height;
    data.width = s.out_width;
    data.out_height = s.height;
    data.out_width = s.width;
    data.pad_top = s.kernel - 1 - s.pad_top;
    data.pad_left = s.kernel - 1 - s.pad_left;
  }
  const T* filters = s.stride == 1 ? w.turned : w.filters;
  int64_t oh = 0;
  for (int64_t ih = 0; ih < s.height; ++ih) {
    const S* row = ring.source(x, ih);
    fill(line, row, ring.row(ih), memory.slopes);
    loops.grad_x(data, grad, filters, memory.inner, ih);
    std::memset(memory.tile, 0, static_cast<size_t>(2 * pitch) * sizeof(T));
    finish_row<S>(line, memory.inner, memory.slopes, row, grad_x + (row - x), memory.tile);
    for (int64_t c = 0; c < 2 * pitch; ++c) sums[c] += memory.tile[c];
    // The rows of results whose last tap this was.
    for (; oh < s.out_height && min_of(s.height, oh * s.stride - s.pad_top + s.kernel) <= ih + 1;
         ++oh) {
      const Window<T> window(s, w.sizes, memory.ring, oh);
      loops.filters(s, window, grad + oh * s.out_width * pitch, filter_sums->open(), pitch);
      filter_sums->add(s.out_width);
    }
  }
}

template <class S>
void backward_typed(const Exec& exec, const BatchNormActDepthwiseBackwardArgs& a) {
  using T = ScalarOf<S>;
  const DepthwiseShape& s = a.shape;
  const Workspace<T> w(s, a.workspace, in<T>(a.filters));
  fill_affine(s.channels, a.eps, in<T>(a.weight), in<T>(a.bias), in<T>(a.var), w);
  const DepthwiseParts cut(s, true);
  const int64_t pitch = w.sizes.channels;
  const auto fill = fill_of<S, true>(a.act);
  const auto loops = row_loops<T>(s);
  parallel(exec, cut.count, 1, [&](int64_t begin, int64_t end) {
    const PartMemory<T> memory(w, begin);
    clear_ring(w.sizes, memory);
    for (int64_t part = begin; part < end; ++part) {
      double* sums = w.sums + part * 2 * pitch;
      std::memset(sums, 0, static_cast<size_t>(2 * pitch) * sizeof(double));
      FilterSums<T> filter_sums{w.sizes.filters, memory.filter_tile,
                                w.filter_sums + part * w.sizes.filters};
      std::memset(filter_sums.sums, 0, static_cast<size_t>(w.sizes.filters) * sizeof(double));
      for (int64_t n = part_begin(s.samples, cut.count, part);
           n < part_begin(s.samples, cut.count, part + 1); ++n)
        backward_sample<S>(a, w, memory, fill, loops, n, sums, &filter_sums);
      filter_sums.flush();
    }
  });
  const int64_t positions = s.samples * s.height * s.width;
  for (int64_t c = 0; c < s.channels; ++c) {
    double sum = 0, product = 0;
    for (int64_t part = 0; part < cut.count; ++part) {
      sum += w.sums[part * 2 * pitch + c];
      product += w.sums[(part * 2 + 1) * pitch + c];
    }
    finish_channel(positions, a.eps, a.training, in<T>(a.var), c, sum, product,
                   out<T>(a.grad_weight), out<T>(a.grad_bias), w);
  }
  for (int64_t tap = 0; tap < s.kernel * s.kernel; ++tap)
    for (int64_t c = 0; c < s.channels; ++c) {
      double total = 0;
      for (int64_t part = 0; part < cut.count; ++part)
        total += w.filter_sums[part * w.sizes.filters + tap * pitch + c];
      out<T>(a.grad_filters)[tap * s.channels + c] = static_cast<T>(total);
    }
  finish_rows<S>(exec, positions, s.channels, a.training, in<S>(a.x), out<S>(a.grad_x),
                 out<S>(a.grad_x), in<T>(a.mean), w);
}

void forward(const Exec& exec, const BatchNormActDepthwiseArgs& a) {
  with_storage(a.shape.dtype, [&](auto s) { forward_typed<decltype(s)>(exec, a); });
}

void backward(const Exec& exec, const BatchNormActDepthwiseBackwardArgs& a) {
  with_storage(a.shape.dtype, [&](auto s) { backward_typed<decltype(s)>(exec, a); });
}

}  // namespace

const BatchNormActDepthwiseKernels OPFUSE_LEVEL::batch_norm_act_depthwise = {forward, backward};

}  // namespace opfuse::ops
