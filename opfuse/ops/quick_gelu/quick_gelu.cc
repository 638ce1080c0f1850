// s         = sigmoid(beta x)
// y         = x s
// grad_x    = d s (1 + beta x (1 - s))
// grad_beta = sum of d x^2 s (1 - s)

#include "opfuse/ops/quick_gelu/quick_gelu.h"

#include "opfuse/ops/simd/dispatch.h"
#include "opfuse/ops/simd/lanes.h"
#include "opfuse/ops/simd/math.h"
#include "opfuse/ops/simd/pieces.h"
#include "opfuse/ops/simd/reduce.h"

namespace opfuse::ops {
namespace {

template <class S>
void forward_typed(const Exec& exec, int64_t n, double beta, const S* x, S* y) {
  using V = VectorOf<S>;
  const Pieces pieces(1, n, true);
  const V b = splat<V>(beta);
  with_choice(n * int64_t{2 * sizeof(S)} >= exec.stream_bytes && is_aligned(y), [&](auto streamed) {
    constexpr bool kStream = decltype(streamed)::value;
    for_pieces(exec, pieces, [&](int64_t piece) {
      const int64_t first = piece * pieces.length;
      sweep_lanes<S>(pieces.size(piece), [&](int64_t i, auto lanes) {
        const V v = load(x + first + i, lanes);
        put<kStream>(y + first + i, v * sigmoid(b * v), lanes);
      });
      if (kStream) finish_streams();
    });
  });
}

template <class S, bool kGradX, bool kGradBeta>
void backward_typed(const Exec& exec, const QuickGeluBackwardArgs& a) {
  using V = VectorOf<S>;
  const S *x = in<S>(a.x), *grad = in<S>(a.grad);
  S* grad_x = out<S>(a.grad_x);
  const V b = splat<V>(a.beta);
  double* sums = out<double>(a.workspace);
  const int64_t parts = part_count(a.n, sizeof(S));
  parallel(exec, parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      double sum = 0;
      const int64_t end = part_begin(a.n, parts, part + 1);
      for (int64_t from = part_begin(a.n, parts, part); from < end; from += 4096) {
        Chains<V> chains;
        const auto at = [&](int64_t i, int chain, auto lanes) {
          const V v = load(x + from + i, lanes), d = load(grad + from + i, lanes), z = b * v;
          V complement;
          const V s = sigmoid_pair(z, &complement);
          if (kGradX) store(grad_x + from + i, d * (s * fma(z, complement, splat<V>(1))), lanes);
          if (kGradBeta) chains.sum[chain] = fma(d * (v * s), v * complement, chains.sum[chain]);
        };
        sweep_chains<kLanes<S>>(
            min_of(4096, end - from), [&](int64_t i, int chain) { at(i, chain, Full{}); },
            [&](int64_t i, int64_t left) { at(i, 0, Part{left}); });
        if (kGradBeta) sum += chains.total();
      }
      if (kGradBeta) sums[part] = sum;
    }
  });
  if (!kGradBeta) return;
  double total = 0;
  for (int64_t part = 0; part < parts; ++part) total += sums[part];
  *a.grad_beta = total;
}

void forward(const Exec& exec, DType dtype, int64_t n, double beta, const void* x, void* y) {
  with_storage(dtype, [&](auto storage) {
    using S = decltype(storage);
    forward_typed<S>(exec, n, beta, in<S>(x), out<S>(y));
  });
}

void backward(const Exec& exec, const QuickGeluBackwardArgs& a) {
  with_storage(a.dtype, [&](auto storage) {
    using S = decltype(storage);
    if (a.grad_x && a.grad_beta)
      backward_typed<S, true, true>(exec, a);
    else if (a.grad_x)
      backward_typed<S, true, false>(exec, a);
    else if (a.grad_beta)
      backward_typed<S, false, true>(exec, a);
  });
}

}  // namespace

const QuickGeluKernels OPFUSE_LEVEL::quick_gelu = {forward, backward};

}  // namespace opfuse::ops
