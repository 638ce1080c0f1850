#include "opfuse/graph/canonical_rows.h"

#include <algorithm>
#include <cmath>

#include "opfuse/graph/schema.h"

namespace opfuse::graph {
namespace {

bool is_one_tensor_result(const Node& node) {
  return node.outputs.size() == 1 && node.outputs[0] != kNone && !node.inputs.empty() &&
         node.inputs[0].kind == InputKind::kTensor && node.inputs[0].values[0] != kNone &&
         node.outputs[0] != node.inputs[0].values[0];
}

std::optional<int> drop_alias(const Canonicalizer&, const Node& node) {
  if (!is_one_tensor_result(node)) return std::nullopt;
  return 0;
}

// Dropping a copy is right while nobody writes what was copied.
std::optional<int> drop_copy(const Canonicalizer& c, const Node& node) {
  if (!is_one_tensor_result(node) || !c.same_kind(node, 0) || c.storage_is_written(node, 0))
    return std::nullopt;
  if (c.value(node.outputs[0]).meta.strides != c.meta(node, 0).strides) return std::nullopt;
  return 0;
}

std::optional<int> drop_times_one(const Canonicalizer& c, const Node& node) {
  if (!is_one_tensor_result(node) || c.constant(node, 1) != 1.0 || !c.result_is_floating(node))
    return std::nullopt;
  if (!c.same_kind(node, 0) || c.storage_is_written(node, 0)) return std::nullopt;
  return 0;
}

// aten.mul_.Tensor -> aten.mul.Tensor; the node keeps what it writes.
bool out_of_place(Canonicalizer&, Node& node) {
  size_t dot = node.op.find('.', 5);
  std::string base = node.op.substr(0, dot);
  std::string op =
      base.substr(0, base.size() - 1) + (dot == std::string::npos ? "" : node.op.substr(dot));
  const Schema* schema = SchemaTable::builtin().find(op);
  if (!schema || schema->arguments.size() != node.inputs.size()) return false;
  node.op = op;
  node.schema = schema;
  return true;
}

bool tensor_overload(Canonicalizer& c, Node& node) {
  if (!c.constant(node, 1)) return false;
  std::vector<Input> rest(node.inputs.begin() + 2, node.inputs.end());
  std::string op = node.op.substr(0, node.op.rfind('.')) + ".Tensor";
  if (!c.become(&node, op, {c.operand(node, 0), c.as_tensor(node, 1)})) return false;
  std::copy(rest.begin(), rest.end(), node.inputs.begin() + 2);
  return true;
}

bool reversed_subtraction(Canonicalizer& c, Node& node) {
  bool scalar = node.op == "aten.rsub.Scalar";
  if (scalar && !c.constant(node, 1)) return false;
  Attr alpha = node.inputs[2].attr;
  if (!(alpha == Attr{int64_t{1}} || alpha == Attr{1.0})) return false;
  return c.become(&node, "aten.sub.Tensor", {c.as_tensor(node, 1), c.operand(node, 0)});
}

bool is_default_alpha(const Node& node) {
  return node.inputs[2].attr == Attr{int64_t{1}} || node.inputs[2].attr == Attr{1.0};
}

bool minus_constant(Canonicalizer& c, Node& node) {
  std::optional<double> number = c.constant(node, 1);
  if (!number || c.constant(node, 0) || !is_default_alpha(node) || !c.result_is_floating(node))
    return false;
  bool integral = c.meta(node, 1).dtype == DType::kI64;
  return c.become(&node, "aten.add.Tensor", {c.operand(node, 0), c.literal(-*number, integral)});
}

bool is_power_of_two(double value) {
  int exponent;
  return std::isfinite(value) && value != 0 && std::abs(std::frexp(value, &exponent)) == 0.5 &&
         std::abs(exponent) < 100;
}

template <bool power_of_two>
bool div_constant(Canonicalizer& c, Node& node) {
  std::optional<double> number = c.constant(node, 1);
  if (!number || c.constant(node, 0) || !c.result_is_floating(node)) return false;
  if (*number == 0 || !std::isfinite(1 / *number) || is_power_of_two(*number) != power_of_two)
    return false;
  return c.become(&node, "aten.mul.Tensor", {c.operand(node, 0), c.literal(1 / *number, false)});
}

bool reciprocal(Canonicalizer& c, Node& node) {
  if (!c.result_is_floating(node)) return false;
  return c.become(&node, "aten.div.Tensor", {c.literal(1, true), c.operand(node, 0)});
}

template <int numerator, int denominator>
bool power(Canonicalizer& c, Node& node) {
  if (c.constant(node, 1) != static_cast<double>(numerator) / denominator) return false;
  if (!c.result_is_floating(node)) return false;
  ValueId x = c.operand(node, 0);
  if (numerator == 2) return c.become(&node, "aten.mul.Tensor", {x, x});
  if (denominator == 2) return c.become(&node, numerator > 0 ? "aten.sqrt" : "aten.rsqrt", {x});
  return c.become(&node, "aten.div.Tensor", {c.literal(1, true), x});
}

// A view of the whole in the same order is the value itself.
std::optional<int> drop_view(const Canonicalizer& c, const Node& node) {
  if (!is_one_tensor_result(node) || !c.same_kind(node, 0) || !c.meta(node, 0).shape_known)
    return std::nullopt;
  const TensorMeta &a = c.meta(node, 0), &b = c.value(node.outputs[0]).meta;
  if (a.strides != b.strides || a.offset != b.offset) return std::nullopt;
  return 0;
}

bool is_number(const Attr& attr) {
  return std::holds_alternative<int64_t>(attr) || std::holds_alternative<double>(attr);
}

// The same node under another operator; its attributes stay where they are.
bool renamed(Node& node, std::string_view op) {
  node.op = op;
  node.schema = SchemaTable::builtin().find(op);
  return true;
}

// clamp with one bound; an unknown bound is none of the two.
bool clamp_of_one_bound(Canonicalizer&, Node& node) {
  const bool low = is_number(node.inputs[1].attr), high = is_number(node.inputs[2].attr);
  const bool no_low = std::holds_alternative<NoneAttr>(node.inputs[1].attr);
  const bool no_high = std::holds_alternative<NoneAttr>(node.inputs[2].attr);
  if (!(low && no_high) && !(high && no_low)) return false;
  node.inputs.erase(node.inputs.begin() + (low ? 2 : 1));
  return renamed(node, low ? "aten.clamp_min" : "aten.clamp_max");
}

// t(x) of a matrix -> transpose(x, -2, -1); dimensions in order.
bool matrix_transpose(Canonicalizer& c, Node& node) {
  if (!c.meta(node, 0).shape_known || c.meta(node, 0).shape.size() != 2) return false;
  Input first, second;
  first.attr = int64_t{-2};
  second.attr = int64_t{-1};
  node.inputs.push_back(first);
  node.inputs.push_back(second);
  return renamed(node, "aten.transpose.int");
}

bool transposed_dims(Canonicalizer& c, Node& node) {
  auto *a = std::get_if<int64_t>(&node.inputs[1].attr),
       *b = std::get_if<int64_t>(&node.inputs[2].attr);
  if (!a || !b) return false;
  const int64_t before_a = *a, before_b = *b;
  if (c.meta(node, 0).shape_known) {
    const auto rank = static_cast<int64_t>(c.meta(node, 0).shape.size());
    if (*a >= 0) *a -= rank;
    if (*b >= 0) *b -= rank;
  }
  if (*a > *b && (*a < 0) == (*b < 0)) std::swap(*a, *b);
  return *a != before_a || *b != before_b;
}

// x[a:] of n elements is x[a:n], x[:b] is x[0:b], x[-a:] is x[n - a:n].
bool slice_bounds(Canonicalizer& c, Node& node) {
  const TensorMeta& meta = c.meta(node, 0);
  const auto* dim = std::get_if<int64_t>(&node.inputs[1].attr);
  if (!dim || !meta.shape_known || node.inputs.size() != 5) return false;
  const auto rank = static_cast<int64_t>(meta.shape.size());
  const int64_t axis = *dim < 0 ? *dim + rank : *dim;
  if (axis < 0 || axis >= rank) return false;
  const int64_t size = meta.shape[static_cast<size_t>(axis)];
  bool changed = false;
  const auto settle = [&](Attr* bound, int64_t absent) {
    const auto* given = std::get_if<int64_t>(bound);
    if (!given && !std::holds_alternative<NoneAttr>(*bound)) return;  // not known
    int64_t at = given ? *given : absent;
    if (at < 0) at += size;
    at = std::clamp<int64_t>(at, 0, size);
    if (given && *given == at) return;
    *bound = at;
    changed = true;
  };
  settle(&node.inputs[2].attr, 0);
  settle(&node.inputs[3].attr, size);
  return changed;
}

// permute(x, [0, 1, 3, 2]) -> transpose(x, -2, -1), as einsum writes it.
bool permuted_matrix(Canonicalizer&, Node& node) {
  const auto* dims = std::get_if<std::vector<int64_t>>(&node.inputs[1].attr);
  if (!dims || dims->size() < 2) return false;
  const auto rank = static_cast<int64_t>(dims->size());
  for (int64_t i = 0; i < rank; ++i) {
    const int64_t from = (*dims)[i] < 0 ? (*dims)[i] + rank : (*dims)[i];
    const int64_t swapped = i == rank - 2 ? rank - 1 : i == rank - 1 ? rank - 2 : i;
    if (from != swapped) return false;
  }
  Input second;
  second.attr = int64_t{-1};
  node.inputs[1].attr = int64_t{-2};
  node.inputs.push_back(second);
  return renamed(node, "aten.transpose.int");
}

bool times_minus_one(Canonicalizer& c, Node& node) {
  if (c.constant(node, 1) != -1.0 || !c.result_is_floating(node)) return false;
  return c.become(&node, "aten.neg", {c.operand(node, 0)});
}

// Constants last, then in order of their ids.
bool operand_order(Canonicalizer& c, Node& node) {
  if (node.op == "aten.add.Tensor" && !is_default_alpha(node)) return false;
  ValueId a = c.operand(node, 0), b = c.operand(node, 1);
  if (a == kNone || b == kNone) return false;
  bool a_constant = c.constant(node, 0).has_value(), b_constant = c.constant(node, 1).has_value();
  bool swap = a_constant != b_constant ? a_constant : a > b;
  if (!swap) return false;
  std::swap(node.inputs[0], node.inputs[1]);
  return true;
}

std::vector<Row> make_rows() {
  using enum Exactness;
  const std::vector<std::string_view> in_place = {
      "aten.mul_.Tensor", "aten.add_.Tensor", "aten.sub_.Tensor",  "aten.div_.Tensor",
      "aten.mul_.Scalar", "aten.add_.Scalar", "aten.sub_.Scalar",  "aten.div_.Scalar",
      "aten.sigmoid_",    "aten.neg_",        "aten.exp_",         "aten.tanh_",
      "aten.reciprocal_", "aten.relu_",       "aten.sqrt_",        "aten.rsqrt_",
      "aten.silu_",       "aten.clamp_min_",  "aten.clamp_max_",   "aten.erf_",
      "aten.log_",        "aten.abs_",        "aten.hardsigmoid_", "aten.hardswish_",
      "aten.mish_",       "aten.addcmul_",    "aten.gelu_",        "aten.hardtanh_",
      "aten.clamp_",      "aten.addcdiv_",    "aten.lerp_.Scalar", "aten.lerp_.Tensor"};
  return {
      {{"in place", kExact, "x.mul_(y) -> x * y (the write stays on record)"},
       in_place,
       nullptr,
       out_of_place},
      {{kForeach, kExact, "_foreach_mul_([a, b], 2) -> a * 2, b * 2"}, {}, nullptr, nullptr},
      {{"alias", kExact, "x.detach(), alias(x) -> x"},
       {"aten.detach", "aten.alias", "aten.lift_fresh"},
       drop_alias,
       nullptr},
      {{"no change of shape", kExact, "x.view(x.shape), x.expand(x.shape) -> x"},
       {"aten.view", "aten._unsafe_view", "aten.reshape", "aten.expand"},
       drop_view,
       nullptr},
      {{"clamp by one bound", kExact, "clamp(x, 0, None) -> clamp_min(x, 0)"},
       {"aten.clamp"},
       nullptr,
       clamp_of_one_bound},
      {{"matrix transpose", kExact, "t(x) -> transpose(x, -2, -1)"},
       {"aten.t"},
       nullptr,
       matrix_transpose},
      {{"dimensions of a transpose", kExact, "transpose(x, 3, 2) -> transpose(x, -2, -1)"},
       {"aten.transpose.int"},
       nullptr,
       transposed_dims},
      {{"bounds of a slice", kExact, "x[a:] of n -> x[a:n], x[:b] -> x[0:b]"},
       {"aten.slice.Tensor"},
       nullptr,
       slice_bounds},
      {{"permutation of a matrix", kExact, "permute(x, [0, 2, 1]) -> transpose(x, -2, -1)"},
       {"aten.permute"},
       nullptr,
       permuted_matrix},
      {{"no-op cast", kExact, "x.to(x.dtype), x.contiguous() when it is -> x"},
       {"aten._to_copy", "aten.to.dtype", "aten.to.device", "aten.contiguous",
        "aten.to.dtype_layout"},
       drop_copy,
       nullptr},
      {{"scalar overload", kExact, "mul.Scalar(x, 2) -> mul.Tensor(x, 2)"},
       {"aten.mul.Scalar", "aten.add.Scalar", "aten.sub.Scalar", "aten.div.Scalar"},
       nullptr,
       tensor_overload},
      {{"rsub", kExact, "rsub(x, y) -> y - x"},
       {"aten.rsub.Scalar", "aten.rsub.Tensor"},
       nullptr,
       reversed_subtraction},
      {{"minus a constant", kExact, "x - 3 -> x + -3"},
       {"aten.sub.Tensor"},
       nullptr,
       minus_constant},
      {{"div by a power of two", kExact, "x / 2 -> x * 0.5"},
       {"aten.div.Tensor"},
       nullptr,
       div_constant<true>},
      {{"div by a constant", kRounding, "x / 6 -> x * 0.1666..."},
       {"aten.div.Tensor"},
       nullptr,
       div_constant<false>},
      {{"reciprocal", kRounding, "reciprocal(x) -> 1 / x"},
       {"aten.reciprocal"},
       nullptr,
       reciprocal},
      {{"power of 2", kRounding, "x ** 2 -> x * x"},
       {"aten.pow.Tensor_Scalar"},
       nullptr,
       power<2, 1>},
      {{"power of 0.5", kRounding, "x ** 0.5 -> sqrt(x)"},
       {"aten.pow.Tensor_Scalar"},
       nullptr,
       power<1, 2>},
      {{"power of -0.5", kRounding, "x ** -0.5 -> rsqrt(x)"},
       {"aten.pow.Tensor_Scalar"},
       nullptr,
       power<-1, 2>},
      {{"power of -1", kRounding, "x ** -1 -> 1 / x"},
       {"aten.pow.Tensor_Scalar"},
       nullptr,
       power<-1, 1>},
      {{"operand order", kExact, "2 * x -> x * 2"},
       {"aten.mul.Tensor", "aten.add.Tensor"},
       nullptr,
       operand_order},
      {{"times one", kExact, "x * 1 -> x"}, {"aten.mul.Tensor"}, drop_times_one, nullptr},
      {{"times minus one", kExact, "x * -1 -> -x"}, {"aten.mul.Tensor"}, nullptr, times_minus_one},
  };
}

}  // namespace

const std::vector<Row>& canonical_table() {
  static const std::vector<Row> table = make_rows();
  return table;
}

}  // namespace opfuse::graph
