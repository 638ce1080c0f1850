#pragma once
// How rewrite_graph exchanges one match after the other in a copy of the graph. Node order is kept:
// a target stands where the chain's last operator stood; its backward where the chain's last
// backward operator stood, or, where it was traced, its first.

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "opfuse/base/check.h"
#include "opfuse/graph/schema.h"
#include "opfuse/rewrite/plan.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::rewrite {

using graph::Graph;
using graph::kNone;
using graph::Node;
using graph::NodeId;
using graph::ValueId;

// "aten.silu_backward(grad, x)" -> its operator and its arguments' names.
struct BackwardCall {
  std::string op;
  std::vector<std::string> arguments;
};

inline BackwardCall parse_backward(std::string_view text) {
  const size_t open = text.find('('), close = text.rfind(')');
  OPFUSE_CHECK(open != text.npos && close != text.npos && close > open,
               "a target's backward is a call");
  BackwardCall call{std::string(text.substr(0, open)), {}};
  std::string_view list = text.substr(open + 1, close - open - 1);
  while (!list.empty()) {
    const size_t comma = list.find(',');
    std::string_view one = list.substr(0, comma);
    one.remove_prefix(std::min(one.find_first_not_of(' '), one.size()));
    one = one.substr(0, one.find_last_not_of(' ') + 1);
    if (!one.empty()) call.arguments.emplace_back(one);
    list = comma == list.npos ? std::string_view() : list.substr(comma + 1);
  }
  return call;
}

// "aten.silu" -> "SiluBackward0", as autograd names its node.
inline std::string autograd_name(std::string_view op) {
  op.remove_prefix(op.rfind('.') == op.npos ? 0 : op.rfind('.') + 1);
  std::string out;
  bool upper = true;
  for (const char c : op) {
    if (c == '_')
      upper = true;
    else
      out.push_back(upper ? static_cast<char>(std::toupper(c)) : c), upper = false;
  }
  return out + "Backward0";
}

inline bool same_place(const graph::Position& a, const graph::Position& b) {
  return a.code == b.code && a.line == b.line && a.column == b.column && a.end_line == b.end_line &&
         a.end_column == b.end_column && a.file == b.file;
}

inline graph::Input tensor_input(ValueId value) {
  graph::Input input;
  input.kind = graph::InputKind::kTensor;
  input.values = {value};
  return input;
}

inline graph::Input literal_input(const std::string& text) {
  graph::Input input;
  char* end = nullptr;
  if (text == "None")
    input.attr = graph::NoneAttr{};
  else if (text == "True" || text == "False")
    input.attr = text == "True";
  else if (const int64_t whole = std::strtoll(text.c_str(), &end, 10); !text.empty() && !*end)
    input.attr = whole;
  else if (const double number = std::strtod(text.c_str(), &end); !text.empty() && !*end)
    input.attr = number;
  else if (text.size() >= 2 && text.front() == '"' && text.back() == '"')
    input.attr = text.substr(1, text.size() - 2);
  else
    OPFUSE_CHECK(false, "a target's argument is a parameter or a literal: " + text);
  return input;
}

class GraphRewriter {
 public:
  explicit GraphRewriter(const Graph& graph)
      : out_(graph),
        inserted_(graph.nodes.size()),
        removed_(graph.nodes.size()),
        dead_(graph.values.size()) {}

  void replace(const match::Match& match, const match::Target& target) {
    replace_forward(match, target);
    if (!match.backward.nodes.empty()) replace_backward(match, target);
  }

  // The operators that a call of the target runs here, in place of the match (splice.cc).
  void splice(const match::Match& match, const MatchTrace& trace);

  Graph finish() {
    place_nodes();
    rename_uses();
    drop_dead_values();
    graph::index_users(&out_);
    return std::move(out_);
  }

 private:
  friend class Splice;

