#include "opfuse/torch/site_proof_chain.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "opfuse/base/check.h"
#include "opfuse/graph/schema.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::torch_bridge {
namespace {

using graph::Graph;
using graph::kNone;
using graph::Node;
using graph::NodeId;
using graph::ValueId;

// "aten.mul_.Tensor" -> "mul".
std::string base_name(std::string_view op) {
  op.remove_prefix(op.find('.') + 1);
  op = op.substr(0, op.find('.'));
  if (op.ends_with('_') && !op.starts_with('_')) op.remove_suffix(1);
  return std::string(op);
}

bool one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Operators that only move values, or sum them: applied to magnitudes they give magnitudes.
bool linear_in_magnitude(std::string_view op) {
  return one_of(op, {"neg",        "detach",  "alias",        "clone",     "_to_copy", "to",
                     "contiguous", "view",    "_unsafe_view", "reshape",   "expand",   "unsqueeze",
                     "squeeze",    "permute", "transpose",    "t",         "slice",    "select",
                     "sum",        "mean",    "mm",           "bmm",       "matmul",   "addmm",
                     "cumsum",     "mul",     "cat",          "lift_fresh"});
}

double scalar_of(const c10::IValue& value, double otherwise) {
  if (value.isDouble()) return value.toDouble();
  if (value.isInt()) return static_cast<double>(value.toInt());
  if (value.isBool()) return value.toBool() ? 1 : 0;
  return otherwise;
}

bool holds_sizes(const c10::Argument& argument) {
  return one_of(argument.name(), {"size", "sizes", "shape", "stride", "storage_offset",
                                  "input_sizes", "self_sizes", "normalized_shape"});
}

graph::Attr parse_literal(const std::string& text) {
  if (text == "None") return graph::NoneAttr{};
  if (text == "True" || text == "False") return text == "True";
  int64_t whole = 0;
  const char* end = text.data() + text.size();
  if (const auto r = std::from_chars(text.data(), end, whole); r.ec == std::errc() && r.ptr == end)
    return whole;
  double real = 0;
  if (const auto r = std::from_chars(text.data(), end, real); r.ec == std::errc() && r.ptr == end)
    return real;
  return text;
}

}  // namespace

Chain::Key Chain::key_of(const Graph& graph, ValueId id) {
  const graph::Value& value = graph.values[id];
  if (value.storage == kNone) return {kNone, 0, 0, {}, {}, DType::kUnknown, id};
  return {value.storage,    value.version, value.meta.offset, value.meta.shape, value.meta.strides,
          value.meta.dtype, kNone};
}

int Chain::place_of(const Graph& graph, ValueId value) {
  return places_.emplace(key_of(graph, value), static_cast<int>(places_.size())).first->second;
}

Status Chain::add_node(const Graph& graph, NodeId id, const Record* record) {
  const Node& node = graph.nodes[id];
  OPFUSE_TRY(Operation operation, make_operation(graph, id, record));
  if (!operation.op) return ok_status();
  for (size_t i = 0; i < operation.arguments.size(); ++i) {
    OperationArgument& argument = operation.arguments[i];
    has_dtype_arguments_ |= argument.is_dtype && argument.constant.isInt();
    if (holds_sizes(operation.op->schema().arguments()[i]) && size_holder_.empty())
      size_holder_ = describe_node(graph, id);
    for (ValueId& value : argument.values) {
      if (value == kNone) continue;
      const graph::Value& source = graph.values[value];
      const auto known = places_.find(key_of(graph, value));
      if (known != places_.end()) {
        value = known->second;
        continue;
      }
      if (!source.meta.number)
        return Error{describe_node(graph, id) + " reads a value from outside of the chain"};
      const int place = place_of(graph, value);
      numbers_[place] = *source.meta.number;
      number_dtypes_[place] = static_cast<c10::ScalarType>(source.meta.dtype);
      value = place;
    }
  }
  Step step;
  step.op = base_name(node.op);
  pointwise_ &= (node.schema != nullptr && node.schema->pointwise) ||
                one_of(step.op, {"detach", "alias", "clone", "_to_copy"});
  for (ValueId value : node.outputs)
    step.results.push_back(value == kNone ? kNone : place_of(graph, value));
  step.operation = std::move(operation);
  steps_.push_back(std::move(step));
  return ok_status();
}

