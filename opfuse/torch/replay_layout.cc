#include "opfuse/torch/replay_layout.h"

#include <algorithm>
#include <array>

#include "opfuse/torch/replay_operation.h"

namespace opfuse::torch_bridge {
namespace {

using graph::Graph;
using graph::Node;
using graph::NodeId;

// Sums run in another order, of tensors and of the gradients as a whole: in channels_last those of
// PyTorch's own batch norm and convolutions were seen 3 to 5 times as far from fp64.
constexpr double kLayoutFloors = 16;
// Of a tensor's own norm, in roundoffs of fp64: 2^-37. A longer sum in another order, and Adam's
// quotient of it; memory that is read by the wrong strides gives errors of the norm itself.
constexpr double kSumRoundoffs = 65536;

constexpr std::array<std::string_view, 8> kByStrides = {
    "aten.as_strided", "aten.as_strided_", "aten.as_strided_copy", "aten.as_strided_scatter",
    "aten.set_",       "aten.resize_",     "aten.resize_as_",      "aten.view.dtype",
};

bool begins_with_operator(const std::string& op, std::string_view name) {
  return op.starts_with(name) && (op.size() == name.size() || op[name.size()] == '.');
}

// Replays `moved` in channels_last, everything else as it was.
class LayoutEvaluator final : public verify::Evaluator {
 public:
  LayoutEvaluator(std::unique_ptr<verify::Evaluator> inner, const Graph& moved)
      : inner_(std::move(inner)), moved_(moved) {}

  Result<std::unique_ptr<verify::Evaluation>> replay(
      const Graph& graph, const verify::ReplayOptions& options) override {
    verify::ReplayOptions own = options;
    own.channels_last = &graph == &moved_;
    return inner_->replay(graph, own);
  }

 private:
  std::unique_ptr<verify::Evaluator> inner_;
  const Graph& moved_;
};

}  // namespace

bool reshapes(const Graph& graph, const Node& node) {
  if (begins_with_operator(node.op, "aten._reshape_alias")) return true;
  if (!begins_with_operator(node.op, "aten.view") || node.op == "aten.view.dtype") return false;
  for (int32_t scope = node.scope; scope != graph::kNone; scope = graph.scopes[scope].parent) {
    if (graph.scopes[scope].kind == graph::ScopeKind::kOperator) return true;
    if (graph.scopes[scope].kind == graph::ScopeKind::kFunction) return false;
  }
  return false;
}

std::string layout_problem(const Graph& graph) {
  for (NodeId id = 0; id < static_cast<NodeId>(graph.nodes.size()); ++id) {
    const Node& node = graph.nodes[id];
    const bool by_strides =
        std::any_of(kByStrides.begin(), kByStrides.end(),
                    [&](std::string_view name) { return begins_with_operator(node.op, name); });
    if (by_strides) return describe_node(graph, id) + " depends on how its input lies in memory";
    if (!node.schema && !node.op.starts_with("opfuse."))
      return describe_node(graph, id) + " may depend on how its input lies in memory";
  }
  return {};
}

verify::StepVerdict prove_layout(const Record& record, const Graph& graph,
                                 const ReplayLimits& limits, double seconds) {
  verify::StepVerdict verdict;
  verdict.reason = layout_problem(graph);
  if (!verdict.reason.empty()) return verdict;
  const Graph moved = graph;
  LayoutEvaluator evaluator(make_evaluator(record, limits), moved);
  verify::StepProofOptions options;
  options.accept_floors = kLayoutFloors;
  options.gradient_tolerance = kLayoutFloors;
  options.fp64_own_roundoffs = kSumRoundoffs / kLayoutFloors;
  options.seconds = seconds;
  return verify::prove_step(evaluator, graph, moved, options);
}

}  // namespace opfuse::torch_bridge
