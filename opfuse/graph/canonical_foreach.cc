#include "opfuse/graph/canonical_foreach.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "opfuse/graph/schema.h"

namespace opfuse::graph {
namespace {

constexpr std::string_view kPrefix = "aten._foreach_";

// Arguments of the two are the same, in the same order, but for what is a list; further ones of the
// single operator have their defaults.
struct Overload {
  std::string_view foreach, single;
};

constexpr Overload kOverloads[] = {
    {"add.List", "add.Tensor"},
    {"add.Scalar", "add.Scalar"},
    {"add.ScalarList", "add.Scalar"},
    {"add.Tensor", "add.Tensor"},
    {"sub.List", "sub.Tensor"},
    {"sub.Scalar", "sub.Scalar"},
    {"sub.ScalarList", "sub.Scalar"},
    {"mul.List", "mul.Tensor"},
    {"mul.Scalar", "mul.Scalar"},
    {"mul.ScalarList", "mul.Scalar"},
    {"mul.Tensor", "mul.Tensor"},
    {"div.List", "div.Tensor"},
    {"div.Scalar", "div.Scalar"},
    {"div.ScalarList", "div.Scalar"},
    {"div.Tensor", "div.Tensor"},
    {"lerp.List", "lerp.Tensor"},
    {"lerp.Scalar", "lerp.Scalar"},
    {"lerp.ScalarList", "lerp.Scalar"},
    {"addcmul.Scalar", "addcmul"},
    {"addcmul.ScalarList", "addcmul"},
    {"addcdiv.Scalar", "addcdiv"},
    {"addcdiv.ScalarList", "addcdiv"},
    {"maximum.List", "maximum"},
    {"sqrt", "sqrt"},
    {"neg", "neg"},
    {"reciprocal", "reciprocal"},
};

// "aten._foreach_mul_.Scalar" -> "mul.Scalar"; `in_place` says whether there was a "_".
std::string name_of(std::string_view op, bool* in_place) {
  op.remove_prefix(kPrefix.size());
  const size_t dot = std::min(op.find('.'), op.size());
  *in_place = dot > 0 && op[dot - 1] == '_';
  return std::string(op.substr(0, dot - (*in_place ? 1 : 0))) + std::string(op.substr(dot));
}

// Argument `input` for the tensor at `index`; none where its list is shorter.
std::optional<Input> part_of(const Input& input, size_t count, size_t index) {
  Input part;
  if (input.kind == InputKind::kTensorList) {
    if (input.values.size() != count) return std::nullopt;
    part.kind = InputKind::kTensor;
    part.values = {input.values[index]};
    part.proof = input.proof;
    return part;
  }
  if (const auto* numbers = std::get_if<std::vector<double>>(&input.attr)) {
    if (numbers->size() != count) return std::nullopt;
    part.attr = (*numbers)[index];
    return part;
  }
  if (const auto* numbers = std::get_if<std::vector<int64_t>>(&input.attr)) {
    if (numbers->size() != count) return std::nullopt;
    part.attr = (*numbers)[index];
    return part;
  }
  return input;
}

}  // namespace

std::vector<Node> foreach_nodes(const Node& node) {
  if (!node.op.starts_with(kPrefix) || node.opaque || node.inputs.empty()) return {};
  bool in_place = false;
  const std::string name = name_of(node.op, &in_place);
  const auto overload = std::ranges::find(kOverloads, name, &Overload::foreach);
  if (overload == std::end(kOverloads)) return {};
  const std::string op = "aten." + std::string(overload->single);
  const Schema* schema = SchemaTable::builtin().find(op);
  const std::vector<ValueId>& made = in_place ? node.written : node.outputs;
  const size_t count = node.inputs[0].values.size();
  if (!schema || schema->arguments.size() < node.inputs.size() || made.size() != count) return {};
  if (std::ranges::find(made, kNone) != made.end()) return {};
  std::vector<Node> result;
  for (size_t i = 0; i < count; ++i) {
    Node one = node;
    one.op = op;
    one.schema = schema;
    one.outputs = {made[i]};
    if (in_place) {
      one.writes = {node.writes[i]};
      one.written = {node.written[i]};
    }
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      std::optional<Input> part = part_of(node.inputs[k], count, i);
      if (!part) return {};
      one.inputs[k] = std::move(*part);
    }
    for (size_t k = node.inputs.size(); k < schema->arguments.size(); ++k)
      one.inputs.emplace_back().attr = schema->arguments[k].default_value;
    result.push_back(std::move(one));
  }
  return result;
}

}  // namespace opfuse::graph
