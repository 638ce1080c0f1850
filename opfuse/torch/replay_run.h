#pragma once
// One pass over the nodes of a graph on the values of a record; see replay.h. Tensors are kept per
// slot (storage, offset, sizes, strides, dtype), views and in-place operators really run, and a
// storage is freed after its last use. Watches look at values in between.

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "opfuse/base/result.h"
#include "opfuse/graph/graph.h"
#include "opfuse/torch/record.h"
#include "opfuse/torch/replay.h"
#include "opfuse/torch/replay_operation.h"
#include "opfuse/verify/evaluator.h"

namespace opfuse::torch_bridge {

struct ReplayWatch {
  std::vector<graph::ValueId> values;  // alive when `look` is called, right after the node
  std::function<void(const TensorSource&)> look;
};
using ReplayWatches = std::multimap<graph::NodeId, ReplayWatch>;

class ReplayEvaluation final : public verify::Evaluation {
 public:
  Result<TensorView> value(graph::ValueId id) const override;
  // The kept value with its own strides.
  const at::Tensor* tensor(graph::ValueId id) const;

  std::map<graph::ValueId, at::Tensor> kept;
  int64_t peak_bytes = 0;

 private:
  mutable std::map<graph::ValueId, at::Tensor> contiguous_;
};

// Runs below autograd with recording, autocast and modes off; generators are restored.
Result<std::unique_ptr<ReplayEvaluation>> run_replay(const Record& record,
                                                     const graph::Graph& graph,
                                                     const verify::ReplayOptions& options,
                                                     const ReplayLimits& limits,
                                                     const ReplayWatches& watches = {});

// The view of values that verify/ works on; the tensor must be contiguous and outlive it.
TensorView view_of(const at::Tensor& contiguous);

}  // namespace opfuse::torch_bridge