  // Values by parameter name, then literals; the rest of the schema's arguments at their defaults.
  Node make_node(const std::string& op, const std::vector<std::string>& arguments,
                 const std::map<std::string, ValueId>& values, const Node& like) {
    Node node;
    node.op = op;
    node.schema = graph::SchemaTable::builtin().find(op);
    for (const std::string& argument : arguments) {
      const auto value = values.find(argument);
      node.inputs.push_back(value == values.end() ? literal_input(argument)
                                                  : tensor_input(value->second));
    }
    if (node.schema)
      for (size_t i = node.inputs.size(); i < node.schema->arguments.size(); i++) {
        graph::Input input;
        if (node.schema->arguments[i].is_tensor())
          input = tensor_input(kNone);
        else
          input.attr = node.schema->arguments[i].default_value;
        node.inputs.push_back(std::move(input));
      }
    node.region = like.region;
    node.scope = like.scope;
    node.positions = like.positions;
    node.thread = like.thread;
    return node;
  }

  std::map<std::string, ValueId> parameters(const match::Match& match) const {
    std::map<std::string, ValueId> values;
    for (size_t i = 0; i < match.inputs.size(); i++)
      values[match.rule->parameters[i].name] = match.inputs[i];
    return values;
  }

  void remove(NodeId id) {
    removed_[id] = true;
    for (const ValueId value : out_.nodes[id].outputs)
      if (value != kNone) dead_[value] = true;
    for (const ValueId value : out_.nodes[id].written)
      if (value != kNone) dead_[value] = true;
  }

  // Inside a Function grad mode is off; the target runs outside, where its caller is.
  bool grad_mode_outside(const match::Match& match) const {
    if (!match.backward.nodes.empty()) return true;
    const int32_t caller = out_.scopes[match.function_scope].parent;
    for (NodeId id = match.nodes.front(); id-- > 0;)
      if (out_.nodes[id].scope == caller) return out_.nodes[id].region.flags & trace::kGradMode;
    return false;
  }

  void replace_forward(const match::Match& match, const match::Target& target) {
    const Node& last = out_.nodes[match.nodes.back()];
    Node node = make_node(target.op, target.arguments, parameters(match), last);
    if (match.function_scope != kNone) {
      node.scope = out_.scopes[match.function_scope].parent;
      if (grad_mode_outside(match)) node.region.flags |= trace::kGradMode;
      keep_shared_frames(match.nodes, &node);
    }
    node.outputs = match.outputs;
    for (const NodeId id : match.nodes) remove(id);
    for (const ValueId value : match.outputs) {
      dead_[value] = false;
      mark_requires_grad(match, node, value);
    }
    inserted_[match.nodes.back()].push_back(std::move(node));
  }

  // A Function's own frames are gone from the target's stack: what stays are the frames that the
  // first and the last operator of its chain share.
  void keep_shared_frames(const std::vector<NodeId>& chain, Node* node) const {
    if (chain.size() < 2) return;
    const std::vector<int32_t>& first = out_.nodes[chain.front()].positions;
    std::erase_if(node->positions, [&](int32_t row) {
      return std::none_of(first.begin(), first.end(), [&](int32_t other) {
        return same_place(out_.positions[row], out_.positions[other]);
      });
    });
  }

  void mark_requires_grad(const match::Match& match, const Node& node, ValueId value) {
    if (!(node.region.flags & trace::kGradMode)) return;
    for (const ValueId input : match.inputs)
      if (input != kNone && (out_.values[input].meta.flags & trace::kRequiresGrad)) {
        out_.values[value].meta.flags |= trace::kRequiresGrad;
        out_.values[value].meta.flags &= static_cast<uint16_t>(~trace::kLeaf);
      }
  }

