#include "opfuse/graph/graph.h"

#include "opfuse/trace/event_table.h"

namespace opfuse::graph {

int64_t TensorMeta::numel() const {
  if (!shape_known) return -1;
  int64_t product = 1;
  for (int64_t size : shape) product *= size;
  return product;
}

void index_users(Graph* graph) {
  graph->users.assign(graph->values.size(), {});
  for (NodeId id = 0; id < static_cast<NodeId>(graph->nodes.size()); ++id)
    for (const Input& input : graph->nodes[id].inputs)
      for (ValueId value : input.values) {
        if (value == kNone) continue;
        std::vector<NodeId>& readers = graph->users[value];
        if (readers.empty() || readers.back() != id) readers.push_back(id);
      }
}

int32_t enclosing_scope(const Graph& graph, NodeId node, ScopeKind kind) {
  int32_t scope = graph.nodes[node].scope;
  while (scope != kNone && graph.scopes[scope].kind != kind) scope = graph.scopes[scope].parent;
  return scope;
}

bool is_engine_accumulation(const Graph& graph, NodeId id) {
  const Node& node = graph.nodes[id];
  bool is_add = node.op == "aten.add.Tensor" || node.op == "aten.add_.Tensor";
  return is_add && (node.region.flags & trace::kGraphTask) != 0 &&
         enclosing_scope(graph, id, ScopeKind::kAutogradNode) == kNone;
}

}  // namespace opfuse::graph
