#include "opfuse/torch/site_proof_chain.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "opfuse/base/check.h"
#include "opfuse/graph/schema.h"
#include "opfuse/match/rule_functions.h"
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
  if (text.size() >= 2 && text.front() == '"') return text.substr(1, text.size() - 2);
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
  // Parts of one tensor in a rule: which bytes they are, its graph does not say.
  if (value.storage == kNone || !value.meta.shape_known)
    return {kNone, 0, 0, {}, {}, DType::kUnknown, id};
  return {value.storage,    value.version, value.meta.offset, value.meta.shape, value.meta.strides,
          value.meta.dtype, kNone};
}

int Chain::place_of(const Graph& graph, ValueId value) {
  return places_.emplace(key_of(graph, value), static_cast<int>(places_.size())).first->second;
}

Status Chain::add_node(const Graph& graph, NodeId id, const Record* record) {
  const Node& node = graph.nodes[id];
  if (node.op == match::kTo) {  // a cast of a rule: in fp64 it changes nothing
    places_[key_of(graph, node.outputs[0])] = place_of(graph, node.inputs[0].values[0]);
    return ok_status();
  }
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
                one_of(step.op, {"detach", "alias", "clone", "_to_copy", "hardtanh",
                                 "hardtanh_backward", "hardsigmoid", "hardsigmoid_backward",
                                 "softplus", "softplus_backward", "silu_backward", "gelu_backward",
                                 "sigmoid_backward", "tanh_backward", "threshold_backward"});
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

std::vector<at::Tensor> Chain::run(std::span<const at::Tensor> inputs, bool raise) const {
  std::vector<at::Tensor> values(places_.size());
  for (size_t i = 0; i < inputs_.size(); ++i)
    if (inputs_[i] != kNone) values[inputs_[i]] = inputs[i];
  for (const auto& [place, number] : numbers_)
    values[place] = number_tensor(number, number_dtypes_.at(place));
  const TensorSource source = [&](ValueId place) {
    return place == kNone ? at::Tensor() : values[place];
  };
  for (const Step& step : steps_) {
    torch::jit::Stack stack = make_stack(step.operation, source, raise, c10::kFloat);
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
                            const std::vector<at::Tensor>& magnitudes, const at::Tensor& result,
                            double smallest) const {
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
  // An argument that is off by its magnitude's roundoff moves these by their condition number.
  if (step.op == "pow" && arguments.size() == 2 && !is_tensor(1)) {
    const double power = scalar_of(arguments[1].constant, 1);
    if (power > 0) return at::pow(term(0), power);
  }
  if (is_tensor(0) && one_of(step.op, {"sqrt", "rsqrt", "reciprocal", "exp"})) {
    const at::Tensor size = at::abs(values[arguments[0].values[0]]);
    if (step.op == "exp")  // exp(-inf) is 0 whatever led there
      return at::abs(result) * (at::nan_to_num(term(0) - size, 0.0) + 1);
    return at::abs(result) * at::where(size > 0, term(0) / size, at::ones_like(size));
  }
  if (linear_in_magnitude(step.op)) {
    const TensorSource source = [&](ValueId place) {
      return place == kNone ? at::Tensor() : magnitudes[place];
    };
    torch::jit::Stack stack = make_stack(step.operation, source, true, c10::kDouble);
    step.operation.op->callBoxed(stack);
    return at::abs(flatten_results(stack)[0]);
  }
  // The sum with 3 that it begins with.
  if (step.op == "hardsigmoid") return at::clamp_max((term(0) + 3) / 6, 1);
  // A factor that underflowed is scaled up by the cotangent.
  if (step.op.ends_with("_backward") && is_tensor(0) && result.is_floating_point() &&
      term(0).sizes() == result.sizes())
    return at::maximum(size_of(result), term(0) * smallest);
  return size_of(result);
}

Chain::Double Chain::run_double(std::span<const at::Tensor> inputs, double smallest) const {
  std::vector<at::Tensor> values(places_.size()), magnitudes(places_.size());
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i] == kNone) continue;
    values[inputs_[i]] = inputs[i];
    magnitudes[inputs_[i]] = size_of(inputs[i]);
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
    if (in_place)
      size = magnitude(step, values, magnitudes, values[step.results[0]], smallest).clone();
    step.operation.op->callBoxed(stack);
    const std::vector<at::Tensor> results = flatten_results(stack);
    for (size_t k = 0; k < step.results.size() && k < results.size(); ++k) {
      if (step.results[k] == kNone) continue;
      if (!in_place || k > 0)
        size = k == 0 ? magnitude(step, values, magnitudes, results[k], smallest)
                      : size_of(results[k]);
      values[step.results[k]] = results[k];
      magnitudes[step.results[k]] = at::clamp_min(size, smallest);
    }
  }
  Double out;
  for (int place : outputs_) {
    out.values.push_back(values[place]);
    out.magnitudes.push_back(magnitudes[place]);
  }
  return out;
}

