#include "opfuse/match/pattern_edit.h"

#include <algorithm>

#include "opfuse/base/check.h"
#include "opfuse/graph/schema.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::match {

using graph::Attr;
using graph::Graph;
using graph::Input;
using graph::InputKind;
using graph::kNone;
using graph::Node;
using graph::NodeId;
using graph::ValueId;

ValueId PatternEdit::number(double value, bool integral) {
  graph::Value literal;
  literal.meta.dtype = integral ? DType::kI64 : DType::kF64;
  literal.meta.shape_known = true;
  literal.meta.device = 0;
  literal.meta.flags = trace::kWrappedNumber;
  literal.meta.number = value;
  graph_.values.push_back(std::move(literal));
  return static_cast<ValueId>(graph_.values.size() - 1);
}

ValueId PatternEdit::add(std::string_view op, const std::vector<ValueId>& tensors) {
  return add(op, tensors, -1, {});
}

ValueId PatternEdit::add(std::string_view op, const std::vector<ValueId>& tensors, int index,
                         Attr attribute) {
  Node node;
  node.op = op;
  node.schema = graph::SchemaTable::builtin().find(op);
  OPFUSE_CHECK(node.schema != nullptr, "a row of alternatives names an operator of the table");
  for (size_t i = 0; i < node.schema->arguments.size(); ++i) {
    Input input;
    if (i < tensors.size()) {
      input.kind = InputKind::kTensor;
      input.values = {tensors[i]};
    } else {
      input.attr =
          static_cast<int>(i) == index ? attribute : node.schema->arguments[i].default_value;
    }
    node.inputs.push_back(std::move(input));
  }
  graph::Value result;
  result.meta = graph_.values[tensors[0]].meta;
  result.meta.flags = 0;
  result.meta.number.reset();
  result.producer = static_cast<NodeId>(graph_.nodes.size());
  graph_.values.push_back(std::move(result));
  node.outputs = {static_cast<ValueId>(graph_.values.size() - 1)};
  graph_.nodes.push_back(std::move(node));
  return graph_.nodes.back().outputs[0];
}

void PatternEdit::replace(ValueId old, ValueId now) {
  for (NodeId id = 0; id < static_cast<NodeId>(graph_.nodes.size()); ++id) {
    if (id == graph_.values[now].producer) continue;
    for (Input& input : graph_.nodes[id].inputs) std::ranges::replace(input.values, old, now);
  }
  std::ranges::replace(graph_.results, old, now);
}

Graph PatternEdit::finish(int externals) {
  Graph out;
  out.storages = graph_.storages;
  std::vector<ValueId> place(graph_.values.size(), kNone);
  std::vector<bool> done(graph_.nodes.size());
  const auto keep = [&](ValueId id) {
    if (place[id] != kNone) return;
    place[id] = static_cast<ValueId>(out.values.size());
    out.values.push_back(graph_.values[id]);
  };
  for (ValueId id = 0; id < externals; ++id) keep(id);
  // Depth first from the results: operands before operators.
  const auto visit = [&](const auto& self, ValueId id) -> void {
    const NodeId producer = graph_.values[id].producer;
    if (producer == kNone) return keep(id);
    if (done[producer]) return;
    done[producer] = true;
    Node node = graph_.nodes[producer];
    for (Input& input : node.inputs)
      for (ValueId& value : input.values)
        if (value != kNone) {
          self(self, value);
          value = place[value];
        }
    for (ValueId& value : node.outputs) {
      if (value == kNone) continue;
      keep(value);
      value = place[value];
      out.values[value].producer = static_cast<NodeId>(out.nodes.size());
    }
    out.nodes.push_back(std::move(node));
  };
  for (ValueId result : graph_.results) visit(visit, result);
  for (ValueId result : graph_.results) out.results.push_back(place[result]);
  graph::index_users(&out);
  return out;
}

}  // namespace opfuse::match