Result<Chain> Chain::make(const Graph& graph, std::span<const NodeId> nodes,
                          std::span<const ValueId> inputs, std::span<const ValueId> outputs,
                          const Record* record) {
  Chain chain;
  for (ValueId value : inputs)
    chain.inputs_.push_back(value == kNone ? kNone : chain.place_of(graph, value));
  for (NodeId id : nodes) {
    for (ValueId written : graph.nodes[id].writes)
      if (std::find(inputs.begin(), inputs.end(), written) != inputs.end())
        return Error{describe_node(graph, id) + " writes into an input of the chain"};
    OPFUSE_TRY_STATUS(chain.add_node(graph, id, record));
  }
  for (ValueId value : outputs) {
    const auto place = chain.places_.find(key_of(graph, value));
    if (place == chain.places_.end())
      return Error{"expected every result to be made by the chain, found one that is not"};
    chain.outputs_.push_back(place->second);
  }
  return chain;
}

namespace {

// Masks have no absolute value in ATen; as numbers they are their own.
at::Tensor size_of(const at::Tensor& t) {
  return t.scalar_type() == c10::kBool ? t.to(c10::kDouble) : at::abs(t);
}

at::Tensor number_tensor(double number, c10::ScalarType dtype) {
  at::Tensor tensor = c10::isIntegralType(dtype, true)
                          ? at::scalar_tensor(static_cast<int64_t>(number), dtype)
                          : at::scalar_tensor(number, c10::kDouble);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

}  // namespace

std::vector<at::Tensor> Chain::run(std::span<const at::Tensor> inputs) const {
  std::vector<at::Tensor> values(places_.size());
  for (size_t i = 0; i < inputs_.size(); ++i)
    if (inputs_[i] != kNone) values[inputs_[i]] = inputs[i];
  for (const auto& [place, number] : numbers_)
    values[place] = number_tensor(number, number_dtypes_.at(place));
  const TensorSource source = [&](ValueId place) {
    return place == kNone ? at::Tensor() : values[place];
  };
  for (const Step& step : steps_) {
    torch::jit::Stack stack = make_stack(step.operation, source, false, c10::kFloat);
    step.operation.op->callBoxed(stack);
    const std::vector<at::Tensor> results = flatten_results(stack);
    for (size_t k = 0; k < step.results.size() && k < results.size(); ++k)
      if (step.results[k] != kNone) values[step.results[k]] = results[k];
  }
  std::vector<at::Tensor> outputs;
  for (int place : outputs_) outputs.push_back(values[place]);
  return outputs;
}

at::Tensor Chain::magnitude(const Step& step, const std::vector<at::Tensor>& values,
                            const std::vector<at::Tensor>& magnitudes,
                            const at::Tensor& result) const {
  const std::vector<OperationArgument>& arguments = step.operation.arguments;
  const auto is_tensor = [&](size_t i) {
    return i < arguments.size() && !arguments[i].values.empty() && arguments[i].values[0] != kNone;
  };
  // Tensor arguments by their magnitude, numbers by their absolute value.
  const auto term = [&](size_t i) -> at::Tensor {
    if (is_tensor(i)) return magnitudes[arguments[i].values[0]];
    return number_tensor(std::abs(scalar_of(arguments[i].constant, 1)), c10::kDouble);
  };
  if (one_of(step.op, {"add", "sub", "rsub"})) {
    const double alpha = arguments.size() > 2 ? std::abs(scalar_of(arguments[2].constant, 1)) : 1;
    return step.op == "rsub" ? term(0) * alpha + term(1) : term(0) + term(1) * alpha;
  }
  if (step.op == "div" && arguments.size() == 2) {
    const at::Tensor denominator = is_tensor(1) ? at::abs(values[arguments[1].values[0]]) : term(1);
    return term(0) / denominator * (term(1) / denominator);
  }
  if (step.op == "sigmoid_backward") return term(0) * (term(1) + 1) * term(1);
  if (step.op == "tanh_backward") return term(0) * (term(1) * term(1) + 1);
  if (step.op == "silu_backward" && is_tensor(1)) {
    const at::Tensor s = values[arguments[1].values[0]].sigmoid();
    return term(0) * s * (term(1) * (s + 1) + 1);
  }
  if (linear_in_magnitude(step.op)) {
    const TensorSource source = [&](ValueId place) {
      return place == kNone ? at::Tensor() : magnitudes[place];
    };
    torch::jit::Stack stack = make_stack(step.operation, source, true, c10::kDouble);
    step.operation.op->callBoxed(stack);
    return at::abs(flatten_results(stack)[0]);
  }
  return size_of(result);
}

Chain::Double Chain::run_double(std::span<const at::Tensor> inputs) const {
  // Below the smallest normal number fp64 itself knows values to its spacing only; every result
  // carries that much magnitude, so that later factors scale it up as they scale the error.
  constexpr double kSmallest = std::numeric_limits<double>::min();
  std::vector<at::Tensor> values(places_.size()), magnitudes(places_.size());
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i] == kNone) continue;
    values[inputs_[i]] = inputs[i];
    magnitudes[inputs_[i]] = at::abs(inputs[i]);
  }
  for (const auto& [place, number] : numbers_) {
    values[place] = number_tensor(number, number_dtypes_.at(place));
    magnitudes[place] = number_tensor(std::abs(number), number_dtypes_.at(place));
  }
  const TensorSource source = [&](ValueId place) {
    return place == kNone ? at::Tensor() : values[place];
  };
  for (const Step& step : steps_) {
    // In-place operators overwrite an operand: its magnitude is needed before its value is lost.
    const bool in_place = step.operation.op->schema().is_mutable();
    torch::jit::Stack stack = make_stack(step.operation, source, true, c10::kDouble);
    at::Tensor size;
    if (in_place) size = magnitude(step, values, magnitudes, values[step.results[0]]).clone();
    step.operation.op->callBoxed(stack);
    const std::vector<at::Tensor> results = flatten_results(stack);
    for (size_t k = 0; k < step.results.size() && k < results.size(); ++k) {
      if (step.results[k] == kNone) continue;
      if (!in_place || k > 0)
        size = k == 0 ? magnitude(step, values, magnitudes, results[k]) : size_of(results[k]);
      values[step.results[k]] = results[k];
      magnitudes[step.results[k]] = at::clamp_min(size, kSmallest);
    }
  }
  Double out;
  for (int place : outputs_) {
    out.values.push_back(values[place]);
    out.magnitudes.push_back(magnitudes[place]);
  }
  return out;
}