namespace {

// The way of writing the rule that has the match's optional parameters.
const match::Spelling& meaning_of(const match::Match& match) {
  const match::Rule& rule = *match.rule;
  const uint32_t absent = match.spelling ? match.spelling->absent : 0;
  if (absent == rule.composition.absent) return rule.composition;
  for (const match::Spelling& one : rule.alternatives)
    if (one.absent == absent) return one;
  return *match.spelling;
}

std::optional<double> bound(const match::Match& match, size_t name) {
  return name < match.numbers.size() ? match.numbers[name] : std::nullopt;
}

graph::Attr number_attr(double value) {
  if (std::floor(value) == value && std::abs(value) < 1e15) return static_cast<int64_t>(value);
  return value;
}

// "number 2" and "number.2": the third number of the spelling, as this match binds it.
Result<double> open_number(const match::Spelling& spelling, const match::Match& match,
                           std::string_view text) {
  const size_t index = std::strtoul(std::string(text.substr(7)).c_str(), nullptr, 10);
  if (index < spelling.numbers.size())
    if (const auto value = match::value_of(spelling.numbers[index], match.numbers)) return *value;
  return Error{"rule " + match.rule->name + ": a number of its composition is not known here"};
}

// The graph of a rule with the match's numbers in its open places.
Result<Graph> closed(const match::Spelling& spelling, const match::Match& match) {
  Graph graph = spelling.graph;
  for (Node& node : graph.nodes) {
    if (node.op == match::kReshape)
      return Error{"rule " + match.rule->name +
                   ": its composition leaves shapes open, and is not compared yet"};
    // chunk(x, 2): the parts' size follows from what they are parts of.
    if (node.op == "aten.split.Tensor" &&
        std::holds_alternative<graph::OpaqueAttr>(node.inputs[1].attr)) {
      node.op = "aten.chunk";
      node.schema = graph::SchemaTable::builtin().find(node.op);
      node.inputs[1].attr = static_cast<int64_t>(node.outputs.size());
    }
    for (graph::Input& input : node.inputs)
      if (const auto* open = std::get_if<graph::OpaqueAttr>(&input.attr);
          open && open->type.starts_with("number ")) {
        OPFUSE_TRY(double value, open_number(spelling, match, open->type));
        input.attr = number_attr(value);
      }
  }
  for (graph::Value& value : graph.values)
    if (value.producer == kNone && value.name.starts_with("number.")) {
      OPFUSE_TRY(value.meta.number, open_number(spelling, match, value.name));
    }
  return graph;
}

// One parameter's value id in the graphs made here, or kNone where it is absent or a number.
std::vector<ValueId> parameter_values(const match::Match& match) {
  std::vector<ValueId> values;
  for (size_t i = 0; i < match.rule->parameters.size(); ++i) {
    const bool given =
        match.rule->parameters[i].is_tensor && i < match.inputs.size() && match.inputs[i] != kNone;
    values.push_back(given ? static_cast<ValueId>(i) : kNone);
  }
  return values;
}

// "[n]", "[1, n]": sizes by their names.
Result<graph::Attr> list_attr(const match::Match& match, const std::string& text) {
  const std::vector<std::string> names = match.rule->number_names();
  std::vector<int64_t> values;
  for (size_t at = 1; at < text.size() && text[at] != ']';) {
    const size_t end = text.find_first_of(",]", at);
    const std::string word = text.substr(at, end - at);
    const auto name = std::find(names.begin(), names.end(), word);
    const auto value = name == names.end() ? std::optional(std::strtod(word.c_str(), nullptr))
                                           : bound(match, name - names.begin());
    if (!value) return Error{"the size " + word + " is not known here"};
    values.push_back(static_cast<int64_t>(*value));
    at = text[end] == ',' ? end + 2 : end;
  }
  return graph::Attr{values};
}

Result<graph::Input> target_input(const match::Match& match, const std::string& text) {
  graph::Input input;
  const std::vector<match::RuleParameter>& parameters = match.rule->parameters;
  const auto parameter =
      std::find_if(parameters.begin(), parameters.end(),
                   [&](const match::RuleParameter& p) { return p.name == text; });
  if (parameter == parameters.end()) {
    if (text.starts_with("[")) {
      OPFUSE_TRY(input.attr, list_attr(match, text));
    } else {
      input.attr = parse_literal(text);
    }
    return input;
  }
  const size_t index = parameter - parameters.begin();
  if (!parameter->is_tensor) {
    const auto value = bound(match, index);
    if (!value) return Error{"the number " + text + " is not known here"};
    input.attr = parameter->type == "bool" ? graph::Attr{*value != 0} : number_attr(*value);
    return input;
  }
  input.kind = graph::InputKind::kTensor;
  input.values = {parameter_values(match)[index]};
  return input;
}

}  // namespace

Result<Chain> composition_chain(const match::Match& match) {
  OPFUSE_TRY(const Graph graph, closed(meaning_of(match), match));
  std::vector<NodeId> nodes;
  for (NodeId id = 0; id < static_cast<NodeId>(graph.nodes.size()); ++id) nodes.push_back(id);
  return Chain::make(graph, nodes, parameter_values(match), graph.results, nullptr);
}

Result<Chain> target_chain(const match::Match& match, const match::Target& target) {
  Graph graph;
  Node node;
  node.op = target.op;
  node.schema = graph::SchemaTable::builtin().find(target.op);
  graph.values.resize(match.rule->parameters.size());
  for (const std::string& text : target.arguments) {
    OPFUSE_TRY(graph::Input input, target_input(match, text));
    node.inputs.push_back(std::move(input));
  }
  const auto first = static_cast<size_t>(std::max(target.result, 0));
  node.outputs.assign(first, kNone);
  std::vector<ValueId> results;
  for (size_t i = 0; i < match.outputs.size(); ++i) {
    results.push_back(static_cast<ValueId>(graph.values.size()));
    graph.values.emplace_back();
    graph.values.back().producer = 0;
    graph.values.back().output = static_cast<int>(first + i);
  }
  node.outputs.insert(node.outputs.end(), results.begin(), results.end());
  graph.nodes.push_back(std::move(node));
  return Chain::make(graph, std::vector<NodeId>{0}, parameter_values(match), results, nullptr);
}

}  // namespace opfuse::torch_bridge
