#include "opfuse/match/solver.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "opfuse/graph/schema.h"
#include "opfuse/match/attributes.h"
#include "opfuse/match/rule_functions.h"
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

constexpr int kMaxSteps = 20'000;  // choices tried at one place

DType result_dtype(const Graph& graph, const Node& node) {
  return node.outputs.empty() || node.outputs[0] == kNone
             ? DType::kUnknown
             : graph.values[node.outputs[0]].meta.dtype;
}

// A copy into another dtype and nothing else.
bool is_plain_cast(const Graph& graph, const Node& node) {
  if (!is_cast(node) || node.outputs.size() != 1 || node.outputs[0] == kNone) return false;
  if (node.inputs.empty() || node.inputs[0].kind != InputKind::kTensor) return false;
  const ValueId input = node.inputs[0].values[0];
  if (input == kNone || !node.schema) return false;
  for (size_t i = 1; i < node.inputs.size(); ++i) {
    if (node.schema->arguments[i].name != "memory_format") continue;
    const Attr& attr = node.inputs[i].attr;
    constexpr int64_t kPreserve = 1;  // torch.preserve_format
    if (attr != Attr{graph::NoneAttr{}} && attr != Attr{kPreserve}) return false;
  }
  return graph.values[input].meta.device == graph.values[node.outputs[0]].meta.device;
}

}  // namespace

bool Solver::solve(const Pattern& pattern, NodeId root) {
  pattern_ = &pattern;
  nodes_.assign(pattern.graph().nodes.size(), kNone);
  values_.assign(pattern.graph().values.size(), kNone);
  extras_.clear();
  observations_.clear();
  dtypes_.clear();
  matched_ = steps_ = 0;
  best_score_ = -1;
  mismatch_.kind = Mismatch::Kind::kNothing;
  mismatch_.nodes.clear();
  const Node& wanted = pattern.graph().nodes[pattern.root];
  const Node& found = graph_.nodes[root];
  if (found.outputs.empty() || found.outputs[0] == kNone) return false;
  const Goal goal = {wanted.outputs[0], found.outputs[0], result_dtype(graph_, found), nullptr};
  return run(&goal);
}