  void replace_backward(const match::Match& match, const match::Target& target) {
    const match::BackwardChain& chain = match.backward;
    OPFUSE_CHECK(!target.backward.empty(), target.op + " has no backward in its rule");
    OPFUSE_CHECK(match.inputs.size() == 1 && !chain.grad_inputs.empty(),
                 "the backward of one differentiable input");
    const BackwardCall call = parse_backward(target.backward);
    auto values = parameters(match);
    values["grad"] = chain.grad_output;
    const NodeId at = chain.nodes.back();
    Node node = make_node(call.op, call.arguments, values, out_.nodes[at]);
    node.scope = backward_scope(node.scope, target.op);
    keep_shared_frames(chain.nodes, &node);
    const ValueId gradient = new_gradient(chain.grad_inputs.back());
    node.outputs = {gradient};
    for (const NodeId id : chain.nodes) remove(id);
    inserted_[at].push_back(std::move(node));
    rename(chain.grad_inputs.back(), gradient);
    // Accumulations come from the engine one contribution at a time: those of the others are gone.
    for (size_t i = 0; i + 1 < chain.grad_inputs.size(); i++)
      drop_contribution(chain.grad_inputs[i], gradient);
  }

  // `old` is `now` from here on; views and later writes of its buffer follow it.
  void rename(ValueId old, ValueId now) {
    const graph::Value from = out_.values[old], to = out_.values[now];
    renamed_[old] = now;
    if (from.storage == kNone || (from.storage == to.storage && from.version == to.version)) return;
    for (size_t i = 0; i < out_.values.size(); i++) {
      graph::Value& value = out_.values[i];
      if (static_cast<ValueId>(i) == now || value.storage != from.storage ||
          value.version < from.version)
        continue;
      value.storage = to.storage;
      value.version = to.version + (value.version - from.version);
    }
  }

  // The scope of a new autograd node beside the old one.
  int32_t backward_scope(int32_t old, std::string_view op) {
    return scope_named(old, autograd_name(op));
  }
  int32_t scope_named(int32_t old, std::string name) {
    while (old != kNone && out_.scopes[old].kind != graph::ScopeKind::kAutogradNode)
      old = out_.scopes[old].parent;
    graph::Scope scope;
    scope.kind = graph::ScopeKind::kAutogradNode;
    scope.name = std::move(name);
    if (old != kNone)
      scope.parent = out_.scopes[old].parent, scope.sequence = out_.scopes[old].sequence;
    out_.scopes.push_back(scope);
    return static_cast<int32_t>(out_.scopes.size()) - 1;
  }

  // A buffer of its own for a value like `like`.
  ValueId new_gradient(ValueId like) {
    graph::Value value;
    value.meta = out_.values[like].meta;
    value.storage = static_cast<int32_t>(out_.storages.size());
    graph::Storage storage;
    if (out_.values[like].storage != kNone)
      storage.bytes = out_.storages[out_.values[like].storage].bytes;
    out_.storages.push_back(storage);
    out_.values.push_back(value);
    dead_.push_back(false);
    return static_cast<ValueId>(out_.values.size()) - 1;
  }

  // Removes the accumulation that this contribution enters; what it gave is the other operand.
  void drop_contribution(ValueId contribution, ValueId gradient) {
    for (size_t i = 0; i < out_.nodes.size(); i++) {
      const Node& node = out_.nodes[i];
      if (removed_[i] || !is_accumulation_of(node, static_cast<NodeId>(i), contribution)) continue;
      const ValueId left = resolve(node.inputs[0].values[0]),
                    right = resolve(node.inputs[1].values[0]);
      const ValueId other = left == contribution ? right : left;
      const std::vector<ValueId> sums = node.outputs;
      remove(static_cast<NodeId>(i));
      for (const ValueId sum : sums) {
        if (sum == kNone || sum == contribution) continue;
        if (other != gradient) write_elsewhere(sum);
        rename(sum, other);
      }
      return;
    }
    OPFUSE_CHECK(false, "a gradient contribution is accumulated by the engine");
  }

