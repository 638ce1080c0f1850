#include "opfuse/match/pattern.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "opfuse/graph/schema.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::match {
namespace {

using graph::Attr;
using graph::Graph;
using graph::Input;
using graph::InputKind;
using graph::kNone;
using graph::Node;
using graph::NodeId;
using graph::ValueId;

constexpr int kMaxSteps = 20'000;  // orders of commutative operands tried at one place

bool is_commutative(const Node& node) {
  if (node.op == "aten.add.Tensor") return node.inputs[2].attr == Attr{int64_t{1}};
  return node.op == "aten.mul.Tensor" || node.op == "aten.maximum" || node.op == "aten.minimum";
}

template <class Float>
bool within_one_ulp(Float a, Float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b || std::nextafter(a, b) == b;
}

bool number_of(const Attr& attr, double* number) {
  if (auto* d = std::get_if<double>(&attr))
    *number = *d;
  else if (auto* i = std::get_if<int64_t>(&attr))
    *number = static_cast<double>(*i);
  else
    return false;
  return true;
}

bool equal_attr(const Attr& a, const Attr& b, DType dtype) {
  double x, y;
  if (number_of(a, &x) && number_of(b, &y)) return same_constant(x, y, dtype);
  return a == b;
}

DType result_dtype(const Graph& graph, const Node& node) {
  return node.outputs.empty() || node.outputs[0] == kNone
             ? DType::kUnknown
             : graph.values[node.outputs[0]].meta.dtype;
}

}  // namespace

bool is_cast(const Node& node) {
  return node.op == "aten._to_copy" || node.op.starts_with("aten.to.");
}

bool same_constant(double a, double b, DType dtype) {
  if (dtype == DType::kF64) return within_one_ulp(a, b);
  return within_one_ulp(static_cast<float>(a), static_cast<float>(b));
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
  for (const Input& input : g.nodes[pattern.root].inputs)
    for (ValueId value : input.values)
      if (value != kNone && g.values[value].producer != kNone)
        pattern.root_operands.push_back(pattern.ops[g.values[value].producer]);
  return pattern;
}

bool Solver::solve(const Pattern& pattern, NodeId root) {
  pattern_ = &pattern;
  nodes_.assign(pattern.graph().nodes.size(), kNone);
  values_.assign(pattern.graph().values.size(), kNone);
  matched_ = steps_ = 0;
  best_score_ = -1;
  mismatch_ = {};
  const Node& wanted = pattern.graph().nodes[pattern.root];
  const Node& found = graph_.nodes[root];
  if (found.outputs.empty() || found.outputs[0] == kNone) return false;
  return run({{wanted.outputs[0], found.outputs[0], result_dtype(graph_, found)}}, 0);
}

bool Solver::run(const Goals& goals, size_t next) {
  if (next == goals.size()) return true;
  if (++steps_ > kMaxSteps) return false;
  const Goal& goal = goals[next];
  if (goal.pattern == kNone || goal.value == kNone) {
    if (goal.pattern == goal.value) return run(goals, next + 1);
    return fail(Mismatch::Kind::kOperator, goal.pattern, goal.value);
  }
  ValueId bound = values_[goal.pattern];
  if (bound != kNone) {
    if (bound == goal.value) return run(goals, next + 1);
    return fail(Mismatch::Kind::kBinding, goal.pattern, goal.value, bound);
  }
  return pattern_->graph().values[goal.pattern].producer == kNone ? match_external(goals, next)
                                                                  : match_node(goals, next);
}

bool Solver::match_external(const Goals& goals, size_t next) {
  const Goal& goal = goals[next];
  const graph::Value& wanted = pattern_->graph().values[goal.pattern];
  const graph::TensorMeta& found = graph_.values[goal.value].meta;
  bool is_number = (found.flags & trace::kWrappedNumber) != 0;
  if (wanted.meta.number) {
    const bool assumed = assume_unknown_ && is_number && !found.number;
    if (!assumed && (!is_number || !found.number ||
                     !same_constant(*wanted.meta.number, *found.number, goal.dtype)))
      return fail(Mismatch::Kind::kConstant, goal.pattern, goal.value);
  } else if (is_number && goal.pattern < pattern_->parameters) {
    return fail(Mismatch::Kind::kOperator, goal.pattern, goal.value);
  }
  values_[goal.pattern] = goal.value;
  if (run(goals, next + 1)) return true;
  values_[goal.pattern] = kNone;
  return false;
}

