#include "opfuse/torch/site_proof_backward.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "opfuse/graph/schema.h"
#include "opfuse/match/rule.h"
#include "opfuse/torch/replay_operation.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::torch_bridge {
namespace {

using graph::Graph;
using graph::kNone;
using graph::Node;
using graph::NodeId;
using graph::ValueId;

std::string_view base_name(std::string_view op) {
  op.remove_prefix(op.find('.') + 1);
  op = op.substr(0, op.find('.'));
  if (op.ends_with('_')) op.remove_suffix(1);
  return op;
}

template <size_t N>
bool one_of(std::string_view name, const std::string_view (&names)[N]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

constexpr std::string_view kChoosing[] = {"clamp",
                                          "clamp_min",
                                          "clamp_max",
                                          "clip",
                                          "where",
                                          "masked_fill",
                                          "masked_scatter",
                                          "lt",
                                          "le",
                                          "gt",
                                          "ge",
                                          "eq",
                                          "ne",
                                          "round",
                                          "floor",
                                          "ceil",
                                          "trunc",
                                          "frac",
                                          "sign",
                                          "sgn",
                                          "relu",
                                          "hardtanh",
                                          "threshold",
                                          "threshold_backward",
                                          "maximum",
                                          "minimum",
                                          "fmax",
                                          "fmin",
                                          "heaviside",
                                          "copysign",
                                          "nan_to_num",
                                          "isnan",
                                          "isinf",
                                          "isfinite",
                                          "fake_quantize_per_tensor_affine"};

constexpr std::string_view kLinear[] = {
    "neg",       "sum",     "mean",    "clone",        "detach",  "alias", "_to_copy",
    "view",      "expand",  "reshape", "_unsafe_view", "permute", "t",     "transpose",
    "unsqueeze", "squeeze", "select",  "slice",        "cumsum",  "flip"};

bool same_value(const Graph& graph, ValueId a, ValueId b) {
  if (a == b) return true;
  if (a == kNone || b == kNone) return false;
  const graph::Value &p = graph.values[a], &q = graph.values[b];
  return p.storage != kNone && p.storage == q.storage && p.version == q.version &&
         p.meta.offset == q.meta.offset && p.meta.shape == q.meta.shape &&
         p.meta.strides == q.meta.strides && p.meta.dtype == q.meta.dtype;
}

class CotangentWalk {
 public:
  CotangentWalk(const Graph& graph, const match::Match& match) : graph_(graph), match_(match) {
    tainted_.push_back(match.backward.grad_output);
  }

  std::optional<std::string> run() {
    for (NodeId id : match_.backward.nodes) {
      const Node& node = graph_.nodes[id];
      const std::string_view op = base_name(node.op);
      if (one_of(op, kChoosing) && !composition_has(op))
        return describe_node(graph_, id) +
               " in the backward chooses by value, which the rule's gradient does not";
      if (!reads_cotangent(node)) continue;
      if (!is_linear(node, op))
        return describe_node(graph_, id) +
               " in the backward is not linear in the incoming gradient";
      tainted_.insert(tainted_.end(), node.outputs.begin(), node.outputs.end());
      tainted_.insert(tainted_.end(), node.written.begin(), node.written.end());
    }
    return std::nullopt;
  }

 private:
  bool composition_has(std::string_view op) const {
    const std::vector<Node>& nodes = match_.rule->composition.graph.nodes;
    return std::any_of(nodes.begin(), nodes.end(),
                       [&](const Node& node) { return base_name(node.op) == op; });
  }

  bool is_tainted(ValueId value) const {
    return std::any_of(tainted_.begin(), tainted_.end(),
                       [&](ValueId other) { return same_value(graph_, other, value); });
  }
  bool is_tainted(const Node& node, size_t i) const {
    return i < node.inputs.size() &&
           std::any_of(
               node.inputs[i].values.begin(), node.inputs[i].values.end(),
               [&](ValueId value) { return value != kNone && is_tainted(value); });
  }
  bool reads_cotangent(const Node& node) const {
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (is_tainted(node, i)) return true;
    return false;
  }
  size_t tainted_inputs(const Node& node) const {
    size_t count = 0;
    for (size_t i = 0; i < node.inputs.size(); ++i) count += is_tainted(node, i);
    return count;
  }

  bool is_linear(const Node& node, std::string_view op) const {
    const size_t count = tainted_inputs(node);
    if (op == "mul" || op == "mm" || op == "bmm" || op == "matmul") return count == 1;
    if (op == "div") return count == 1 && is_tainted(node, 0);
    if (op == "add" || op == "sub") return is_tainted(node, 0) && is_tainted(node, 1);
    if (op.ends_with("_backward")) return count == 1 && is_tainted(node, 0);
    const bool view = node.schema != nullptr && node.schema->is_view();
    return count == 1 && (view || one_of(op, kLinear));
  }

  const Graph& graph_;
  const match::Match& match_;
  std::vector<ValueId> tainted_;
};

}  // namespace

std::optional<std::string> backward_problem(const Graph& graph, const match::Match& match) {
  const match::BackwardChain& backward = match.backward;
  if (backward.nodes.empty()) {
    if (match.function_scope == kNone) return std::nullopt;
    const bool wanted = std::any_of(match.inputs.begin(), match.inputs.end(), [&](ValueId value) {
      return value != kNone && (graph.values[value].meta.flags & trace::kRequiresGrad);
    });
    const bool ran = std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const Node& node) {
      return (node.region.flags & trace::kGraphTask) != 0;
    });
    if (wanted && ran)
      return "the backward of " + graph.scopes[match.function_scope].name +
             " ran no operator: it hands the gradient through";
    return std::nullopt;
  }
  if (!backward.complete)
    return "the backward has operators that are not accounted for, near " +
           describe_node(graph, backward.nodes.back());
  if (backward.grad_output == kNone || backward.grad_inputs.empty())
    return "the record does not show what enters and leaves the backward";
  if (match.function_scope == kNone) return std::nullopt;  // autograd's own derivative
  return CotangentWalk(graph, match).run();
}

}  // namespace opfuse::torch_bridge
