#include "opfuse/rewrite/span_walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "opfuse/graph/schema.h"
#include "opfuse/rewrite/span_dtypes.h"
#include "opfuse/rewrite/span_source.h"

namespace opfuse::rewrite {
namespace {

using match::Refusal;
using Refused = std::optional<Refusal>;

// "aten.mul.Tensor" -> "mul"; "" outside aten.
std::string_view base_name(std::string_view op) {
  if (!op.starts_with("aten.")) return "";
  op.remove_prefix(5);
  return op.substr(0, op.find('.'));
}

std::optional<double> recorded_constant(const graph::Graph& graph, const graph::Input& input) {
  if (input.kind == graph::InputKind::kTensor)
    return input.values[0] == graph::kNone ? std::nullopt
                                           : graph.values[input.values[0]].meta.number;
  if (const auto* number = std::get_if<double>(&input.attr)) return *number;
  if (const auto* number = std::get_if<int64_t>(&input.attr)) return static_cast<double>(*number);
  if (const auto* list = std::get_if<std::vector<int64_t>>(&input.attr); list && list->size() == 1)
    return static_cast<double>((*list)[0]);  // `dim=-1` is recorded as [-1]
  return {};
}

// What an operation of the source gives.
struct Result {
  graph::ValueId value = graph::kNone;
  DTypeSources dtype;
  // A cast of a name that no parameter has yet: the value is known at its first use.
  std::string cast_of = {};
  DType cast_to = DType::kUnknown;
};

// Walks the span's operations beside the recorded ones.
class SpanWalk {
 public:
  SpanWalk(const graph::Graph& graph, const match::Match& match, const SiteFacts& facts)
      : graph_(graph), match_(match), facts_(facts), names_(match.inputs.size()) {}

  SpanProof run() {
    for (const OperationFact& operation : facts_.operations)
      if (!account(operation)) return {refusal_, {}, {}};
    if (next_ != match_.nodes.size())
      return fail(fmt::format("the recorded {} has no operation of its own in the source",
                              graph_.nodes[match_.nodes[next_]].op));
    if (facts_.operations.empty() || facts_.operations.back().span.begin != facts_.span.begin ||
        facts_.operations.back().span.end != facts_.span.end)
      return fail("its last operation is not the whole expression");
    if (match_.outputs.size() != 1 || match_.outputs[0] != results_.back().value)
      return fail("its value is not the value of the chain");
    for (size_t i = 0; i < names_.size(); i++)
      if (match_.inputs[i] != graph::kNone && names_[i].empty())
        return fail(fmt::format("input {} of the rule is not read in the source", i + 1));
    if (!same_result_dtype()) return {refusal_, {}, {}};
    std::sort(expressions_.begin(), expressions_.end());
    std::vector<int> order;
    for (const auto& one : expressions_) order.push_back(one.second);
    return {std::nullopt, names_, order};
  }

 private:
  SpanProof fail(std::string why) {
    stop(std::move(why));
    return {refusal_, {}, {}};
  }

  bool stop(std::string why) {
    if (!refusal_)
      refusal_ = Refusal{
          36, fmt::format("the expression is not proved to be the chain for every call: {}", why),
          next_ < match_.nodes.size() ? match_.nodes[next_] : graph::kNone};
    return false;
  }

  // A cast that changed nothing in the recorded calls may change the dtype at another one.
  bool same_result_dtype() {
    const DTypeSources target = composition_dtype(match_);
    const DTypeSources& here = results_.back().dtype;
    if (here == target) return true;
    refusal_ = Refusal{16,
                       fmt::format("its result has the dtype of {}, the fused operator's that of "
                                   "{}: they may differ at another call",
                                   here.words(names_), target.words(names_)),
                       match_.nodes.back()};
    return false;
  }

