#include "opfuse/graph/effects.h"

#include <algorithm>

#include "opfuse/trace/event_table.h"

namespace opfuse::graph {

Alias schema_alias(const Node& node, int output) {
  if (!node.schema || node.schema->returns.empty()) return {};
  const std::vector<SchemaArgument>& returns = node.schema->returns;
  size_t index = std::min<size_t>(output, returns.size() - 1);
  const SchemaArgument& result = returns[index];
  if (result.alias_set.empty()) return {};
  const std::vector<SchemaArgument>& arguments = node.schema->arguments;
  for (size_t i = 0; i < arguments.size() && i < node.inputs.size(); ++i) {
    if (arguments[i].alias_set != result.alias_set || node.inputs[i].values.empty()) continue;
    size_t element = node.inputs[i].kind == InputKind::kTensorList ? output - index : 0;
    if (element >= node.inputs[i].values.size()) continue;
    return {node.inputs[i].values[element], result.is_write};
  }
  return {};
}

uint16_t default_flags(const Graph& graph, int32_t scope) {
  for (; scope != kNone; scope = graph.scopes[scope].parent) {
    if (graph.scopes[scope].kind == ScopeKind::kAutogradNode) return trace::kGraphTask;
    if (graph.scopes[scope].kind == ScopeKind::kFunction) return 0;
  }
  return trace::kGradMode;
}

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = step;
    step *= std::max<int64_t>(shape[i], 1);
  }
  return strides;
}

}  // namespace opfuse::graph
