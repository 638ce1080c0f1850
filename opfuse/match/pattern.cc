#include "opfuse/match/pattern.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "opfuse/match/rule_functions.h"
#include "opfuse/trace/event_table.h"

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

bool is_commutative(const Node& node) {
  if (node.op == "aten.add.Tensor") return node.inputs[2].attr == graph::Attr{int64_t{1}};
  return node.op == "aten.mul.Tensor" || node.op == "aten.maximum" || node.op == "aten.minimum";
}

bool is_open(std::string_view op) { return op == kTo || op == kReshape; }

std::vector<int> sizes_of(const Node& node) {
  std::vector<int> sizes;
  const auto* text = node.op == kReshape && node.inputs.size() > 1
                         ? std::get_if<std::string>(&node.inputs[1].attr)
                         : nullptr;
  for (size_t at = 0; text && at < text->size();) {
    const size_t end = std::min(text->find(',', at), text->size());
    const std::string word = text->substr(at, end - at);
    sizes.push_back(word == "_" ? -1 : word == "..." ? -2 : std::stoi(word));
    at = end + 1;
  }
  return sizes;
}

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

uint64_t op_bit(int op) { return op < 0 ? 0 : uint64_t{1} << (op % 64); }

// What `reader` reads: the result of an operator, one value twice, or a number by its first digits.
constexpr int64_t kOneValueTwice = -3, kFirstNumber = int64_t{1} << 32;
uint64_t read_bit(int reader, int64_t read) {
  if (reader < 0 || read == -1) return 0;
  const auto mixed = static_cast<uint64_t>(reader + 1) * 0x9E3779B97F4A7C15u ^
                     static_cast<uint64_t>(read + 4) * 0xC2B2AE3D27D4EB4Fu;
  return uint64_t{1} << ((mixed * 0xD6E8FEB86659FD93u) >> 58);
}

// 11 bits of the mantissa: cells far wider than 1 ulp of f32.
int64_t cell_of(double number) {
  if (!std::isfinite(number) || std::abs(number) < 1e-37) return kFirstNumber;
  int exponent = 0;
  const double mantissa = std::frexp(number, &exponent);
  return 2 * kFirstNumber + (int64_t{exponent} << 16) +
         static_cast<int64_t>(std::floor(mantissa * 2048));
}

bool is_number(const graph::Value& value) {
  return value.producer == kNone && (value.meta.flags & trace::kWrappedNumber) != 0;
}

template <class IsOpen>
ValueId look_through(const Graph& g, ValueId value, const IsOpen& is_open) {
  while (value != kNone && g.values[value].producer != kNone &&
         is_open(g.nodes[g.values[value].producer]))
    value = g.nodes[g.values[value].producer].inputs[0].values[0];
  return value;
}

// `of_number` gives the bits of a number that `reader` reads.
template <class IsOpen, class OfNumber>
uint64_t reads_of(const Graph& g, const std::vector<int>& ops, NodeId id, const IsOpen& is_open,
                  const OfNumber& of_number) {
  const int reader = ops[id];
  if (reader < 0) return 0;
  uint64_t bits = 0;
  std::array<ValueId, 2> operands = {kNone, kNone};
  int count = 0;
  each_operand(g.nodes[id], [&](ValueId operand) {
    if (count < 2) operands[count] = operand;
    ++count;
    const ValueId below = look_through(g, operand, is_open);
    if (below == kNone) return;
    const graph::Value& value = g.values[below];
    if (value.producer != kNone) bits |= read_bit(reader, ops[value.producer]);
    if (is_number(value)) bits |= of_number(reader, value.meta.number);
  });
  if (count == 2 && operands[0] == operands[1]) bits |= read_bit(reader, kOneValueTwice);
  return bits;
}

// Of a rule: what must be there. A number that the rule does not fix may be any.
uint64_t wanted_number(int reader, const std::optional<double>& number) {
  return number ? read_bit(reader, cell_of(*number)) : 0;
}

// Of a graph: all that it may be equal to; one that is not known, anything.
uint64_t found_number(int reader, const std::optional<double>& number) {
  if (!number) return ~uint64_t{0};
  constexpr double kFewUlp = 3e-7;
  return read_bit(reader, cell_of(*number * (1 - kFewUlp))) |
         read_bit(reader, cell_of(*number * (1 + kFewUlp)));
}

void add_cone(const Pattern& pattern, ValueId value, int level, Cone* cone) {
  const NodeId producer = pattern.graph().values[value].producer;
  if (producer == kNone || level == kDepth) return;
  const Node& node = pattern.graph().nodes[producer];
  const auto open_node = [](const Node& n) { return is_open(n.op) || is_shape_change(n); };
  if (!is_open(node.op)) cone->ops[level] |= op_bit(pattern.ops[producer]);
  if (!open_node(node))
    cone->reads[level] |=
        reads_of(pattern.graph(), pattern.ops, producer, open_node, wanted_number);
  const int below = open_node(node) ? level : level + 1;
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
  std::vector<bool> open(graph.nodes.size());
  for (size_t id = 0; id < graph.nodes.size(); ++id)
    open[id] = is_cast(graph.nodes[id]) || is_shape_change(graph.nodes[id]);
  const auto is_open = [&](const Node& node) {
    return static_cast<bool>(open[static_cast<size_t>(&node - graph.nodes.data())]);
  };
  for (NodeId id = 0; id < static_cast<NodeId>(graph.nodes.size()); ++id) {
    Cone& cone = cones[id];
    cone.ops[0] = op_bit(ops[id]);
    if (!open[id]) cone.reads[0] = reads_of(graph, ops, id, is_open, found_number);
    each_operand(graph.nodes[id], [&](ValueId operand) {
      const NodeId below = graph.values[operand].producer;
      if (below == kNone || below >= id) return;
      const int deeper = open[id] ? 0 : 1;
      for (int i = deeper; i < kDepth; ++i) {
        cone.ops[i] |= cones[below].ops[i - deeper];
        cone.reads[i] |= cones[below].reads[i - deeper];
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
  for (const Node& node : g.nodes) {
    int operands = 0;
    for (const graph::Input& input : node.inputs)
      if (input.kind != graph::InputKind::kAttr) operands += static_cast<int>(input.values.size());
    pattern.ops.push_back(ops->add(node.op));
    pattern.operands.push_back(operands);
    pattern.sizes.push_back(sizes_of(node));
    pattern.commutative.push_back(operands == 2 && is_commutative(node));
    pattern.kinds.push_back(node.op == kTo        ? Pattern::Kind::kCast
                            : node.op == kReshape ? Pattern::Kind::kReshape
                                                  : Pattern::Kind::kOperator);
  }
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