  bool account(const OperationFact& operation) {
    dtype_ = {};
    const std::string_view own = own_name(operation.callee);
    if (is_cast(own)) return account_cast(operation);
    if (own == "chunk") return account_chunk(operation);
    const std::string_view name = operator_of(operation.callee);
    if (name.empty()) return stop(fmt::format("\"{}\" is not a known operator", operation.callee));
    if (next_ == match_.nodes.size())
      return stop(fmt::format("\"{}\" is not part of what was recorded", operation.callee));
    const graph::Node& node = graph_.nodes[match_.nodes[next_]];
    std::vector<std::string> arguments = operation.arguments;
    std::string_view recorded = base_name(node.op);
    if (operation.callee.ends_with(".relu6")) {  // recorded with its bounds
      if (arguments.size() != 1) return stop("relu6 is called with further arguments");
      arguments.insert(arguments.end(), {"const:0", "const:6"});
    }
    // Beside a constant a name is a tensor's: two numbers record nothing.
    const bool swaps =
        arguments.size() == 2 && is_number(arguments[0]) && !constant_of(arguments[1]);
    // `x * self.scale` and `self.scale * x` are recorded alike.
    const bool either = name == "add" || name == "mul";
    const auto read = [](const std::string& argument) { return argument.starts_with("read:"); };
    if (swaps && either && std::ranges::all_of(arguments, read) && is_number(arguments[1]))
      return stop(fmt::format("which of {} and {} is the number is not known",
                              arguments[0].substr(5), arguments[1].substr(5)));
    // `1 - x` is recorded as rsub(x, 1); `1 + x` and `2 * x` as add(x, 1) and mul(x, 2).
    if (swaps && ((name == "sub" && recorded == "rsub") || name == "add" || name == "mul")) {
      std::swap(arguments[0], arguments[1]);
      if (name == "sub") recorded = "sub";
    }
    if (swaps && name == "div" && recorded == "reciprocal") return account_reciprocal(arguments);
    if (recorded != name)
      return stop(fmt::format("\"{}\" was recorded as {}", operation.callee, node.op));
    for (size_t i = 0; i < arguments.size(); i++)
      if (!account_argument(operation, node, i, split_argument(arguments[i]))) return false;
    return finish(node);
  }

  bool account_argument(const OperationFact& operation, const graph::Node& node, size_t position,
                        const Argument& argument) {
    size_t index = position;
    if (!argument.name.empty()) {
      index = node.inputs.size();
      for (size_t i = 0; node.schema && i < node.schema->arguments.size(); i++)
        if (node.schema->arguments[i].name == argument.name) index = i;
    }
    if (index >= node.inputs.size())
      return stop(fmt::format("\"{}\" has an argument that {} lacks", operation.callee, node.op));
    const bool dimension = node.schema && node.schema->arguments[index].name == "dim";
    return dimension ? same_dimension(argument.value, node, index)
                     : same(argument.value, node.inputs[index]);
  }

  // A dimension that is counted from the front is another one in tensors of other rank: only a
  // rule that takes any dimension takes it.
  bool same_dimension(const std::string& argument, const graph::Node& node, size_t index) {
    std::string text = argument;
    if (text.starts_with("list:") && text.find(',') == text.npos) text = "const:" + text.substr(5);
    const auto source = constant_of(text), recorded = recorded_constant(graph_, node.inputs[index]);
    const graph::ValueId of = node.inputs[0].values[0];
    const double rank = static_cast<double>(graph_.values[of].meta.shape.size());
    if (!source || !recorded || (*source != *recorded && *source + rank != *recorded))
      return stop("a dimension was recorded as another one");
    for (size_t i = 0; i < names_.size(); i++)
      if (match_.rule->parameters[i].type == "int") return name_parameter(i, text.substr(6));
    return *source < 0 || stop("a dimension is counted from the front");
  }

  // `a, b = x.chunk(2, dim=-1)` is recorded as a split into parts of half the size: into two it is
  // that for every size that the names can be bound to.
  bool account_chunk(const OperationFact& operation) {
    const bool recorded =
        next_ < match_.nodes.size() && base_name(graph_.nodes[match_.nodes[next_]].op) == "split";
    if (!recorded) return stop("a chunk was recorded as something else");
    const graph::Node& node = graph_.nodes[match_.nodes[next_]];
    const graph::TensorMeta& whole = graph_.values[node.inputs[0].values[0]].meta;
    const auto dim = recorded_constant(graph_, node.inputs[2]),
               size = recorded_constant(graph_, node.inputs[1]);
    const auto rank = static_cast<double>(whole.shape.size());
    const size_t at = dim && rank > 0 ? static_cast<size_t>(*dim < 0 ? *dim + rank : *dim) : 0;
    if (!dim || !size || at >= whole.shape.size() ||
        static_cast<double>(whole.shape[at]) != *size * static_cast<double>(node.outputs.size()))
      return stop("a chunk was recorded with parts of other sizes");
    std::vector<Argument> arguments;
    for (const std::string& text : operation.arguments) arguments.push_back(split_argument(text));
    if (arguments.size() != 3 || (arguments[1].name != "" && arguments[1].name != "chunks") ||
        (arguments[2].name != "" && arguments[2].name != "dim"))
      return stop("a chunk is not called with a tensor, a number of parts and a dimension");
    if (constant_of(arguments[1].value) != static_cast<double>(node.outputs.size()))
      return stop("a chunk has another number of parts than the one recorded");
    if (!same(arguments[0].value, node.inputs[0]) || !same_dimension(arguments[2].value, node, 2))
      return false;
    for (size_t i = 0; i < node.outputs.size(); i++)
      parts_[fmt::format("op:{}.{}", results_.size(), i)] = {node.outputs[i], dtype_};
    results_.emplace_back();
    next_++;
    return true;
  }

