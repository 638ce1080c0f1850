// act(g) = g s,  act'(g) = s (1 + g (1 - s)),  s = sigmoid(g)

#include "opfuse/ops/silu_mul/silu_mul.h"

#include "opfuse/ops/simd/gated.h"

namespace opfuse::ops {
namespace {

struct Silu {
  template <class V>
  static OPFUSE_INLINE V value(V g) {
    return silu(g);
  }
  template <class V>
  static OPFUSE_INLINE V slope(V g, V* value) {
    V s;
    const V slope = silu_slope(g, &s);
    *value = g * s;
    return slope;
  }
};

}  // namespace

const GatedKernels OPFUSE_LEVEL::silu_mul = {forward<Silu>, backward<Silu>};

}  // namespace opfuse::ops
