#include "opfuse/rewrite/span_walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "opfuse/graph/schema.h"

namespace opfuse::rewrite {
namespace {

using match::Refusal;
using Refused = std::optional<Refusal>;

// Operations of the source by the last part of what they call, and the recorded operator.
struct Spelled {
  std::string_view callee;  // "truediv"
  std::string_view op;      // "aten." + this
};

// Callees that make exactly the operator of their own name, whatever their arguments.
constexpr std::array kOwnName = {
    "sigmoid", "mul",       "add",       "sub",      "div",      "neg",         "exp",
    "tanh",    "pow",       "sqrt",      "rsqrt",    "erf",      "log",         "log1p",
    "abs",     "square",    "sin",       "cos",      "expm1",    "silu",        "reciprocal",
    "clamp",   "clamp_min", "clamp_max", "hardtanh", "softplus", "hardsigmoid", "mean",
    "sum",     "amax",      "logsumexp", "gelu",     "maximum",  "minimum"};
constexpr std::array kSynonyms = {
    Spelled{"multiply", "mul"},     Spelled{"truediv", "div"},
    Spelled{"divide", "div"},       Spelled{"subtract", "sub"},
    Spelled{"true_divide", "div"},  Spelled{"negative", "neg"},
    Spelled{"clip", "clamp"},       Spelled{"relu6", "hardtanh"},
    Spelled{"expit", "sigmoid"},    Spelled{"matmul", "mm"},
    Spelled{"softmax", "_softmax"}, Spelled{"log_softmax", "_log_softmax"}};
// They cast, and record nothing where the dtype is that already.
constexpr std::array kCasts = {"to", "float", "type_as"};
constexpr std::array kNamespaces = {"torch.", "Tensor.", "operator.", "torch.nn.functional.",
                                    "torch.special."};

bool is_one_of(std::string_view name, const auto& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// "torch.sigmoid" -> "sigmoid"; "" when the callee is not one of torch's own.
std::string_view own_name(std::string_view callee) {
  const size_t dot = callee.rfind('.');
  if (dot == callee.npos || !is_one_of(callee.substr(0, dot + 1), kNamespaces)) return "";
  return callee.substr(dot + 1);
}

// The operator that a callee is known to be alone.
std::string_view operator_of(std::string_view callee) {
  const std::string_view name = own_name(callee);
  for (const Spelled& synonym : kSynonyms)
    if (synonym.callee == name) return synonym.op;
  return is_one_of(name, kOwnName) ? name : "";
}

// "aten.mul.Tensor" -> "mul"; "" outside aten.
std::string_view base_name(std::string_view op) {
  if (!op.starts_with("aten.")) return "";
  op.remove_prefix(5);
  return op.substr(0, op.find('.'));
}

std::optional<double> constant_of(std::string_view argument) {
  if (!argument.starts_with("const:")) return {};
  const std::string text(argument.substr(6));
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end ||
      std::string_view("0123456789.-").find(text[0]) == std::string_view::npos)
    return {};
  return value;
}

std::optional<double> constant_of(const graph::Graph& graph, const graph::Input& input) {
  if (input.kind == graph::InputKind::kTensor)
    return input.values[0] == graph::kNone ? std::nullopt
                                           : graph.values[input.values[0]].meta.number;
  if (const auto* number = std::get_if<double>(&input.attr)) return *number;
  if (const auto* number = std::get_if<int64_t>(&input.attr)) return static_cast<double>(*number);
  if (const auto* list = std::get_if<std::vector<int64_t>>(&input.attr); list && list->size() == 1)
    return static_cast<double>((*list)[0]);  // `dim=-1` is recorded as [-1]
  return {};
}

// An argument of the source: "keepdim=const:True" by name, others by position.
struct Argument {
  std::string name, value;
};

Argument split(const std::string& text) {
  const size_t equal = text.find('=');
  if (equal == text.npos || text.find(':') < equal) return {"", text};
  return {text.substr(0, equal), text.substr(equal + 1)};
}

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
    if (match_.outputs.size() != 1 || match_.outputs[0] != results_.back())
      return fail("its value is not the value of the chain");
    for (size_t i = 0; i < names_.size(); i++)
      if (match_.inputs[i] != graph::kNone && names_[i].empty())
        return fail(fmt::format("input {} of the rule is not read in the source", i + 1));
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

  bool account(const OperationFact& operation) {
    const std::string_view own = own_name(operation.callee);
    if (is_one_of(own, kCasts)) return account_cast(operation);
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
    const bool swaps = arguments.size() == 2 && is_number(arguments[0]);
    // `1 - x` is recorded as rsub(x, 1); `1 + x` and `2 * x` as add(x, 1) and mul(x, 2).
    if (swaps && ((name == "sub" && recorded == "rsub") || name == "add" || name == "mul")) {
      std::swap(arguments[0], arguments[1]);
      if (name == "sub") recorded = "sub";
    }
    if (swaps && name == "div" && recorded == "reciprocal") return account_reciprocal(arguments);
    if (recorded != name)
      return stop(fmt::format("\"{}\" was recorded as {}", operation.callee, node.op));
    for (size_t i = 0; i < arguments.size(); i++)
      if (!account_argument(operation, node, i, split(arguments[i]))) return false;
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
    const auto source = constant_of(text), recorded = constant_of(graph_, node.inputs[index]);
    const graph::ValueId of = node.inputs[0].values[0];
    const double rank = static_cast<double>(graph_.values[of].meta.shape.size());
    if (!source || !recorded || (*source != *recorded && *source + rank != *recorded))
      return stop("a dimension was recorded as another one");
    for (size_t i = 0; i < names_.size(); i++)
      if (match_.rule->parameters[i].type == "int") return name_parameter(i, text.substr(6));
    return *source < 0 || stop("a dimension is counted from the front");
  }

