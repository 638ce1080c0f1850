#include "opfuse/match/attributes.h"

#include <algorithm>
#include <string_view>

#include "opfuse/graph/schema.h"
#include "opfuse/match/solver.h"

namespace opfuse::match {
namespace {

using graph::Attr;
using graph::Graph;
using graph::kNone;
using graph::Node;
using graph::ValueId;

// Dimensions that the argument counts: the rank of the first tensor, one more for unsqueeze; 0
// when it is no dimension or the rank is not known.
int64_t rank_for(const Graph& graph, const Node& node, size_t index) {
  if (!node.schema || index >= node.schema->arguments.size()) return 0;
  const std::string_view name = node.schema->arguments[index].name;
  if (name != "dim" && name != "dim0" && name != "dim1") return 0;
  for (const graph::Input& input : node.inputs)
    for (ValueId value : input.values) {
      if (value == kNone) continue;
      const graph::TensorMeta& meta = graph.values[value].meta;
      if (!meta.shape_known) return 0;
      return static_cast<int64_t>(meta.shape.size()) + (node.op == "aten.unsqueeze");
    }
  return 0;
}

}  // namespace

bool number_of(const Attr& attr, double* number) {
  if (auto* d = std::get_if<double>(&attr))
    *number = *d;
  else if (auto* i = std::get_if<int64_t>(&attr))
    *number = static_cast<double>(*i);
  else if (auto* b = std::get_if<bool>(&attr))
    *number = *b ? 1 : 0;
  else if (auto* list = std::get_if<std::vector<int64_t>>(&attr); list && list->size() == 1)
    *number = static_cast<double>((*list)[0]);
  else
    return false;
  return true;
}

bool equal_attribute(const Attr& a, const Attr& b, DType dtype) {
  double x, y;
  const bool lists = std::holds_alternative<std::vector<int64_t>>(a) ==
                     std::holds_alternative<std::vector<int64_t>>(b);
  const bool flags = std::holds_alternative<bool>(a) == std::holds_alternative<bool>(b);
  if (lists && flags && number_of(a, &x) && number_of(b, &y)) return same_constant(x, y, dtype);
  return a == b;
}

Attr plain_like(const Attr& attr, const Graph& graph, const Node& node, size_t index) {
  const int64_t rank = rank_for(graph, node, index);
  if (rank == 0) return attr;
  const auto plain = [&](int64_t dim) { return dim >= 0 ? dim - rank : dim; };
  if (auto* dim = std::get_if<int64_t>(&attr)) return plain(*dim);
  if (auto* dims = std::get_if<std::vector<int64_t>>(&attr)) {
    std::vector<int64_t> result;
    for (int64_t dim : *dims) result.push_back(plain(dim));
    std::ranges::sort(result);
    return result;
  }
  return attr;
}

Attr plain_attribute(const Graph& graph, const Node& node, size_t index) {
  return plain_like(node.inputs[index].attr, graph, node, index);
}

}  // namespace opfuse::match