  // Where the dtype is that already, nothing is recorded: the value is what was cast.
  bool account_cast(const OperationFact& operation) {
    const DType wanted = cast_dtype(operation);
    if (wanted == DType::kUnknown)
      return refusal_ ? false : stop("a cast to a dtype that is not known");
    const std::string& argument = operation.arguments[0];
    const graph::ValueId operand = value_of(argument);
    const bool recorded = next_ < match_.nodes.size() &&
                          base_name(graph_.nodes[match_.nodes[next_]].op) == "_to_copy";
    if (operand == graph::kNone) {
      if (!argument.starts_with("read:"))
        return stop("a cast of something else than a value of the chain");
      if (!recorded) {
        results_.push_back({graph::kNone, dtype_, argument.substr(5), wanted});
        return true;
      }
      return account_recorded_cast(argument, wanted);
    }
    if (graph_.values[operand].meta.dtype != wanted)
      return recorded ? account_recorded_cast(argument, wanted)
                      : stop("a cast was recorded as something else");
    results_.push_back({operand, dtype_});
    return true;
  }

  // The dtype that is cast to, in the recorded call and (dtype_) at every call.
  DType cast_dtype(const OperationFact& operation) {
    const std::vector<std::string>& arguments = operation.arguments;
    const std::string_view own = own_name(operation.callee);
    DType wanted = DType::kUnknown;
    if (own == "float" && arguments.size() == 1) {
      wanted = DType::kF32;
    } else if (own != "float" && arguments.size() == 2 && arguments[1].starts_with("dtype:")) {
      wanted = dtype_named(arguments[1].substr(6));
    } else if (own != "float" && arguments.size() == 2) {
      const bool by_name = arguments[1].starts_with("dtypeof:");
      return dtype_like(by_name ? arguments[1].substr(8) : arguments[1], by_name, own);
    } else {
      stop(fmt::format("\"{}\" is not called with a dtype", operation.callee));
    }
    dtype_ = DTypeSources::fixed(wanted);
    return wanted;
  }

  DType dtype_like(const std::string& argument, bool by_name, std::string_view own) {
    if (!by_name && own != "type_as") {
      stop(fmt::format("\"{}\" is not called with a dtype", own));
      return DType::kUnknown;
    }
    const graph::ValueId like = value_of(argument);
    if (like == graph::kNone) return DType::kUnknown;
    dtype_ = dtype_of(argument);
    return graph_.values[like].meta.dtype;
  }

  bool account_recorded_cast(const std::string& argument, DType wanted) {
    const graph::Node& node = graph_.nodes[match_.nodes[next_]];
    if (graph_.values[node.outputs[0]].meta.dtype != wanted)
      return stop("a cast was recorded as another one");
    const DTypeSources result = dtype_;
    if (!same(argument, node.inputs[0])) return false;
    dtype_ = result;
    return finish(node);
  }

  // `c / x` is recorded as mul(reciprocal(x), c).
  bool account_reciprocal(const std::vector<std::string>& arguments) {
    const graph::Node& inverse = graph_.nodes[match_.nodes[next_]];
    if (!same(arguments[1], inverse.inputs[0])) return false;
    if (++next_ == match_.nodes.size()) return stop("a quotient was recorded without its product");
    const graph::Node& product = graph_.nodes[match_.nodes[next_]];
    if (base_name(product.op) != "mul" || product.inputs[0].values != inverse.outputs ||
        !same(arguments[0], product.inputs[1]))
      return refusal_ ? false : stop("a quotient was recorded as something else");
    return finish(product);
  }

  bool finish(const graph::Node& node) {
    if (node.outputs.size() != 1) return stop(fmt::format("{} has several results", node.op));
    results_.push_back({node.outputs[0], dtype_});
    next_++;
    return true;
  }