  // The engine adds in place only into a buffer that nobody else holds. `sum`, a buffer of its own,
  // is about to become a value that others may read: the next accumulation makes a new buffer
  // instead.
  void write_elsewhere(ValueId sum) {
    for (size_t i = 0; i < out_.nodes.size(); i++) {
      Node& node = out_.nodes[i];
      if (removed_[i] || node.writes.empty() || node.writes[0] != sum ||
          !graph::is_engine_accumulation(out_, static_cast<NodeId>(i)))
        continue;
      const ValueId before = node.outputs[0];
      const ValueId result = new_gradient(before);
      node.op = "aten.add.Tensor";
      node.schema = graph::SchemaTable::builtin().find(node.op);
      node.event = kNone;
      node.outputs = {result};
      node.writes.clear();
      node.written.clear();
      out_.values[result].producer = static_cast<NodeId>(i);
      out_.values[result].output = 0;
      dead_[before] = true;
      rename(before, result);
      return;
    }
  }

  bool is_accumulation_of(const Node& node, NodeId id, ValueId contribution) const {
    if (node.inputs.size() < 2 || !graph::is_engine_accumulation(out_, id)) return false;
    for (int i = 0; i < 2; i++)
      if (node.inputs[i].kind == graph::InputKind::kTensor &&
          resolve(node.inputs[i].values[0]) == contribution)
        return true;
    return false;
  }

  ValueId resolve(ValueId value) const {
    for (auto found = renamed_.find(value); found != renamed_.end(); found = renamed_.find(value))
      value = found->second;
    return value;
  }

  void rename_uses() {
    for (Node& node : out_.nodes) {
      for (graph::Input& input : node.inputs)
        for (ValueId& value : input.values) value = resolve(value);
      for (auto* list : {&node.writes, &node.outputs, &node.written})
        for (ValueId& value : *list) value = resolve(value);
    }
    for (ValueId& value : out_.results) value = resolve(value);
  }

  // A value without producer would read as one that existed before the step.
  void drop_dead_values() {
    std::vector<ValueId> now(out_.values.size(), kNone);
    std::vector<graph::Value> values;
    for (size_t i = 0; i < out_.values.size(); i++) {
      if (dead_[i]) continue;
      now[i] = static_cast<ValueId>(values.size());
      values.push_back(std::move(out_.values[i]));
    }
    out_.values = std::move(values);
    const auto move = [&](ValueId& value) {
      if (value == kNone) return;
      OPFUSE_CHECK(now[value] != kNone, "no operator reads a value of a replaced chain");
      value = now[value];
    };
    for (Node& node : out_.nodes) {
      for (graph::Input& input : node.inputs)
        std::for_each(input.values.begin(), input.values.end(), move);
      for (auto* list : {&node.outputs, &node.writes, &node.written})
        std::for_each(list->begin(), list->end(), move);
    }
    std::for_each(out_.results.begin(), out_.results.end(), move);
  }

  // Builds the new list of nodes and tells the values who makes them.
  void place_nodes() {
    std::vector<Node> nodes;
    std::vector<NodeId> now(out_.nodes.size(), kNone);
    for (size_t i = 0; i < out_.nodes.size(); i++) {
      if (!removed_[i]) {
        now[i] = static_cast<NodeId>(nodes.size());
        nodes.push_back(std::move(out_.nodes[i]));
      }
      for (Node& node : inserted_[i]) {
        for (const ValueId value : node.outputs)
          if (value != kNone) made_.try_emplace(value, static_cast<NodeId>(nodes.size()));
        nodes.push_back(std::move(node));
      }
    }
    out_.nodes = std::move(nodes);
    for (graph::Value& value : out_.values)
      if (value.producer != kNone) value.producer = now[value.producer];
    for (const auto& [value, node] : made_) {
      const std::vector<ValueId>& outputs = out_.nodes[node].outputs;
      out_.values[value].producer = node;
      out_.values[value].output =
          static_cast<int>(std::find(outputs.begin(), outputs.end(), value) - outputs.begin());
    }
  }

  Graph out_;
  std::vector<std::vector<Node>> inserted_;  // after the node of that index
  std::vector<bool> removed_, dead_;
  std::map<ValueId, ValueId> renamed_;
  std::map<ValueId, NodeId> made_;  // results of inserted nodes
};

}  // namespace opfuse::rewrite
