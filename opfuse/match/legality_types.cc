#include <algorithm>
#include <numeric>

#include "opfuse/graph/schema.h"
#include "opfuse/match/legality_rows.h"
#include "opfuse/match/rule_functions.h"
#include "opfuse/match/words.h"

namespace opfuse::match {
namespace {

// The variable that a value's dtype must agree in: that of its type, T where the rule says nothing;
// 0 for an explicit dtype, which the matcher has compared.
char dtype_variable(const TensorType* type) {
  if (!type || (type->variable == 0 && type->dtype == DType::kUnknown)) return 'T';
  return type->variable;
}

bool has(const Spelling& spelling, std::string_view op) {
  return std::ranges::find(spelling.graph.nodes, op, &graph::Node::op) !=
         spelling.graph.nodes.end();
}

bool takes(const Target& target, const graph::TensorMeta& meta) {
  // What a device beside these is called, only the running torch knows: the plan asks it.
  constexpr std::string_view kDevices[] = {"cpu", "cuda"};
  bool named = target.device == kDevices[0] || target.device == kDevices[1];
  bool device =
      target.device.empty() ||
      (meta.device >= 0 && meta.device < 2 ? target.device == kDevices[meta.device] : !named);
  return device && (target.dtypes.empty() ||
                    std::ranges::find(target.dtypes, meta.dtype) != target.dtypes.end());
}

// Strides that a pointwise operator gives its result: the input's when dense, else in their order.
std::vector<int64_t> pointwise_strides(const graph::TensorMeta& in) {
  std::vector<size_t> order(in.shape.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order,
                           [&](size_t a, size_t b) { return in.strides[a] > in.strides[b]; });
  std::vector<int64_t> strides(in.shape.size());
  int64_t step = 1;
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = step;
    step *= std::max<int64_t>(in.shape[order[i]], 1);
  }
  return strides;
}

bool same_layout(const graph::TensorMeta& meta, const std::vector<int64_t>& strides) {
  for (size_t i = 0; i < strides.size(); ++i)
    if (meta.shape[i] > 1 && meta.strides[i] != strides[i]) return false;
  return true;
}

}  // namespace

// 14: dtypes outside of the rule's domain, unknown ones, mixed ones; 15: of inputs that the rule
// lets differ from the others, but not from each other.
Verdict dtypes(const Chain& c) {
  const Rule& rule = *c.match.rule;
  std::map<char, DType> common;
  const auto look = [&](ValueId v, const TensorType* type) -> Verdict {
    const char variable = dtype_variable(type);
    if (v == kNone || variable == 0) return std::nullopt;
    const DType dtype = c.context.value(v).meta.dtype;
    if (dtype == DType::kUnknown) return refuse(14, "a dtype is not known", c.last);
    if (rule.domain.starts_with("floating") && !is_floating(dtype) && !is_complex(dtype))
      return refuse(14,
                    fmt::format("the chain computes on {}, where the fused operator raises: it is "
                                "for floating types",
                                dtype_name(dtype)),
                    c.last);
    const auto [known, is_new] = common.try_emplace(variable, dtype);
    if (!is_new && known->second != dtype)
      return refuse(
          variable == 'T' ? 14 : 15,
          fmt::format("the chain mixes {} and {}", dtype_name(known->second), dtype_name(dtype)),
          c.last);
    return std::nullopt;
  };
  for (size_t i = 0; i < c.match.inputs.size(); ++i)
    if (Verdict bad = look(c.match.inputs[i], &rule.parameters[i].tensor)) return bad;
  for (size_t i = 0; i < c.match.outputs.size(); ++i)
    if (Verdict bad =
            look(c.match.outputs[i], i < rule.returns.size() ? &rule.returns[i] : nullptr))
      return bad;
  const auto of_rule = common.find('T');
  if (of_rule == common.end() || rule.dtypes.empty()) return std::nullopt;
  if (std::ranges::find(rule.dtypes, of_rule->second) == rule.dtypes.end())
    return refuse(14, fmt::format("the rule is not for {}", dtype_name(of_rule->second)), c.last);
  return std::nullopt;
}

