#include "opfuse/match/pattern.h"

#include <algorithm>

#include "opfuse/match/rule_functions.h"

namespace opfuse::match {
namespace {

using graph::Graph;
using graph::kNone;
using graph::Node;
using graph::NodeId;
using graph::ValueId;

constexpr std::string_view kShapeOps[] = {
    "aten.view",      "aten._unsafe_view", "aten.reshape",       "aten.expand",
    "aten.unsqueeze", "aten.squeeze",      "aten.squeeze.dim",   "aten.alias",
    "aten.flatten",   "aten.squeeze.dims", "aten.unflatten.int", "aten._reshape_alias"};

bool is_open(std::string_view op) { return op == kTo || op == kReshape; }

template <class F>
void each_operand(const Node& node, F f) {
  for (const graph::Input& input : node.inputs)
    for (ValueId value : input.values)
      if (value != kNone) f(value);
}

void mark_below(const Graph& g, ValueId value, std::vector<bool>* reached) {
  if ((*reached)[value]) return;
  (*reached)[value] = true;
  if (g.values[value].producer == kNone) return;
  const Node& node = g.nodes[g.values[value].producer];
  for (ValueId other : node.outputs)
    if (other != kNone) (*reached)[other] = true;
  each_operand(node, [&](ValueId operand) { mark_below(g, operand, reached); });
}

std::vector<Extension> extensions_of(const Graph& g, NodeId root) {
  std::vector<bool> reached(g.values.size());
  mark_below(g, g.nodes[root].outputs[0], &reached);
  std::vector<Extension> result;
  for (bool found = true; found;) {
    found = false;
    for (NodeId id = 0; id < static_cast<NodeId>(g.nodes.size()) && !found; ++id) {
      const ValueId made = g.nodes[id].outputs[0];
      if (reached[made]) continue;
      each_operand(g.nodes[id], [&](ValueId operand) {
        if (found || !reached[operand] || g.values[operand].meta.number) return;
        result.push_back({id, operand});
        found = true;
      });
      if (found) mark_below(g, made, &reached);
    }
  }
  return result;
}

// Operators that a value of the pattern may be made by: those of a cast or a change of shape, and
// what stands below it, since it may be nothing.
void makers_of(const Pattern& pattern, ValueId value, OpIndex* ops, std::vector<int>* makers) {
  const NodeId producer = pattern.graph().values[value].producer;
  if (producer == kNone) return;
  const Node& node = pattern.graph().nodes[producer];
  if (node.op == kTo) {
    makers->push_back(ops->add("aten._to_copy"));
  } else if (node.op == kReshape) {
    for (std::string_view op : kShapeOps) makers->push_back(ops->add(op));
  } else {
    makers->push_back(pattern.ops[producer]);
    return;
  }
  makers_of(pattern, node.inputs[0].values[0], ops, makers);
}

void add_cone(const Pattern& pattern, ValueId value, int level, Cone* cone) {
  const NodeId producer = pattern.graph().values[value].producer;
  if (producer == kNone || level == kDepth) return;
  const Node& node = pattern.graph().nodes[producer];
  const bool open = is_open(node.op);
  if (!open) (*cone)[level] |= op_bit(pattern.ops[producer]);
  const int below = open || is_shape_change(node) ? level : level + 1;
  each_operand(node, [&](ValueId operand) { add_cone(pattern, operand, below, cone); });
}

}  // namespace

bool is_cast(const Node& node) {
  return node.op == "aten._to_copy" || node.op.starts_with("aten.to.");
}

bool is_shape_change(const Node& node) {
  return std::ranges::find(kShapeOps, node.op) != std::end(kShapeOps) || node.op == "aten.clone";
}

std::vector<Cone> cones_of(const Graph& graph, const std::vector<int>& ops) {
  std::vector<Cone> cones(graph.nodes.size());
  for (NodeId id = 0; id < static_cast<NodeId>(graph.nodes.size()); ++id) {
    const Node& node = graph.nodes[id];
    const bool open = is_cast(node) || is_shape_change(node);
    Cone& cone = cones[id];
    cone[0] = op_bit(ops[id]);
    each_operand(node, [&](ValueId operand) {
      const NodeId below = graph.values[operand].producer;
      if (below == kNone || below >= id) return;
      for (int i = 0; i < kDepth; ++i) {
        if (open) cone[i] |= cones[below][i];
        if (!open && i > 0) cone[i] |= cones[below][i - 1];
      }
    });
  }
  return cones;
}

Pattern make_pattern(const Rule& rule, const Spelling& spelling, const NearNeighbour* near,
                     OpIndex* ops) {
  Pattern pattern;
  pattern.rule = &rule;
  pattern.spelling = &spelling;
  pattern.near = near;
  pattern.parameters = static_cast<int>(rule.parameters.size());
  const Graph& g = spelling.graph;
  for (const Node& node : g.nodes) pattern.ops.push_back(ops->add(node.op));
  pattern.root = static_cast<NodeId>(g.nodes.size() - 1);
  const ValueId result = g.nodes[pattern.root].outputs[0];
  makers_of(pattern, result, ops, &pattern.root_ops);
  std::ranges::sort(pattern.root_ops);
  pattern.root_ops.erase(std::unique(pattern.root_ops.begin(), pattern.root_ops.end()),
                         pattern.root_ops.end());
  add_cone(pattern, result, 0, &pattern.cone);
  pattern.extensions = extensions_of(g, pattern.root);
  return pattern;
}

int index_of(const Pattern& pattern, const std::string& name) {
  for (size_t i = 0; i < pattern.rule->parameters.size(); ++i)
    if (pattern.rule->parameters[i].name == name) return static_cast<int>(i);
  if (!pattern.near) return -1;
  auto it = std::ranges::find(pattern.near->others, name);
  return it == pattern.near->others.end()
             ? -1
             : pattern.parameters + static_cast<int>(it - pattern.near->others.begin());
}

}  // namespace opfuse::match
