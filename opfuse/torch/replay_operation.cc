#include "opfuse/torch/replay_operation.h"

#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>

#include <algorithm>

namespace opfuse::torch_bridge {
namespace {

using graph::Attr;
using graph::kNone;
using graph::Node;

// Reads of values by Python, communication and bookkeeping: they make no tensor of the step, and
// what they write arrives as a write from outside. A storage that set_ adopts is an input.
bool runs_nothing(const Node& node) {
  static constexpr std::string_view kSkipped[] = {
      "aten.item",       "aten._local_scalar_dense",
      "aten.is_nonzero", "aten.equal",
      "aten.set_data",   "aten._has_compatible_shallow_copy_type"};
  const std::string_view op = node.op;
  if (op.starts_with("profiler.") || op.starts_with("c10d.")) return true;
  if (op.starts_with("aten.set_.source_Storage")) return true;
  if (op.starts_with("aten._assert") || op.starts_with("aten.record_stream")) return true;
  return std::find(std::begin(kSkipped), std::end(kSkipped), op) != std::end(kSkipped);
}

std::optional<c10::OperatorHandle> find_operator(std::string_view dotted) {
  const size_t dot = dotted.find('.');
  if (dot == dotted.npos) return std::nullopt;
  std::string name = std::string(dotted.substr(0, dot)) + "::";
  const std::string_view rest = dotted.substr(dot + 1);
  const size_t second = rest.find('.');
  name += rest.substr(0, second);
  const std::string overload(second == rest.npos ? std::string_view() : rest.substr(second + 1));
  return c10::Dispatcher::singleton().findSchema({name, overload});
}

bool is_kind(const c10::TypePtr& type, c10::TypeKind kind) {
  if (type->kind() == kind) return true;
  return type->kind() == c10::TypeKind::OptionalType &&
         type->castRaw<c10::OptionalType>()->getElementType()->kind() == kind;
}

c10::TypePtr without_optional(c10::TypePtr type) {
  if (auto optional = type->cast<c10::OptionalType>()) return optional->getElementType();
  return type;
}

std::optional<c10::IValue> list_from(const c10::TypePtr& element, const Attr& attr) {
  const c10::TypeKind kind = element->kind();
  if (const auto* ints = std::get_if<std::vector<int64_t>>(&attr)) {
    if (kind == c10::TypeKind::IntType) return c10::IValue(*ints);
    if (kind == c10::TypeKind::FloatType)
      return c10::IValue(std::vector<double>(ints->begin(), ints->end()));
    if (ints->empty() && kind == c10::TypeKind::BoolType) return c10::IValue(c10::List<bool>());
  }
  if (const auto* doubles = std::get_if<std::vector<double>>(&attr)) {
    if (kind == c10::TypeKind::FloatType) return c10::IValue(*doubles);
  }
  if (const auto* bools = std::get_if<std::vector<bool>>(&attr)) {
    if (kind != c10::TypeKind::BoolType) return std::nullopt;
    c10::List<bool> list;
    for (bool b : *bools) list.push_back(b);
    return c10::IValue(list);
  }
  return std::nullopt;
}

// The attribute as the schema's type wants it; nothing when it cannot be written so.
std::optional<c10::IValue> value_from(const c10::Argument& argument, const Attr& attr) {
  if (std::holds_alternative<graph::NoneAttr>(attr)) return c10::IValue();
  const c10::TypePtr type = without_optional(argument.type());
  if (auto list = type->cast<c10::ListType>()) {
    // Elements stand for themselves where one number is meant for each dimension.
    if (const auto* one = std::get_if<int64_t>(&attr);
        one && argument.N() && list->getElementType()->kind() == c10::TypeKind::IntType)
      return c10::IValue(std::vector<int64_t>(*argument.N(), *one));
    return list_from(list->getElementType(), attr);
  }
  const c10::TypeKind kind = type->kind();
  if (const auto* flag = std::get_if<bool>(&attr)) {
    if (kind == c10::TypeKind::BoolType || kind == c10::TypeKind::NumberType) return *flag;
  } else if (const auto* whole = std::get_if<int64_t>(&attr)) {
    if (kind == c10::TypeKind::FloatType) return c10::IValue(static_cast<double>(*whole));
    if (kind == c10::TypeKind::IntType || kind == c10::TypeKind::NumberType)
      return c10::IValue(*whole);
    if (kind == c10::TypeKind::BoolType) return c10::IValue(*whole != 0);
  } else if (const auto* real = std::get_if<double>(&attr)) {
    if (kind == c10::TypeKind::FloatType || kind == c10::TypeKind::NumberType)
      return c10::IValue(*real);
  } else if (const auto* text = std::get_if<std::string>(&attr)) {
    if (kind == c10::TypeKind::StringType) return c10::IValue(*text);
    if (kind == c10::TypeKind::DeviceObjType && text->find_first_of("?<") == text->npos)
      return c10::IValue(c10::Device(*text));
  }
  return std::nullopt;
}

const c10::IValue* recorded_attribute(const Record* record, const Node& node, size_t index) {
  if (!record || node.event == kNone) return nullptr;
  const Call& call = record->calls[node.event];
  return index < call.attributes.size() ? &call.attributes[index] : nullptr;
}

Result<c10::IValue> constant_of(const graph::Graph& graph, graph::NodeId id, size_t index,
                                const c10::Argument& argument, const Record* record) {
  const Node& node = graph.nodes[id];
  if (index < node.inputs.size()) {
    if (auto value = value_from(argument, node.inputs[index].attr)) return *value;
  }
  if (const c10::IValue* value = recorded_attribute(record, node, index)) return *value;
  if (argument.default_value()) return *argument.default_value();
  return Error{describe_node(graph, id) + ": expected a value for its argument " + argument.name() +
               ", found none"};
}

ArgumentForm tensor_form(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::TensorType) return ArgumentForm::kTensor;
  if (is_kind(type, c10::TypeKind::TensorType)) return ArgumentForm::kOptionalTensor;
  const auto list = without_optional(type)->cast<c10::ListType>();
  if (!list) return ArgumentForm::kConstant;
  if (list->getElementType()->kind() == c10::TypeKind::TensorType) return ArgumentForm::kList;
  return is_kind(list->getElementType(), c10::TypeKind::TensorType) ? ArgumentForm::kOptionalList
                                                                    : ArgumentForm::kConstant;
}

Result<OperationArgument> make_argument(const graph::Graph& graph, graph::NodeId id, size_t index,
                                        const c10::Argument& formal, const Record* record) {
  const Node& node = graph.nodes[id];
  OperationArgument argument;
  argument.form = tensor_form(formal.type());
  argument.is_dtype = is_kind(formal.real_type(), c10::TypeKind::ScalarTypeType);
  argument.is_generator = is_kind(formal.type(), c10::TypeKind::GeneratorType);
  argument.is_written = formal.alias_info() && formal.alias_info()->isWrite();
  const bool given = index < node.inputs.size();
  const bool tensors = given && node.inputs[index].kind != graph::InputKind::kAttr;
  if (argument.form == ArgumentForm::kConstant) {
    if (tensors)
      return Error{describe_node(graph, id) + ": expected a " + formal.type()->str() + " for " +
                   formal.name() + ", found a tensor"};
    OPFUSE_TRY(argument.constant, constant_of(graph, id, index, formal, record));
  } else if (tensors) {
    argument.values = node.inputs[index].values;
  } else if (argument.form == ArgumentForm::kTensor ||
             argument.form == ArgumentForm::kOptionalTensor) {
    argument.values = {kNone};
  } else {
    // A list that is absent (None) or empty.
    if (argument.form == ArgumentForm::kList &&
        formal.type()->kind() == c10::TypeKind::OptionalType)
      argument.form = ArgumentForm::kConstant;
  }
  return argument;
}

}  // namespace