bool Solver::match_node(const Goals& goals, size_t next) {
  const Goal& goal = goals[next];
  const graph::Value& wanted = pattern_->graph().values[goal.pattern];
  const graph::Value& found = graph_.values[goal.value];
  NodeId place = wanted.producer, node = found.producer;
  if (node != kNone && ops_[node] != pattern_->ops[place] && is_cast(graph_.nodes[node])) {
    NodeId below = graph_.values[graph_.nodes[node].inputs[0].values[0]].producer;
    if (below != kNone && ops_[below] == pattern_->ops[place])
      return fail(Mismatch::Kind::kCast, goal.pattern, goal.value);
  }
  if (node == kNone || ops_[node] != pattern_->ops[place] || found.output != wanted.output ||
      (nodes_[place] != kNone && nodes_[place] != node))
    return fail(Mismatch::Kind::kOperator, goal.pattern, goal.value);
  const Node& wanted_node = pattern_->graph().nodes[place];
  const Node& found_node = graph_.nodes[node];
  if (wanted_node.inputs.size() != found_node.inputs.size())
    return fail(Mismatch::Kind::kOperator, goal.pattern, goal.value);
  bool first = nodes_[place] == kNone;
  nodes_[place] = node;
  values_[goal.pattern] = goal.value;
  matched_ += first;
  bool ok = equal_attributes(wanted_node, found_node, goal.pattern, goal.value) &&
            (first ? match_inputs(wanted_node, found_node, goals, next) : run(goals, next + 1));
  if (ok) return true;
  matched_ -= first;
  values_[goal.pattern] = kNone;
  if (first) nodes_[place] = kNone;
  return false;
}

bool Solver::match_inputs(const Node& wanted, const Node& found, const Goals& goals, size_t next) {
  Goals more;
  DType dtype = result_dtype(graph_, found);
  for (size_t i = 0; i < wanted.inputs.size(); ++i) {
    const std::vector<ValueId>& a = wanted.inputs[i].values;
    const std::vector<ValueId>& b = found.inputs[i].values;
    if (wanted.inputs[i].kind == InputKind::kAttr) continue;
    if (a.size() != b.size() || wanted.inputs[i].kind != found.inputs[i].kind) return false;
    for (size_t k = 0; k < a.size(); ++k) more.push_back({a[k], b[k], dtype});
  }
  size_t operands = more.size();
  more.insert(more.end(), goals.begin() + next + 1, goals.end());
  if (run(more, 0)) return true;
  if (operands != 2 || !is_commutative(wanted)) return false;
  std::swap(more[0].value, more[1].value);
  return run(more, 0);
}

bool Solver::equal_attributes(const Node& wanted, const Node& found, ValueId at, ValueId value) {
  DType dtype = result_dtype(graph_, found);
  for (size_t i = 0; i < wanted.inputs.size(); ++i) {
    if (wanted.inputs[i].kind != InputKind::kAttr) continue;
    const Attr& attr = found.inputs[i].attr;
    const bool unknown = std::holds_alternative<graph::UnknownAttr>(attr);
    if (unknown && assume_unknown_) continue;
    if (unknown) return fail(Mismatch::Kind::kUnknown, at, value, kNone, static_cast<int>(i));
    if (!equal_attr(wanted.inputs[i].attr, attr, dtype))
      return fail(Mismatch::Kind::kAttribute, at, value, kNone, static_cast<int>(i));
  }
  return true;
}

std::vector<std::string> Solver::assumed() const {
  std::vector<std::string> sentences;
  const Graph& wanted = pattern_->graph();
  for (size_t i = 0; i < wanted.values.size(); ++i) {
    const auto& number = wanted.values[i].meta.number;
    if (values_[i] == kNone || !number || graph_.values[values_[i]].meta.number) continue;
    sentences.push_back(fmt::format("if a constant that the file does not hold is {}", *number));
  }
  for (size_t i = 0; i < wanted.nodes.size(); ++i)
    for (size_t k = 0; nodes_[i] != kNone && k < wanted.nodes[i].inputs.size(); ++k) {
      const Node& found = graph_.nodes[nodes_[i]];
      if (wanted.nodes[i].inputs[k].kind != InputKind::kAttr ||
          !std::holds_alternative<graph::UnknownAttr>(found.inputs[k].attr))
        continue;
      sentences.push_back(fmt::format(
          "if {} of {} is as in the rule",
          found.schema ? found.schema->arguments[k].name : fmt::format("argument {}", k + 1),
          found.op));
    }
  std::ranges::sort(sentences);
  sentences.erase(std::unique(sentences.begin(), sentences.end()), sentences.end());
  return sentences;
}

// The furthest mismatch is kept; among equals the one that says most.
bool Solver::fail(Mismatch::Kind kind, ValueId pattern, ValueId value, ValueId expected,
                  int input) {
  bool cast = kind == Mismatch::Kind::kCast;  // the operator below it is the expected one
  int score = (matched_ + cast) * 8 + static_cast<int>(kind);
  if (score <= best_score_) return false;
  best_score_ = score;
  mismatch_ = {kind, pattern, value, expected, input, {}};
  for (NodeId node : nodes_)
    if (node != kNone) mismatch_.nodes.push_back(node);
  if (cast) mismatch_.nodes.push_back(graph_.values[value].producer);
  return false;
}

}  // namespace opfuse::match