std::vector<NodeId> Solver::nodes() const {
  std::vector<NodeId> all = extras_;
  for (NodeId node : nodes_)
    if (node != kNone) all.push_back(node);
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

void Solver::forget(const Mark& mark) {
  observations_.resize(mark.observations);
  dtypes_.resize(mark.dtypes);
  extras_.resize(mark.extras);
}

bool Solver::run(const Goal* goal) {
  if (!goal) return extend();
  if (++steps_ > kMaxSteps) return false;
  if (goal->pattern == kNone || goal->value == kNone) {
    if (goal->pattern == goal->value) return run(goal->next);
    return fail(Mismatch::Kind::kOperator, goal->pattern, goal->value);
  }
  ValueId bound = values_[goal->pattern];
  if (bound != kNone) {
    if (bound == goal->value) return run(goal->next);
    return fail(Mismatch::Kind::kBinding, goal->pattern, goal->value, bound);
  }
  const NodeId producer = pattern_->graph().values[goal->pattern].producer;
  if (producer == kNone) return match_external(*goal);
  switch (pattern_->kinds[producer]) {
    case Pattern::Kind::kCast:
      return match_cast(*goal);
    case Pattern::Kind::kReshape:
      return match_reshape(*goal);
    default:
      return match_node(*goal);
  }
}

// Everything below the root is bound: the operators above it come next, then the conditions.
bool Solver::extend() {
  const Graph& wanted = pattern_->graph();
  for (const Extension& extension : pattern_->extensions) {
    if (nodes_[extension.node] != kNone) continue;
    const ValueId target = wanted.nodes[extension.node].outputs[0];
    if (values_[target] != kNone) continue;
    for (NodeId user : graph_.users[values_[extension.below]]) {
      const Node& found = graph_.nodes[user];
      if (ops_[user] != pattern_->ops[extension.node] || found.outputs.empty()) continue;
      const Goal goal = {target, found.outputs[0], result_dtype(graph_, found), nullptr};
      if (run(&goal)) return true;
    }
    return false;
  }
  return finish();
}

bool Solver::match_external(const Goal& goal) {
  const graph::Value& wanted = pattern_->graph().values[goal.pattern];
  const graph::TensorMeta& found = graph_.values[goal.value].meta;
  bool is_number = (found.flags & trace::kWrappedNumber) != 0;
  const Mark before = mark();
  if (wanted.meta.number) {
    const bool assumed = assume_unknown_ && is_number && !found.number;
    if (!assumed && (!is_number || !found.number ||
                     !same_constant(*wanted.meta.number, *found.number, goal.dtype)))
      return fail(Mismatch::Kind::kConstant, goal.pattern, goal.value);
  } else if ((wanted.meta.flags & trace::kWrappedNumber) != 0) {
    if (!is_number || (!found.number && !assume_unknown_))
      return fail(Mismatch::Kind::kOperator, goal.pattern, goal.value);
    const int hole = std::stoi(wanted.name.substr(std::string_view("number.").size()));
    if (found.number) observations_.push_back({hole, *found.number, goal.dtype, goal.value});
  } else if (is_number && goal.pattern < pattern_->parameters) {
    return fail(Mismatch::Kind::kOperator, goal.pattern, goal.value);
  }
  values_[goal.pattern] = goal.value;
  // A long search is one over the places at which changes of shape may end.
  constexpr int kLongSearch = 500;
  if ((steps_ < kLongSearch || shapes_agree_so_far()) && run(goal.next)) return true;
  values_[goal.pattern] = kNone;
  forget(before);
  return false;
}

bool Solver::match_node(const Goal& goal) {
  const graph::Value& wanted = pattern_->graph().values[goal.pattern];
  const graph::Value& found = graph_.values[goal.value];
  NodeId place = wanted.producer, node = found.producer;
  if (matched_ > 0 && node != kNone && ops_[node] != pattern_->ops[place] &&
      is_cast(graph_.nodes[node])) {
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
  const Mark before = mark();
  bool first = nodes_[place] == kNone;
  nodes_[place] = node;
  values_[goal.pattern] = goal.value;
  matched_ += first;
  bool ok = !first ? run(goal.next)
                   : equal_attributes(wanted_node, found_node, goal.pattern, goal.value) &&
                         match_inputs(place, found_node, goal);
  if (ok) return true;
  matched_ -= first;
  values_[goal.pattern] = kNone;
  if (first) nodes_[place] = kNone;
  forget(before);
  return false;
}

// The pattern goes on at `below`, in place of the goal's value; `node` is the operator that stands
// for the pattern's, or kNone.
bool Solver::go_below(const Goal& goal, NodeId node, ValueId below,
                      std::span<const NodeId> extras) {
  const NodeId place = pattern_->graph().values[goal.pattern].producer;
  const Mark before = mark();
  nodes_[place] = node;
  values_[goal.pattern] = goal.value;
  extras_.insert(extras_.end(), extras.begin(), extras.end());
  matched_ += node != kNone;
  const Goal more = {pattern_->graph().nodes[place].inputs[0].values[0], below, goal.dtype,
                     goal.next};
  if (run(&more)) return true;
  matched_ -= node != kNone;
  nodes_[place] = kNone;
  values_[goal.pattern] = kNone;
  forget(before);
  return false;
}

// to(x, D): a cast to D, or nothing where the value has that dtype already.
bool Solver::match_cast(const Goal& goal) {
  const Node& wanted = pattern_->graph().nodes[pattern_->graph().values[goal.pattern].producer];
  const std::string& type = std::get<graph::OpaqueAttr>(wanted.inputs[1].attr).type;
  const DType found = graph_.values[goal.value].meta.dtype;
  const Mark before = mark();
  if (type.starts_with("dtype ")) {
    dtypes_.push_back({std::stoi(type.substr(6)), found, goal.value});
  } else if (found == DType::kUnknown || found != dtype_from_name(type)) {
    return fail(Mismatch::Kind::kOperator, goal.pattern, goal.value);
  }
  const NodeId node = graph_.values[goal.value].producer;
  if (node != kNone && is_plain_cast(graph_, graph_.nodes[node]) &&
      go_below(goal, node, graph_.nodes[node].inputs[0].values[0], {}))
    return true;
  if (go_below(goal, kNone, goal.value, {})) return true;
  forget(before);
  return false;
}

// reshape(x): the longest run of changes of shape first, none at last.
bool Solver::match_reshape(const Goal& goal) {
  const Mark before = mark();
  if (!reaches_sizes(goal)) return fail(Mismatch::Kind::kOperator, goal.pattern, goal.value);
  std::vector<NodeId> run_of;
  std::vector<ValueId> stops = {goal.value};
  for (NodeId node = graph_.values[goal.value].producer;
       node != kNone && is_shape_change(graph_.nodes[node]);
       node = graph_.values[stops.back()].producer) {
    const ValueId below = graph_.nodes[node].inputs[0].values[0];
    if (below == kNone || below == stops.back()) break;  // a view of the whole is its operand
    run_of.push_back(node);
    stops.push_back(below);
  }
  for (size_t taken = run_of.size() + 1; taken-- > 0;) {
    const std::span<const NodeId> extras(run_of.data(), taken);
    if (go_below(goal, taken > 0 ? run_of[0] : kNone, stops[taken], extras)) return true;
  }
  forget(before);
  return false;
}

// The shape that reshape(x, [n, _]) names; what the numbers are is compared at the end.
bool Solver::reaches_sizes(const Goal& goal) {
  std::span<const int> sizes = pattern_->sizes[pattern_->graph().values[goal.pattern].producer];
  if (sizes.empty()) return true;
  const graph::TensorMeta& meta = graph_.values[goal.value].meta;
  const bool open = sizes[0] == -2;
  if (open) sizes = sizes.subspan(1);
  if (!meta.shape_known || meta.shape.size() < sizes.size()) return false;
  const size_t before = meta.shape.size() - sizes.size();
  if (!open && before != 0) return false;
  for (size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] >= 0)
      observations_.push_back(
          {sizes[i], static_cast<double>(meta.shape[before + i]), DType::kF64, goal.value});
  return true;
}

bool Solver::match_inputs(NodeId place, const Node& found, const Goal& goal) {
  const Node& wanted = pattern_->graph().nodes[place];
  constexpr size_t kFew = 6;
  std::array<Goal, kFew> few;
  std::vector<Goal> many;
  const size_t operands = static_cast<size_t>(pattern_->operands[place]);
  if (operands > kFew) many.resize(operands);
  Goal* more = operands > kFew ? many.data() : few.data();
  const DType dtype = result_dtype(graph_, found);
  size_t count = 0;
  for (size_t i = 0; i < wanted.inputs.size(); ++i) {
    const std::vector<ValueId>& a = wanted.inputs[i].values;
    const std::vector<ValueId>& b = found.inputs[i].values;
    if (wanted.inputs[i].kind == InputKind::kAttr) continue;
    if (a.size() != b.size() || wanted.inputs[i].kind != found.inputs[i].kind) return false;
    for (size_t k = 0; k < a.size(); ++k, ++count)
      more[count] = {a[k], b[k], dtype, count + 1 < operands ? &more[count + 1] : goal.next};
  }
  if (run(operands > 0 ? more : goal.next)) return true;
  if (!pattern_->commutative[place]) return false;
  std::swap(more[0].value, more[1].value);
  return run(more);
}

bool Solver::equal_attributes(const Node& wanted, const Node& found, ValueId at, ValueId value) {
  DType dtype = result_dtype(graph_, found);
  for (size_t i = 0; i < wanted.inputs.size(); ++i) {
    if (wanted.inputs[i].kind != InputKind::kAttr) continue;
    const bool known = !std::holds_alternative<graph::UnknownAttr>(found.inputs[i].attr);
    if (known && wanted.inputs[i].attr == found.inputs[i].attr) continue;
    const Attr attr = plain_attribute(graph_, found, i);
    const auto* open = std::get_if<graph::OpaqueAttr>(&wanted.inputs[i].attr);
    if (open && open->type == "any") continue;
    const bool unknown = std::holds_alternative<graph::UnknownAttr>(attr);
    if (unknown && assume_unknown_) continue;
    if (unknown) return fail(Mismatch::Kind::kUnknown, at, value, kNone, static_cast<int>(i));
    double number;
    if (open && number_of(attr, &number)) {
      observations_.push_back({std::stoi(open->type.substr(7)), number, dtype, value});
      continue;
    }
    if (open || !equal_attribute(plain_like(wanted.inputs[i].attr, graph_, found, i), attr, dtype))
      return fail(Mismatch::Kind::kAttribute, at, value, kNone, static_cast<int>(i));
  }
  if (!equal_parts(wanted, found)) return fail(Mismatch::Kind::kAttribute, at, value, kNone, 1);
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
  for (size_t i = 0; i < wanted.nodes.size(); ++i) {
    if (nodes_[i] == kNone || wanted.nodes[i].op == kTo || wanted.nodes[i].op == kReshape) continue;
    const Node& found = graph_.nodes[nodes_[i]];
    for (size_t k = 0; k < wanted.nodes[i].inputs.size(); ++k) {
      if (wanted.nodes[i].inputs[k].kind != InputKind::kAttr ||
          !std::holds_alternative<graph::UnknownAttr>(found.inputs[k].attr))
        continue;
      sentences.push_back(fmt::format(
          "if {} of {} is as in the rule",
          found.schema ? found.schema->arguments[k].name : fmt::format("argument {}", k + 1),
          found.op));
    }
  }
  std::ranges::sort(sentences);
  sentences.erase(std::unique(sentences.begin(), sentences.end()), sentences.end());
  return sentences;
}

// chunk(x, n): n parts of one size.
bool Solver::equal_parts(const Node& wanted, const Node& found) const {
  if (wanted.op != "aten.split.Tensor") return true;
  if (wanted.outputs.size() != found.outputs.size()) return false;
  return std::ranges::all_of(found.outputs, [&](ValueId part) {
    if (part == kNone || found.outputs[0] == kNone) return false;
    const graph::TensorMeta &a = graph_.values[found.outputs[0]].meta,
                            &b = graph_.values[part].meta;
    return a.shape_known && b.shape_known && a.shape == b.shape;
  });
}

// The furthest mismatch is kept; among equals the one that says most.
bool Solver::fail(Mismatch::Kind kind, ValueId pattern, ValueId value, ValueId expected, int input,
                  double number) {
  bool cast = kind == Mismatch::Kind::kCast;  // the operator below it is the expected one
  if (matched_ + cast < 2) return false;      // too little to be worth telling
  int score = (matched_ + cast) * 16 + static_cast<int>(kind);
  if (score <= best_score_) return false;
  best_score_ = score;
  mismatch_.kind = kind;
  mismatch_.pattern_value = pattern;
  mismatch_.value = value;
  mismatch_.expected = expected;
  mismatch_.input = input;
  mismatch_.number = number;
  mismatch_.nodes.clear();
  for (NodeId node : nodes_)
    if (node != kNone) mismatch_.nodes.push_back(node);
  if (cast) mismatch_.nodes.push_back(graph_.values[value].producer);
  return false;
}

}  // namespace opfuse::match