std::string describe_node(const graph::Graph& graph, graph::NodeId id) {
  const Node& node = graph.nodes[id];
  if (node.positions.empty()) return node.op + " (operator " + std::to_string(id + 1) + ")";
  const graph::Position& position = graph.positions[node.positions[0]];
  return node.op + " at " + position.file + ":" + std::to_string(position.line);
}

Result<Operation> make_operation(const graph::Graph& graph, graph::NodeId id,
                                 const Record* record) {
  const Node& node = graph.nodes[id];
  Operation operation;
  operation.node = id;
  if (runs_nothing(node)) return operation;
  if (record && node.event != kNone && static_cast<size_t>(node.event) < record->calls.size())
    operation.op = record->calls[node.event].op;
  if (!operation.op ||
      graph::dotted_name(operation.op->schema().name() +
                         (operation.op->schema().overload_name().empty()
                              ? ""
                              : "." + operation.op->schema().overload_name())) != node.op)
    operation.op = find_operator(node.op);
  if (!operation.op)
    return Error{describe_node(graph, id) + ": expected an operator of the dispatcher, found none"};
  const std::vector<c10::Argument>& formals = operation.op->schema().arguments();
  if (node.inputs.size() > formals.size())
    return Error{describe_node(graph, id) + ": expected at most " + std::to_string(formals.size()) +
                 " arguments, found " + std::to_string(node.inputs.size())};
  for (size_t i = 0; i < formals.size(); ++i) {
    OPFUSE_TRY(OperationArgument argument, make_argument(graph, id, i, formals[i], record));
    operation.reads_tensors |= std::any_of(argument.values.begin(), argument.values.end(),
                                           [](graph::ValueId v) { return v != kNone; });
    operation.arguments.push_back(std::move(argument));
  }
  operation.changes_geometry = operation.op->hasTag(at::Tag::inplace_view);
  return operation;
}