Result<Chain> composition_chain(const match::Rule& rule) {
  const Graph& graph = rule.composition.graph;
  std::vector<NodeId> nodes;
  for (NodeId id = 0; id < static_cast<NodeId>(graph.nodes.size()); ++id) nodes.push_back(id);
  std::vector<ValueId> inputs;
  for (ValueId id = 0; id < static_cast<ValueId>(graph.values.size()); ++id)
    if (graph.values[id].producer == kNone && !graph.values[id].meta.number) inputs.push_back(id);
  if (inputs.size() != rule.parameters.size())
    return Error{"rule " + rule.name + ": expected one value of its composition per parameter"};
  return Chain::make(graph, nodes, inputs, graph.results, nullptr);
}

Result<Chain> target_chain(const match::Rule& rule, const match::Target& target) {
  Graph graph;
  Node node;
  node.op = target.op;
  node.schema = graph::SchemaTable::builtin().find(target.op);
  std::vector<ValueId> inputs;
  for (size_t i = 0; i < rule.parameters.size(); ++i) {
    inputs.push_back(static_cast<ValueId>(i));
    graph.values.emplace_back();
  }
  for (const std::string& text : target.arguments) {
    graph::Input input;
    const auto parameter =
        std::find_if(rule.parameters.begin(), rule.parameters.end(),
                     [&](const match::RuleParameter& p) { return p.name == text; });
    if (parameter != rule.parameters.end()) {
      input.kind = graph::InputKind::kTensor;
      input.values = {static_cast<ValueId>(parameter - rule.parameters.begin())};
    } else {
      input.attr = parse_literal(text);
    }
    node.inputs.push_back(std::move(input));
  }
  graph.values.emplace_back();
  const ValueId result = static_cast<ValueId>(graph.values.size() - 1);
  graph.values[result].producer = 0;
  node.outputs = {result};
  graph.nodes.push_back(std::move(node));
  return Chain::make(graph, std::vector<NodeId>{0}, inputs, std::vector<ValueId>{result}, nullptr);
}

}  // namespace opfuse::torch_bridge
