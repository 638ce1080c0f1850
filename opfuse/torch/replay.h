#pragma once
// Replays a recorded step: an interpreter over Graph nodes on the values of a Record. In: the graph
// built from the record, or a rewriting of it; out: verify::Evaluation. Runs below autograd, never
// calls user code, never takes the GIL, leaves generators and allocator as they were.
// The Record must outlive the evaluator.

#include <cstdint>
#include <memory>

#include "opfuse/torch/record.h"
#include "opfuse/verify/evaluator.h"

namespace opfuse::torch_bridge {

struct ReplayLimits {
  int64_t max_bytes = -1;  // live tensors of a replay; beyond it the replay fails with a sentence
};

std::unique_ptr<verify::Evaluator> make_evaluator(const Record& record,
                                                  const ReplayLimits& limits = {});

}  // namespace opfuse::torch_bridge