  const Result* result_of(const std::string& argument) const {
    if (const auto part = parts_.find(argument); part != parts_.end()) return &part->second;
    if (argument.find('.') != argument.npos) return nullptr;
    const size_t index = std::strtoul(argument.c_str() + 3, nullptr, 10);
    return argument.starts_with("op:") && index < results_.size() ? &results_[index] : nullptr;
  }

  std::optional<size_t> parameter_named(const std::string& name) const {
    for (size_t i = 0; i < names_.size(); i++)
      if (names_[i] == name && match_.inputs[i] != graph::kNone) return i;
    return {};
  }

  // The value that a name of the source or an operation has; kNone for anything else, and for a
  // name that no parameter has yet.
  graph::ValueId value_of(const std::string& argument) const {
    if (const Result* result = result_of(argument)) return result->value;
    if (!argument.starts_with("read:")) return graph::kNone;
    const auto parameter = parameter_named(argument.substr(5));
    return parameter ? match_.inputs[*parameter] : graph::kNone;
  }

  // Of an argument that has a value.
  DTypeSources dtype_of(const std::string& argument) const {
    if (const Result* result = result_of(argument)) return result->dtype;
    return DTypeSources::parameter(*parameter_named(argument.substr(5)));
  }

  bool is_number(const std::string& argument) const {
    if (constant_of(argument)) return true;
    return argument.starts_with("read:") && number_parameter(argument.substr(5)).has_value();
  }

  bool same(const std::string& argument, const graph::Input& input) {
    if (argument.starts_with("read:"))
      if (const auto recorded = recorded_constant(graph_, input))
        return same_number(argument.substr(5), *recorded);
    if (const auto constant = constant_of(argument)) {
      const auto recorded = recorded_constant(graph_, input);
      return (recorded && *recorded == *constant) ||
             stop("a constant was recorded as something else");
    }
    if (argument.starts_with("const:")) return same_literal(argument.substr(6), input);
    if (argument.starts_with("tensors:")) return same_tensors(argument.substr(8), input);
    if (input.kind != graph::InputKind::kTensor || input.values.size() != 1)
      return stop(fmt::format("argument {} was not recorded as a tensor", argument));
    return same_tensor(argument, input.values[0]);
  }

  // "op:1,op:0.0": the elements of a list of tensors.
  bool same_tensors(const std::string& list, const graph::Input& input) {
    if (input.kind != graph::InputKind::kTensorList)
      return stop("a list of tensors was recorded as something else");
    std::vector<std::string> elements;
    for (size_t at = 0; at <= list.size();) {
      const size_t comma = std::min(list.find(',', at), list.size());
      elements.push_back(list.substr(at, comma - at));
      at = comma + 1;
    }
    if (elements.size() != input.values.size())
      return stop("a list of tensors was recorded with another length");
    for (size_t i = 0; i < elements.size(); i++)
      if (!same_tensor(elements[i], input.values[i])) return false;
    return true;
  }

  bool same_tensor(const std::string& argument, graph::ValueId value) {
    if (argument.starts_with("op:")) return same_result(argument, value);
    if (argument.starts_with("read:")) return same_read(argument.substr(5), value);
    if (argument.starts_with("expr:")) return same_expression(argument.substr(5), value);
    return stop("an operand is neither a name, a constant nor a part of the chain");
  }

  bool same_result(const std::string& argument, graph::ValueId value) {
    const Result* result = result_of(argument);
    const bool is_cast_name = result && !result->cast_of.empty();
    if (!result || value == graph::kNone ||
        (is_cast_name ? graph_.values[value].meta.dtype != result->cast_to
                      : result->value != value))
      return stop("an operand is another value than the one recorded");
    const DTypeSources before = dtype_;
    if (is_cast_name && !same_read(result->cast_of, value)) return false;
    dtype_ = before;  // the cast's dtype counts, not that of the name
    dtype_.promote(result->dtype);
    return true;
  }

  bool same_literal(const std::string& text, const graph::Input& input) {
    bool equal = false;
    if (const auto* flag = std::get_if<bool>(&input.attr))
      equal = text == (*flag ? "True" : "False");
    if (const auto* word = std::get_if<std::string>(&input.attr)) equal = text == "'" + *word + "'";
    if (std::holds_alternative<graph::NoneAttr>(input.attr)) equal = text == "None";
    return equal || stop("an argument was recorded as something else");
  }

