#include "opfuse/ops/simd/math.h"
#include "opfuse/ops/simd/math_table.h"
#include "opfuse/ops/simd/memory.h"

namespace opfuse::ops {
namespace {

#define OPFUSE_ARRAY_FUNCTION(f)                                                         \
  void f##_array(const float* x, float* y, int64_t n) {                                  \
    sweep<kLanes<float>>(                                                                \
        n, [&](int64_t i) { store(y + i, f(load(x + i))); },                             \
        [&](int64_t i, int64_t left) { store_n(y + i, f(load_n(x + i, left)), left); }); \
  }
OPFUSE_ARRAY_FUNCTION(exp)
OPFUSE_ARRAY_FUNCTION(log)
OPFUSE_ARRAY_FUNCTION(tanh)
OPFUSE_ARRAY_FUNCTION(erf)
OPFUSE_ARRAY_FUNCTION(rsqrt)
OPFUSE_ARRAY_FUNCTION(sigmoid)
OPFUSE_ARRAY_FUNCTION(silu)

template <class S>
void round_trip(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes<S>) {
    const int64_t left = min_of(kLanes<S>, n - i);
    S narrow[kLanes<S>] = {};
    store(narrow, left == kLanes<S> ? load(x + i) : load_n(x + i, left));
    const F32v wide = load(narrow);
    if (left == kLanes<S>)
      store(y + i, wide);
    else
      store_n(y + i, wide, left);
  }
}

}  // namespace

const MathKernels OPFUSE_LEVEL::math = {
    exp_array,     log_array,  tanh_array,       erf_array,       rsqrt_array,
    sigmoid_array, silu_array, round_trip<Bf16>, round_trip<F16>,
};

}  // namespace opfuse::ops
