#pragma once
// One graph node made callable: its dispatcher operator and its arguments as IValues, with tensors
// left open. The graph's attributes win over the recorded ones, so that a rewritten graph runs as
// it is written; what a graph cannot hold (generators, objects) comes from the record.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <functional>
#include <string>
#include <vector>

#include "opfuse/base/result.h"
#include "opfuse/graph/graph.h"
#include "opfuse/torch/record.h"

namespace opfuse::torch_bridge {

enum class ArgumentForm : uint8_t { kConstant, kTensor, kOptionalTensor, kList, kOptionalList };

struct OperationArgument {
  ArgumentForm form = ArgumentForm::kConstant;
  std::vector<graph::ValueId> values;
  c10::IValue constant;
  bool is_dtype = false;  // of type ScalarType: raised in fp64
  bool is_generator = false;
  bool is_written = false;
};

struct Operation {
  graph::NodeId node = graph::kNone;
  std::optional<c10::OperatorHandle> op;  // empty: nothing to run (queries, communication)
  std::vector<OperationArgument> arguments;
  bool reads_tensors = false;
  bool changes_geometry = false;  // transpose_, squeeze_, …: the argument itself becomes the view
};

using TensorSource = std::function<at::Tensor(graph::ValueId)>;

// `record` may be null (chains of rules).
Result<Operation> make_operation(const graph::Graph& graph, graph::NodeId node,
                                 const Record* record);

// Floating and complex dtypes become double; others stay.
c10::ScalarType raised(c10::ScalarType dtype);

// The arguments as a stack. `raise`: dtype arguments and dtype-less factories of floating results
// give double, and a device is the CPU: others may have no fp64. `result` is the recorded dtype of
// the first result.
torch::jit::Stack make_stack(const Operation& operation, const TensorSource& tensors, bool raise,
                             c10::ScalarType result);

// Results of a call, flattened as Node::outputs is.
std::vector<at::Tensor> flatten_results(const torch::jit::Stack& stack);

// "aten.mul.Tensor at model.py:12".
std::string describe_node(const graph::Graph& graph, graph::NodeId node);

}  // namespace opfuse::torch_bridge