  // Where the dtype is that already, nothing is recorded: the value is what was cast.
  bool account_cast(const OperationFact& operation) {
    const std::vector<std::string>& arguments = operation.arguments;
    const std::string_view own = own_name(operation.callee);
    const bool known = own == "float" ? arguments.size() == 1
                                      : arguments.size() == 2 &&
                                            (arguments[1].starts_with("dtype") || own == "type_as");
    if (!known) return stop(fmt::format("\"{}\" is not called with a dtype", operation.callee));
    const graph::ValueId operand = value_of(arguments[0]);
    if (operand == graph::kNone) return stop("a cast of something else than a value of the chain");
    const DType from = graph_.values[operand].meta.dtype;
    DType wanted = DType::kF32;
    if (own == "to" && arguments[1].starts_with("dtype:")) {
      wanted = parse_dtype(arguments[1].substr(6));
    } else if (own != "float") {
      const bool by_name = arguments[1].starts_with("dtypeof:");
      const graph::ValueId like = value_of(by_name ? arguments[1].substr(8) : arguments[1]);
      if (like == graph::kNone) return stop("a cast to a dtype that is not known");
      wanted = graph_.values[like].meta.dtype;
    }
    if (wanted == from) {
      if (operand == match_.outputs[0] && match_.spelling != nullptr && !casts_last())
        return stop("its result is cast, which the fused operator does earlier");
      results_.push_back(operand);
      return true;
    }
    if (next_ == match_.nodes.size() ||
        base_name(graph_.nodes[match_.nodes[next_]].op) != "_to_copy")
      return stop("a cast was recorded as something else");
    const graph::Node& node = graph_.nodes[match_.nodes[next_]];
    if (node.inputs[0].values[0] != operand || graph_.values[node.outputs[0]].meta.dtype != wanted)
      return stop("a cast was recorded as another one");
    return finish(node);
  }

  static DType parse_dtype(std::string_view name) {
    if (name == "float32" || name == "float") return DType::kF32;
    if (name == "bfloat16") return DType::kBF16;
    if (name == "float16" || name == "half") return DType::kF16;
    return name == "float64" || name == "double" ? DType::kF64 : DType::kUnknown;
  }

  // The way of writing the rule ends in a cast, or it has no further operand to cast before.
  bool casts_last() const {
    const std::vector<graph::Node>& nodes = match_.spelling->graph.nodes;
    const bool has_casts = std::any_of(
        nodes.begin(), nodes.end(), [](const graph::Node& node) { return node.op == "rule.to"; });
    return !has_casts || (!nodes.empty() && nodes.back().op == "rule.to");
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
    results_.push_back(node.outputs[0]);
    next_++;
    return true;
  }

  // The value that a name of the source or an operation has; kNone for anything else.
  graph::ValueId value_of(const std::string& argument) {
    if (argument.starts_with("op:")) {
      const size_t index = std::strtoul(argument.c_str() + 3, nullptr, 10);
      return index < results_.size() ? results_[index] : graph::kNone;
    }
    if (!argument.starts_with("read:")) return graph::kNone;
    const std::string name = argument.substr(5);
    for (size_t i = 0; i < names_.size(); i++)
      if (names_[i] == name) return match_.inputs[i];
    // Its first use is the cast: it is the one input that no name stands for yet, or the first.
    if (next_ == 0 && !match_.inputs.empty() && same_read(name, match_.inputs[0]))
      return match_.inputs[0];
    return graph::kNone;
  }

  bool is_number(const std::string& argument) const {
    if (constant_of(argument)) return true;
    return argument.starts_with("read:") && number_parameter(argument.substr(5)).has_value();
  }

  bool same(const std::string& argument, const graph::Input& input) {
    if (argument.starts_with("read:"))
      if (const auto recorded = constant_of(graph_, input))
        return same_number(argument.substr(5), *recorded);
    if (const auto constant = constant_of(argument)) {
      const auto recorded = constant_of(graph_, input);
      return (recorded && *recorded == *constant) ||
             stop("a constant was recorded as something else");
    }
    if (argument.starts_with("const:")) return same_literal(argument.substr(6), input);
    if (input.kind != graph::InputKind::kTensor || input.values.size() != 1)
      return stop(fmt::format("argument {} was not recorded as a tensor", argument));
    const graph::ValueId value = input.values[0];
    if (argument.starts_with("op:")) {
      const size_t index = std::strtoul(argument.c_str() + 3, nullptr, 10);
      return (index < results_.size() && results_[index] == value) ||
             stop("an operand is another value than the one recorded");
    }
    if (argument.starts_with("read:")) return same_read(argument.substr(5), value);
    if (argument.starts_with("expr:")) return same_expression(argument.substr(5), value);
    return stop("an operand is neither a name, a constant nor a part of the chain");
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
        if (constant_of(split(argument).value) == recorded)
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
  std::vector<graph::ValueId> results_;  // of the operations so far
  std::vector<std::string> names_;       // per parameter
  // Parameters that are expressions, after their place in the order of evaluation.
  std::vector<std::pair<int, int>> expressions_;
  Refused refusal_;
};

}  // namespace

SpanProof walk_span(const graph::Graph& graph, const match::Match& match, const SiteFacts& facts) {
  return SpanWalk(graph, match, facts).run();
}

}  // namespace opfuse::rewrite
