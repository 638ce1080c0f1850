#include "opfuse/graph/canonical.h"

#include "opfuse/graph/canonical_foreach.h"
#include "opfuse/graph/canonical_rows.h"
#include "opfuse/graph/effects.h"

namespace opfuse::graph {

Canonicalizer::Canonicalizer(const Graph& graph) : in_(graph) {
  out_.graph.values = graph.values;
  out_.graph.storages = graph.storages;
  out_.graph.scopes = graph.scopes;
  out_.stands_in.resize(graph.values.size());
  for (size_t i = 0; i < graph.values.size(); ++i) out_.stands_in[i] = static_cast<ValueId>(i);
  out_.drop_rows.resize(graph.values.size());
  last_writer_.resize(graph.storages.size(), kNone);
  for (NodeId id = 0; id < static_cast<NodeId>(graph.nodes.size()); ++id)
    for (ValueId value : graph.nodes[id].writes)
      if (graph.values[value].storage != kNone) last_writer_[graph.values[value].storage] = id;
  index_rows();
}

CanonicalForm Canonicalizer::run() {
  std::vector<NodeId> place(in_.nodes.size(), kNone);
  out_.graph.nodes.reserve(in_.nodes.size());
  std::vector<std::pair<ValueId, NodeId>> made_apart;
  for (NodeId id = 0; id < static_cast<NodeId>(in_.nodes.size()); ++id) {
    const std::vector<Node> parts = foreach_nodes(in_.nodes[id]);
    if (parts.empty() && add(id, in_.nodes[id], 0)) place[id] = last_node();
    for (const Node& part : parts)
      made_apart.emplace_back(part.outputs[0], add(id, part, foreach_row_) ? last_node() : kNone);
  }
  for (Value& value : out_.graph.values)
    if (value.producer != kNone) value.producer = place[value.producer];
  for (const auto& [made, node] : made_apart) {
    out_.graph.values[made].producer = node;
    out_.graph.values[made].output = 0;
  }
  for (ValueId result : in_.results)
    out_.graph.results.push_back(result == kNone ? kNone : out_.stands_in[result]);
  index_users(&out_.graph);
  return std::move(out_);
}

void Canonicalizer::index_rows() {
  for (size_t i = 0; i < canonical_table().size(); ++i) {
    for (std::string_view op : canonical_table()[i].ops) by_op_[op].push_back(static_cast<int>(i));
    if (canonical_table()[i].text.name == kForeach) foreach_row_ = RowSet{1} << i;
  }
}

bool Canonicalizer::add(NodeId id, Node node, RowSet used) {
  current_ = id;
  node.positions.clear();
  for (Input& input : node.inputs)
    for (ValueId& value : input.values)
      if (value != kNone) value = out_.stands_in[value];
  for (bool again = true; again;) {
    again = false;
    auto it = by_op_.find(node.op);
    if (it == by_op_.end()) break;
    for (int row : it->second) {
      if (const Drop drop = canonical_table()[row].drop) {
        std::optional<int> equal = drop(*this, node);
        if (!equal) continue;
        dropped(node, *equal, used | (RowSet{1} << row));
        return false;
      }
      if (!canonical_table()[row].change(*this, node)) continue;
      used |= RowSet{1} << row;
      again = true;
      break;
    }
  }
  out_.graph.nodes.push_back(std::move(node));
  out_.origin.push_back(id);
  out_.rows.push_back(used);
  return true;
}

void Canonicalizer::dropped(const Node& node, int input, RowSet used) {
  ValueId output = node.outputs[0];
  out_.stands_in[output] = operand(node, input);
  out_.drop_rows[output] = used;
}

std::span<const CanonicalRow> canonical_rows() {
  static const std::vector<CanonicalRow> table = [] {
    std::vector<CanonicalRow> result;
    for (const Row& row : canonical_table()) result.push_back(row.text);
    return result;
  }();
  return table;
}

CanonicalForm canonicalize(const Graph& graph) { return Canonicalizer(graph).run(); }

}  // namespace opfuse::graph
