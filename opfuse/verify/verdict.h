#pragma once
// Verdict: per site and for the step, is the replacement the same function, as accurate, and did
// the running program become what was planned. BORDER: verify -> report.

#include <cstdint>
#include <string>
#include <vector>

namespace opfuse::verify {

// One tensor compared: old and new against the fp64 truth T.
struct TensorError {
  std::string what;  // "output", "d/dx", "grad of fc.weight"
  int64_t elements = 0;
  double same_function = 0;  // max |T - R| / S over finite elements (must be <= 2^-40)
  double error_old = 0;      // max |old - T|, absolute
  double error_new = 0;
  double excess = 0;  // max (error(new) - 2 error(old)) / (u S), see metrics.h
  int64_t nonfinite_differences = 0;
  int64_t mended = 0;  // the old value overflowed on its way, the new one is right
};

struct SiteVerdict {
  int site = -1;
  bool accepted = false;
  std::string reason;  // why not, or what was shown
  std::string
      input_set;  // worst input: "captured call 12 f32[16,32,112,112]", "generated: denormals"
  std::vector<TensorError> captured;   // worst over the captured calls
  std::vector<TensorError> generated;  // worst over generated inputs, per dtype
  int captured_calls = 0, generated_cases = 0;
};

struct StepVerdict {
  bool replayed_exactly = false;  // every hash, gradient, buffer and the loss bitwise
  int64_t values_checked = 0, values_wrong = 0;
  std::string first_wrong;              // operator whose result differed, with position
  std::vector<std::string> cut_points;  // nothing is claimed across these
  double fp64_floors = 0;               // max over tensors: |rewritten - original| / floor, in fp64
  double run_floors = 0;                // the same in the run's dtype
  int floor_replays = 0;                // replays with moved externals that made the floors
  std::string worst_tensor;
  double gradient_error_old = 0, gradient_error_new = 0;  // total, to fp64
  bool accepted = false;
  std::string reason;
};

struct ValidationVerdict {  // translation validation of the first switched step
  bool accepted = false;
  int64_t operators_equal = 0, sites_replaced = 0, backward_replaced = 0;
  std::string reason;  // the operator that differs, with position, when refused
  int attempts = 0;
};

struct Verdict {
  std::vector<SiteVerdict> sites;
  StepVerdict step;
  ValidationVerdict validation;
};

}  // namespace opfuse::verify
