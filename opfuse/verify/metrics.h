#pragma once
// Element by element: is it the same function, is it as accurate. T is the fp64 truth (the recorded
// operators), R the rule's composition in fp64, S the magnitude (every sum and difference of T
// replaced by the sum of its terms' absolute values); old and new ran in the run's dtype. One pass,
// nothing allocated; views are contiguous and of equal element count.

#include <cstdint>
#include <string>

#include "opfuse/base/dtype.h"
#include "opfuse/base/tensor_view.h"
#include "opfuse/verify/verdict.h"

namespace opfuse::verify {

// |T - R| <= kSameFunction * S. excess = (error(new) - 2 error(old)) / (u S) <= kAllowedExcess, or,
// where the tensor's largest error did not grow beyond twice the old one, <= kRareExcess: among
// 10^8 elements some old value is exact by chance where all roundings of the new one point one
// way. PyTorch's vectorised erf is six roundoffs off: fewer would refuse its own GELU.
constexpr double kSameFunction = 0x1p-40;
constexpr double kAllowedExcess = 8;
constexpr double kRareExcess = 12;

// Where the worst element lies, to name it in a reason.
struct WorstElement {
  int64_t index = -1;
  double truth = 0, other = 0;
};

struct Comparison {
  TensorError error;
  double magnitude = 0;    // max S over finite elements: the scale of the tensor
  WorstElement function;   // of same_function
  WorstElement accuracy;   // of excess
  WorstElement nonfinite;  // first position where the sets differ
};

// T, R, S: f64. Adds to `into` (maxima and counts), so that a tensor can be given in pieces;
// `base` is added to reported indices.
void compare_function(const TensorView& truth, const TensorView& rule, const TensorView& magnitude,
                      int64_t base, Comparison* into);

// T, S: f64; old and new: any floating dtype, equal for both. NaN and infinities of old and new
// must stand at the same positions; where |T| lies at the border of the dtype's range either may
// overflow.
void compare_accuracy(const TensorView& truth, const TensorView& old_value,
                      const TensorView& new_value, const TensorView& magnitude, int64_t base,
                      Comparison* into);

void merge(const Comparison& from, Comparison* into);

// max error(old) beyond this many roundoffs of the tensor's scale: the replay was not faithful.
constexpr double kFaithfulUnits = 1024;

// Were the old values computed from these inputs at all? Below the smallest magnitude of the dtype
// errors are absolute, as in compare_accuracy: gradients may be denormal as a whole.
bool faithful(const Comparison& comparison, DType dtype);
bool same_function(const TensorError& error);
bool same_accuracy(const TensorError& error);

// Euclidean norm of a - b, in double; infinite when NaN or infinities stand at different positions.
double difference_norm(const TensorView& a, const TensorView& b);
double norm(const TensorView& a);
double absolute_sum(const TensorView& a);
// Bitwise equal, NaN included.
bool same_bits(const TensorView& a, const TensorView& b);

// Reads element i as a double; any dtype but complex.
double element(const TensorView& view, int64_t i);

}  // namespace opfuse::verify
