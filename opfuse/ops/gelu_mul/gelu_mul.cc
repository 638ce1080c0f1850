// act(g) = g P,  act'(g) = P + g p,  P = (1 + erf(g / sqrt(2))) / 2,  p = exp(-g^2 / 2) / sqrt(2
// pi)

#include "opfuse/ops/gelu_mul/gelu_mul.h"

#include "opfuse/ops/simd/gated.h"

namespace opfuse::ops {
namespace {

struct Gelu {
  template <class V>
  static OPFUSE_INLINE V value(V g) {
    return g * normal_cdf(g);
  }
  template <class V>
  static OPFUSE_INLINE V slope(V g, V* value) {
    const V cdf = normal_cdf(g);
    *value = g * cdf;
    return fma(g, normal_pdf(g), cdf);
  }
};

}  // namespace

const GatedKernels OPFUSE_LEVEL::gelu_mul = {forward<Gelu>, backward<Gelu>};

}  // namespace opfuse::ops