// 16: an inner value has another dtype than the result: a cast that the fused operator lacks.
Verdict inner_casts(const Chain& c) {
  if (has(*c.match.spelling, kTo)) return std::nullopt;  // the rule says where casts are
  DType dtype = c.context.value(c.match.outputs[0]).meta.dtype;
  for (ValueId v : c.inner) {
    const DType inner = c.context.value(v).meta.dtype;
    if (inner != dtype && is_floating(inner) && is_floating(dtype))
      return refuse(16,
                    fmt::format("{} is computed in {}, the chain's result in {}", name_of(c, v),
                                dtype_name(inner), dtype_name(dtype)),
                    c.context.value(v).producer);
  }
  return std::nullopt;
}

// 12: random numbers are drawn inside the chain.
Verdict random_inside(const Chain& c) {
  for (NodeId id : c.match.nodes)
    if (c.context.node(id).random)
      return refuse(
          12,
          fmt::format("{} draws random numbers: the fused operator would draw others", c.at(id)),
          id);
  return std::nullopt;
}

// 18: no target has a kernel for this dtype and device.
Verdict no_kernel(const Chain& c) {
  const graph::TensorMeta& meta = c.context.value(c.match.outputs[0]).meta;
  if (meta.device < 0) return refuse(18, "the device is not known", c.last);
  if (std::ranges::any_of(c.match.rule->targets, [&](const Target& t) { return takes(t, meta); }))
    return std::nullopt;
  return refuse(18, fmt::format("no target for {} on this device", dtype_name(meta.dtype)), c.last);
}

// 19: operands of different shapes, where the rule says one.
Verdict broadcast(const Chain& c) {
  const graph::TensorMeta& out = c.context.value(c.match.outputs[0]).meta;
  if (!c.match.shapes_known) return refuse(19, "a shape is not known", c.last);
  for (size_t i = 0; i < c.match.inputs.size(); ++i) {
    const ValueId v = c.match.inputs[i];
    if (v == kNone || c.match.rule->parameters[i].tensor.has_shape) continue;  // the matcher's
    const graph::TensorMeta& in = c.context.value(v).meta;
    if (!in.shape_known || !out.shape_known) return refuse(19, "a shape is not known", c.last);
    if (in.shape != out.shape)
      return refuse(19, "an input is broadcast to the result's shape", c.last);
  }
  return std::nullopt;
}

// 20: the recorded result has a layout that the fused operator would not give.
Verdict layout(const Chain& c) {
  if (!c.match.rule->only_found.empty()) return std::nullopt;  // nothing depends on it
  const graph::TensorMeta& out = c.context.value(c.match.outputs[0]).meta;
  for (ValueId v : c.inputs) {
    const graph::TensorMeta& in = c.context.value(v).meta;
    if (!in.shape_known || !out.shape_known || in.shape != out.shape) continue;  // row 19
    if (in.strides.size() != in.shape.size() || out.strides.size() != out.shape.size())
      return refuse(20, "the layout is not known", c.last);
    bool expanded = std::ranges::find(in.strides, 0) != in.strides.end();
    if (!expanded && out.numel() > 0 && !same_layout(out, pointwise_strides(in)))
      return refuse(20, "the chain's result has another layout than the fused operator's would",
                    c.last);
  }
  return std::nullopt;
}

// 34: tensors that are not plain dense ones.
Verdict plain_tensors(const Chain& c) {
  for (const std::set<ValueId>* values : {&c.inputs, &c.inner, &c.outputs})
    for (ValueId v : *values) {
      const graph::TensorMeta& meta = c.context.value(v).meta;
      if (meta.flags & (trace::kSubclass | trace::kConjOrNeg) || is_complex(meta.dtype))
        return refuse(34, "a tensor subclass, a complex or a lazily negated tensor", c.first);
    }
  for (NodeId id : c.match.nodes)
    if (c.context.node(id).opaque || c.context.node(id).region.flags & trace::kOpaqueArguments)
      return refuse(34, fmt::format("{} has tensors that cannot be described", c.at(id)), id);
  return std::nullopt;
}

// What the product does not do yet for any chain of this rule: such a chain is found and reported.
Verdict not_replaced_yet(const Chain& c) {
  if (const std::string reason = found_only(*c.match.rule); !reason.empty())
    return refuse(0, std::string(kFoundOnly) + reason, c.last);
  return std::nullopt;
}

}  // namespace opfuse::match
