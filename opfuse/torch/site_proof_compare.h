#pragma once
// One call of a site, old and new, against the recorded operators and the rule in fp64.

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "opfuse/torch/site_gradients.h"
#include "opfuse/torch/site_proof_chain.h"
#include "opfuse/torch/site_proof_values.h"
#include "opfuse/verify/metrics.h"

namespace opfuse::torch_bridge {

struct Compared {
  verify::Comparison y;
  std::vector<verify::Comparison> gradients;  // by parameter; no elements where none is wanted
};

void merge(const Compared& from, Compared* into);

// Inputs by parameter (undefined where absent), the cotangent (undefined: forward alone), what the
// recorded operators gave in the run's dtype, and what the target gives.
struct CallValues {
  std::vector<at::Tensor> inputs;
  at::Tensor cotangent;
  ChainValues old_values, new_values;
};

// `chain` is the recorded one, `composition` the rule's.
void compare_call(const RecordedChain& chain, const Chain& composition,
                  const SiteGradients& gradients, const CallValues& call, Compared* out);

// The results of a recorded chain (its result, then the contributions), contributions summed.
ChainValues summed(const std::vector<at::Tensor>& results, const SiteGradients& gradients,
                   const at::Tensor& cotangent);

// The recorded operators in the run's dtype.
ChainValues run_recorded(const RecordedChain& chain, const SiteGradients& gradients,
                         const std::vector<at::Tensor>& inputs, const at::Tensor& cotangent);

// A backward that is linear in the cotangent scales with it: the worst element where it does not,
// or none.
struct Scaling {
  bool linear = true;
  int64_t index = -1;
};
Scaling check_scaling(const RecordedChain& chain, const SiteGradients& gradients,
                      const std::vector<at::Tensor>& inputs, const at::Tensor& cotangent);

}  // namespace opfuse::torch_bridge
