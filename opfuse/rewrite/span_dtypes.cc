#include "opfuse/rewrite/span_dtypes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>

namespace opfuse::rewrite {
namespace {

// `rule.to(x, <dtype 0>)` and `rule.to(x, f32)`.
DTypeSources cast_dtype(const graph::Node& node) {
  const graph::Attr& wanted = node.inputs[1].attr;
  if (const auto* opaque = std::get_if<graph::OpaqueAttr>(&wanted)) {
    if (opaque->type.starts_with("dtype "))
      return DTypeSources::parameter(std::strtoul(opaque->type.c_str() + 6, nullptr, 10));
    if (const auto dtype = dtype_from_name(opaque->type)) return DTypeSources::fixed(*dtype);
  }
  return {};
}

DTypeSources node_dtype(const graph::Node& node, const std::vector<DTypeSources>& values) {
  if (node.op == "rule.to") return cast_dtype(node);
  DTypeSources result;
  const bool chooses = node.op.starts_with("aten.where");
  for (size_t i = chooses ? 1 : 0; i < node.inputs.size(); i++)
    for (const graph::ValueId value : node.inputs[i].values)
      if (value != graph::kNone) result.promote(values[value]);
  return result;
}

}  // namespace

std::string DTypeSources::words(const std::vector<std::string>& names) const {
  std::vector<std::string> parts;
  for (const int from : from_) {
    if (from < 0) parts.emplace_back(dtype_name(static_cast<DType>(-1 - from)));
    if (from >= 0) parts.push_back(names[from].empty() ? "an input" : names[from]);
  }
  return parts.empty() ? "numbers alone" : fmt::format("{}", fmt::join(parts, " and "));
}

DTypeSources composition_dtype(const match::Match& match) {
  const graph::Graph& graph = match.rule->composition.graph;
  if (graph.results.size() != 1) return {};
  std::vector<DTypeSources> values(graph.values.size());
  for (size_t i = 0; i < match.inputs.size(); i++)
    if (match.rule->parameters[i].is_tensor && match.inputs[i] != graph::kNone)
      values[i] = DTypeSources::parameter(i);
  for (const graph::Node& node : graph.nodes)
    for (const graph::ValueId output : node.outputs)
      if (output != graph::kNone) values[output] = node_dtype(node, values);
  return values[graph.results[0]];
}

}  // namespace opfuse::rewrite
