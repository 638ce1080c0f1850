// Formulas are in simd/layer_norm.h; a row is the channels of one pixel.
//
// channels_last: rows lie in memory as they are. Otherwise a block of neighbouring pixels is taken
// through all channels, plane by plane, with one running sum a pixel: the block lies in cache from
// the first sweep on, and each plane is read in runs that are long enough to be prefetched.

#include "opfuse/ops/layer_norm_channels/layer_norm_channels.h"

#include "opfuse/ops/simd/layer_norm.h"

namespace opfuse::ops {
namespace {

constexpr int64_t kMostPixels = 512;        // of a block
constexpr int64_t kBlockBytes = 256 << 10;  // of x: half of a level 2 cache

template <class S>
int64_t block_pixels(const ImageShape& shape) {
  const int64_t fitting = kBlockBytes / (shape.channels * static_cast<int64_t>(sizeof(S)));
  return min_of(kMostPixels, max_of(64, fitting / 16 * 16));
}

// A block: `count` pixels of each plane, and what is known of each pixel.
template <class S>
struct Block {
  using T = ScalarOf<S>;
  int64_t channels, plane, first, count;  // first: in elements of the whole tensor
  T mean[kMostPixels], root[kMostPixels];

  int64_t at(int64_t channel) const { return first + channel * plane; }
};

// sums[i] = sum over channels of f(channel, i, lanes), four planes at once.
template <class S, class F>
OPFUSE_INLINE void sum_channels(const Block<S>& block, ScalarOf<S>* sums, const F& f) {
  std::memset(sums, 0, static_cast<size_t>(block.count) * sizeof(sums[0]));
  int64_t c = 0;
  for (; c + 4 <= block.channels; c += 4)
    sweep_lanes<S>(block.count, [&](int64_t i, auto lanes) {
      const auto four =
          (f(c, i, lanes) + f(c + 1, i, lanes)) + (f(c + 2, i, lanes) + f(c + 3, i, lanes));
      store(sums + i, load(sums + i, lanes) + four, lanes);
    });
  for (; c < block.channels; ++c)
    sweep_lanes<S>(block.count, [&](int64_t i, auto lanes) {
      store(sums + i, load(sums + i, lanes) + f(c, i, lanes), lanes);
    });
}

template <class S>
OPFUSE_INLINE void find_statistics(Block<S>& block, const S* x, double eps) {
  using V = VectorOf<S>;
  const V share = splat<V>(1.0 / static_cast<double>(block.channels));
  sum_channels(block, block.mean,
               [&](int64_t c, int64_t i, auto lanes) { return load(x + block.at(c) + i, lanes); });
  sweep_lanes<S>(block.count, [&](int64_t i, auto lanes) {
    store(block.mean + i, load(block.mean + i, lanes) * share, lanes);
  });
  sum_channels(block, block.root, [&](int64_t c, int64_t i, auto lanes) {
    const V u = load(x + block.at(c) + i, lanes) - load(block.mean + i, lanes);
    return u * u;
  });
  sweep_lanes<S>(block.count, [&](int64_t i, auto lanes) {
    const V var = load(block.root + i, lanes) * share + splat<V>(eps);
    store(block.root + i, splat<V>(1) / sqrt(var), lanes);
  });
}

template <class S>
void forward_block(const LayerNormChannelsArgs& a, Block<S>& block) {
  using V = VectorOf<S>;
  using T = ScalarOf<S>;
  const S* x = in<S>(a.x);
  find_statistics(block, x, a.eps);
  for (int64_t c = 0; c < block.channels; ++c) {
    const V weight = splat<V>(a.weight ? in<T>(a.weight)[c] : 1);
    const V bias = splat<V>(a.bias ? in<T>(a.bias)[c] : 0);
    S* y = out<S>(a.y) + block.at(c);
    sweep_lanes<S>(block.count, [&](int64_t i, auto lanes) {
      const V u = load(x + block.at(c) + i, lanes) - load(block.mean + i, lanes);
      store(y + i, fma(u * load(block.root + i, lanes), weight, bias), lanes);
    });
  }
}

template <class S>
void backward_block(const LayerNormChannelsBackwardArgs& a, Block<S>& block, ScalarOf<S>* shares) {
  using V = VectorOf<S>;
  using T = ScalarOf<S>;
  const S *x = in<S>(a.x), *grad = in<S>(a.grad);
  const T* weights = in<T>(a.weight);
  find_statistics(block, x, a.eps);
  T mean[kMostPixels] = {}, slope[kMostPixels] = {};
  const auto normal = [&](int64_t at, int64_t i, auto lanes) {
    return (load(x + at + i, lanes) - load(block.mean + i, lanes)) * load(block.root + i, lanes);
  };
  for (int64_t c = 0; c < block.channels; ++c) {
    const int64_t at = block.at(c);
    const V weight = splat<V>(weights ? weights[c] : 1);
    V products = {}, sums = {};
    sweep_lanes<S>(block.count, [&](int64_t i, auto lanes) {
      const V d = load(grad + at + i, lanes), dw = d * weight, u = normal(at, i, lanes);
      store(mean + i, load(mean + i, lanes) + dw, lanes);
      store(slope + i, fma(dw, u, load(slope + i, lanes)), lanes);
      products = fma(d, only(u, lanes), products);
      sums += d;
    });
    if (shares) {
      shares[c] += lane_sum(products);
      shares[block.channels + c] += lane_sum(sums);
    }
  }
  if (!a.grad_x) return;
  const V share = splat<V>(1.0 / static_cast<double>(block.channels));
  for (int64_t c = 0; c < block.channels; ++c) {
    const int64_t at = block.at(c);
    const V weight = splat<V>(weights ? weights[c] : 1);
    S* grad_x = out<S>(a.grad_x) + at;
    sweep_lanes<S>(block.count, [&](int64_t i, auto lanes) {
      const V dw = load(grad + at + i, lanes) * weight, u = normal(at, i, lanes);
      const V constant = fma(u, load(slope + i, lanes), load(mean + i, lanes)) * share;
      store(grad_x + i, (dw - constant) * load(block.root + i, lanes), lanes);
    });
  }
}

// The blocks of all images, counted.
template <class S>
struct Blocks {
  const ImageShape& shape;
  int64_t length = block_pixels<S>(shape);
  int64_t of_image = ceil_div(shape.pixels, length);