c10::ScalarType raised(c10::ScalarType dtype) {
  if (c10::isFloatingType(dtype)) return c10::kDouble;
  return c10::isComplexType(dtype) ? c10::kComplexDouble : dtype;
}

torch::jit::Stack make_stack(const Operation& operation, const TensorSource& tensors, bool raise,
                             c10::ScalarType result) {
  torch::jit::Stack stack;
  stack.reserve(operation.arguments.size());
  for (const OperationArgument& argument : operation.arguments) {
    switch (argument.form) {
      case ArgumentForm::kTensor:
        stack.emplace_back(tensors(argument.values[0]));
        break;
      case ArgumentForm::kOptionalTensor:
        stack.emplace_back(argument.values[0] == kNone ? c10::IValue()
                                                       : c10::IValue(tensors(argument.values[0])));
        break;
      case ArgumentForm::kList: {
        c10::List<at::Tensor> list;
        for (graph::ValueId value : argument.values) list.push_back(tensors(value));
        stack.emplace_back(std::move(list));
        break;
      }
      case ArgumentForm::kOptionalList: {
        c10::List<std::optional<at::Tensor>> list;
        for (graph::ValueId value : argument.values)
          list.push_back(value == kNone ? std::nullopt : std::optional(tensors(value)));
        stack.emplace_back(std::move(list));
        break;
      }
      case ArgumentForm::kConstant: {
        const c10::IValue& value = argument.constant;
        if (raise && argument.is_dtype && value.isInt())
          stack.emplace_back(
              static_cast<int64_t>(raised(static_cast<c10::ScalarType>(value.toInt()))));
        else if (raise && argument.is_dtype && value.isNone() && !operation.reads_tensors)
          stack.emplace_back(static_cast<int64_t>(raised(result)));
        else if (raise && value.isDevice())
          stack.emplace_back(c10::Device(c10::kCPU));
        else
          stack.push_back(value.isList() ? value.deepcopy() : value);
        break;
      }
    }
  }
  return stack;
}

std::vector<at::Tensor> flatten_results(const torch::jit::Stack& stack) {
  std::vector<at::Tensor> results;
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) {
      results.push_back(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) results.push_back(tensor);
    }
  }
  return results;
}

}  // namespace opfuse::torch_bridge