  // The number parameter that this name may be: of a name that is read once and is no tensor.
  std::optional<size_t> number_parameter(const std::string& name) const {
    for (size_t i = 0; i < names_.size(); i++)
      if (names_[i] == name && !match_.rule->parameters[i].is_tensor) return i;
    if (std::find(names_.begin(), names_.end(), name) != names_.end()) return {};
    const auto read = read_of(name);
    if (read == facts_.reads.end() || read->count != 1) return {};
    for (size_t i = 0; i < names_.size(); i++)
      if (!match_.rule->parameters[i].is_tensor && names_[i].empty()) return i;
    return {};
  }

  // A number that the source reads by name must be a parameter of the rule by itself: it may be
  // another one at the next call.
  bool same_number(const std::string& name, double recorded) {
    const auto read = read_of(name);
    if (read == facts_.reads.end() || (read->kind != "local" && read->kind != "module_member"))
      return stop(fmt::format("{} may change between two calls", name));
    for (const OperationFact& operation : facts_.operations)
      for (const std::string& argument : operation.arguments)
        if (constant_of(split_argument(argument).value) == recorded)
          return stop(
              fmt::format("{} and a constant were the same number in the recorded calls", name));
    for (size_t i = 0; i < names_.size(); i++)
      if (!match_.rule->parameters[i].is_tensor && i < match_.numbers.size() &&
          match_.numbers[i] == recorded)
        return name_parameter(i, name);
    return stop(
        fmt::format("{} is no parameter of the rule: it may be another number at the next "
                    "call",
                    name));
  }

  std::vector<ReadFact>::const_iterator read_of(const std::string& name) const {
    return std::find_if(facts_.reads.begin(), facts_.reads.end(),
                        [&](const ReadFact& fact) { return fact.text == name; });
  }

  bool same_read(const std::string& name, graph::ValueId value) {
    const auto found = std::find(match_.inputs.begin(), match_.inputs.end(), value);
    if (found == match_.inputs.end())
      return stop(fmt::format("{} is not an input of the rule", name));
    const auto read = read_of(name);
    if (read == facts_.reads.end() || (read->kind != "local" && read->kind != "module_member"))
      return stop(fmt::format("{} may change between two reads ({})", name,
                              read == facts_.reads.end() ? "unknown name" : read->kind));
    dtype_.promote(DTypeSources::parameter(found - match_.inputs.begin()));
    return name_parameter(found - match_.inputs.begin(), name);
  }

  // What is evaluated once, and stands for one input alone.
  bool same_expression(const std::string& text, graph::ValueId value) {
    const auto found = std::find(match_.inputs.begin(), match_.inputs.end(), value);
    if (found == match_.inputs.end())
      return stop(fmt::format("{} is not an input of the rule", text));
    const auto parameter = static_cast<size_t>(found - match_.inputs.begin());
    if (!names_[parameter].empty())
      return stop(fmt::format("{} is evaluated beside another read of the same value", text));
    names_[parameter] = text.substr(text.find(':') + 1);
    const int order = std::atoi(text.c_str());
    expressions_.emplace_back(order, static_cast<int>(parameter));
    dtype_.promote(DTypeSources::parameter(parameter));
    return true;
  }

  // The same value may enter twice under two names today and be two values at the next call.
  bool name_parameter(size_t parameter, const std::string& name) {
    std::string& bound = names_[parameter];
    const bool expression =
        std::any_of(expressions_.begin(), expressions_.end(),
                    [&](const auto& one) { return one.second == static_cast<int>(parameter); });
    if (expression || (!bound.empty() && bound != name))
      return stop(
          fmt::format("{} and {} were the same value only in the recorded calls", bound, name));
    bound = name;
    return true;
  }

  const graph::Graph& graph_;
  const match::Match& match_;
  const SiteFacts& facts_;
  size_t next_ = 0;                      // recorded operators accounted for
  std::map<std::string, Result> parts_;  // of operations with several results: "op:3.1"
  std::vector<Result> results_;          // of the operations so far
  std::vector<std::string> names_;       // per parameter
  DTypeSources dtype_;                   // of the operation that is looked at
  // Parameters that are expressions, after their place in the order of evaluation.
  std::vector<std::pair<int, int>> expressions_;
  Refused refusal_;
};

}  // namespace

SpanProof walk_span(const graph::Graph& graph, const match::Match& match, const SiteFacts& facts) {
  return SpanWalk(graph, match, facts).run();
}

}  // namespace opfuse::rewrite