  int64_t count() const { return shape.images * of_image; }
  int64_t bytes() const { return length * shape.channels * static_cast<int64_t>(sizeof(S)); }
  void place(int64_t index, Block<S>* block) const {
    const int64_t begin = index % of_image * length;
    block->channels = shape.channels;
    block->plane = shape.pixels;
    block->first = index / of_image * shape.channels * shape.pixels + begin;
    block->count = min_of(length, shape.pixels - begin);
  }
};

template <class S>
void forward_typed(const Exec& exec, const LayerNormChannelsArgs& a) {
  using T = ScalarOf<S>;
  const int64_t n = a.shape.channels, rows = a.shape.images * a.shape.pixels;
  if (a.shape.channels_last) {
    parallel(exec, rows, max_of(1, 16384 / n), [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const S* x = in<S>(a.x) + row * n;
        normalize_row(x, statistics_of(x, n, a.eps), in<T>(a.weight), in<T>(a.bias), n,
                      out<S>(a.y) + row * n);
      }
    });
    return;
  }
  const Blocks<S> blocks{a.shape};
  const int64_t grain = max_of(1, (int64_t{64} << 10) / blocks.bytes());
  parallel(exec, blocks.count(), grain, [&](int64_t first, int64_t last) {
    Block<S> block;
    for (int64_t index = first; index < last; ++index) {
      blocks.place(index, &block);
      forward_block(a, block);
    }
  });
}

template <class S>
void backward_typed(const Exec& exec, const LayerNormChannelsBackwardArgs& a) {
  using T = ScalarOf<S>;
  const int64_t n = a.shape.channels, rows = a.shape.images * a.shape.pixels;
  T *grad_weight = out<T>(a.grad_weight), *grad_bias = out<T>(a.grad_bias);
  if (a.shape.channels_last) {
    for_shared_parts(exec, rows, n * 8, n, grad_weight, grad_bias, out<T>(a.workspace),
                     [&](int64_t row, T* share) {
                       const int64_t at = row * n;
                       S* grad_x = a.grad_x ? out<S>(a.grad_x) + at : nullptr;
                       layer_norm_gradient(in<S>(a.x) + at, in<S>(a.grad) + at, in<T>(a.weight),
                                           a.eps, n, share,
                                           [&](int64_t i, VectorOf<S> g, auto lanes) {
                                             if (grad_x) store(grad_x + i, g, lanes);
                                           });
                     });
    return;
  }
  const Blocks<S> blocks{a.shape};
  for_shared_parts(exec, blocks.count(), blocks.bytes(), n, grad_weight, grad_bias,
                   out<T>(a.workspace), [&](int64_t index, T* share) {
                     Block<S> block;
                     blocks.place(index, &block);
                     backward_block(a, block, share);
                   });
}

void forward(const Exec& exec, const LayerNormChannelsArgs& a) {
  with_storage(a.shape.dtype, [&](auto s) { forward_typed<decltype(s)>(exec, a); });
}

void backward(const Exec& exec, const LayerNormChannelsBackwardArgs& a) {
  with_storage(a.shape.dtype, [&](auto s) { backward_typed<decltype(s)>(exec, a); });
}

}  // namespace

const LayerNormChannelsKernels OPFUSE_LEVEL::layer_norm_channels = {forward, backward};

}  // namespace opfuse::ops
