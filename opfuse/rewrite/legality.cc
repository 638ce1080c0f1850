#include "opfuse/rewrite/legality.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <tuple>

namespace opfuse::rewrite {
namespace {

using match::Refusal;
using Refused = std::optional<Refusal>;

Refused refuse(int row, std::string reason) {
  return Refusal{row, std::move(reason), graph::kNone};
}

Refused source_row(const SiteFacts& facts) {
  if (facts.opted_out) return refuse(0, "the line says \"# opfuse: off\"");
  if (!facts.has_positions)
    return refuse(
        0,
        "this Python keeps no columns of its instructions (needs 3.11 or later, without -X "
        "no_debug_ranges), so the chain's place in the source is not certain");
  if (!facts.source_matches)
    return refuse(36,
                  fmt::format("{}: {}", facts.file,
                              facts.source_problem.empty() ? "its source is not the running code"
                                                           : facts.source_problem));
  return {};
}

Refused running_row(const SiteFacts& facts) {
  const auto row43 = [&](std::string_view what) {
    return refuse(43, fmt::format("{} {}", facts.qualname, what));
  };
  if (facts.is_module_level)
    return refuse(43,
                  "the chain stands in module-level code, which runs once and cannot be exchanged; "
                  "move it into a function");
  if (facts.is_generator)
    return row43("is a generator: a suspended one would go on with the old code");
  if (facts.is_coroutine)
    return row43("is a coroutine: a suspended one would go on with the old code");
  if (facts.is_nested)
    return row43("is defined inside another function, which makes it anew at each call");
  if (facts.running_now)
    return row43("is still running at the step boundary (the training loop, or a frame below it)");
  if (facts.functions_found < 1) return row43("has code that no function object holds");
  return {};
}

Refused code_row(const SiteFacts& facts) {
  if (facts.scripted_or_compiled)
    return refuse(
        38, fmt::format("{} is compiled or scripted already, and an edit would be ignored there",
                        facts.qualname));
  if (facts.uses_frame_magic)
    return refuse(
        3, fmt::format("{} looks at its own frame (locals(), eval, exec, sys._getframe), so its "
                       "inner values may be read",
                       facts.qualname));
  if (!facts.kept_names.empty())
    return refuse(3, fmt::format("an inner value is kept: {}", facts.kept_names.front()));
  if (!facts.hook_notes.empty())
    return refuse(4, fmt::format("a hook sees the chain: {}", facts.hook_notes.front()));
  return {};
}

Refused read_row(const ReadFact& read) {
  const std::string& name = read.text;
  if (read.rebound_inside)
    return refuse(33, fmt::format("{} is bound anew inside the chain", name));
  if (read.kind == "property")
    return refuse(
        36, fmt::format("{} is a property or computed attribute: each read may give another value",
                        name));
  if (read.kind == "attribute")
    return refuse(
        36, fmt::format("{} is an attribute of something else than a plain nn.Module: each read "
                        "may give another value",
                        name));
  return {};
}

Refused function_row(const SiteFacts& facts) {
  if (facts.span_kind != "function_apply") return {};
  const std::string& name = facts.function_class;
  if (facts.function_subclassed)
    return refuse(44, fmt::format("{}.apply is not torch's own", name));
  if (facts.function_has_jvp) return refuse(26, fmt::format("{} has a jvp of its own", name));
  if (facts.function_has_vmap)
    return refuse(26, fmt::format("{} has a vmap rule of its own", name));
  if (facts.function_once_differentiable)
    return refuse(
        26, fmt::format("the backward of {} is once_differentiable: a second derivative is an "
                        "error today",
                        name));
  if (!facts.function_straight_line)
    return refuse(
        25, fmt::format("{} is not straight-line code: {}", name,
                        facts.function_problem.empty() ? "not proved" : facts.function_problem));
  return {};
}

// Recorded operators that one operation of the source makes, and how their arguments are ordered.
struct Spelled {
  std::string_view callee;  // last part: "sigmoid", "truediv"
  std::string_view op;      // "aten." + this
};

// Callees that make exactly the operator of their own name, whatever their arguments.
constexpr std::array kPointwise = {
    "sigmoid",   "mul",       "add",      "sub",      "div",        "neg",        "exp",
    "tanh",      "pow",       "sqrt",     "rsqrt",    "erf",        "log",        "log1p",
    "abs",       "square",    "sin",      "cos",      "expm1",      "reciprocal", "clamp",
    "clamp_min", "clamp_max", "hardtanh", "softplus", "hardsigmoid"};
constexpr std::array kSynonyms = {
    Spelled{"multiply", "mul"}, Spelled{"truediv", "div"},     Spelled{"divide", "div"},
    Spelled{"subtract", "sub"}, Spelled{"true_divide", "div"}, Spelled{"negative", "neg"},
    Spelled{"clip", "clamp"},   Spelled{"relu6", "hardtanh"},  Spelled{"expit", "sigmoid"}};
constexpr std::array kNamespaces = {"torch.", "Tensor.", "operator.", "torch.nn.functional.",
                                    "torch.special."};

// "torch.sigmoid" -> "sigmoid"; "" when the callee is not one that is known to be the operator
// alone.
std::string_view operator_of(std::string_view callee) {
  const size_t dot = callee.rfind('.');
  if (dot == callee.npos) return "";
  const std::string_view space = callee.substr(0, dot + 1), name = callee.substr(dot + 1);
  if (std::find(kNamespaces.begin(), kNamespaces.end(), space) == kNamespaces.end()) return "";
  for (const Spelled& synonym : kSynonyms)
    if (synonym.callee == name) return synonym.op;
  for (const std::string_view own : kPointwise)
    if (own == name) return own;
  return "";
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
  if (text.empty() || *end) return {};
  return value;
}

std::optional<double> constant_of(const graph::Graph& graph, const graph::Input& input) {
  if (input.kind == graph::InputKind::kTensor)
    return input.values[0] == graph::kNone ? std::nullopt
                                           : graph.values[input.values[0]].meta.number;
  if (const auto* number = std::get_if<double>(&input.attr)) return *number;
  if (const auto* number = std::get_if<int64_t>(&input.attr)) return static_cast<double>(*number);
  return {};
}

// Walks the span's operations beside the recorded ones.
class SpanWalk {
 public:
  SpanWalk(const graph::Graph& graph, const match::Match& match, const SiteFacts& facts)
      : graph_(graph), match_(match), facts_(facts), names_(match.inputs.size()) {}

  SpanProof run() {
    for (const OperationFact& operation : facts_.operations)
      if (!account(operation)) return {refusal_, {}};
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
    return {std::nullopt, names_};
  }

 private:
  SpanProof fail(std::string why) {
    stop(std::move(why));
    return {refusal_, {}};
  }

  bool stop(std::string why) {
    refusal_ = Refusal{
        36, fmt::format("the expression is not proved to be the chain for every call: {}", why),
        next_ < match_.nodes.size() ? match_.nodes[next_] : graph::kNone};
    return false;
  }

  bool account(const OperationFact& operation) {
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
    const bool swaps = arguments.size() == 2 && constant_of(arguments[0]).has_value();
    // `1 - x` is recorded as rsub(x, 1); `1 + x` and `2 * x` as add(x, 1) and mul(x, 2).
    if (swaps && ((name == "sub" && recorded == "rsub") || name == "add" || name == "mul")) {
      std::swap(arguments[0], arguments[1]);
      if (name == "sub") recorded = "sub";
    }
    if (swaps && name == "div" && recorded == "reciprocal") return account_reciprocal(arguments);
    if (recorded != name)
      return stop(fmt::format("\"{}\" was recorded as {}", operation.callee, node.op));
    if (arguments.size() > node.inputs.size())
      return stop(fmt::format("\"{}\" has {} arguments", operation.callee, arguments.size()));
    for (size_t i = 0; i < arguments.size(); i++)
      if (!same(arguments[i], node.inputs[i])) return false;
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
    results_.push_back(node.outputs[0]);
    next_++;
    return true;
  }

  bool same(const std::string& argument, const graph::Input& input) {
    if (const auto constant = constant_of(argument)) {
      const auto recorded = constant_of(graph_, input);
      return (recorded && *recorded == *constant) ||
             stop("a constant was recorded as something else");
    }
    if (input.kind != graph::InputKind::kTensor || input.values.size() != 1)
      return stop(fmt::format("argument {} was not recorded as a tensor", argument));
    const graph::ValueId value = input.values[0];
    if (argument.starts_with("op:")) {
      const size_t index = std::strtoul(argument.c_str() + 3, nullptr, 10);
      return (index < results_.size() && results_[index] == value) ||
             stop("an operand is another value than the one recorded");
    }
    if (argument.starts_with("read:")) return same_read(argument.substr(5), value);
    return stop("an operand is neither a name, a constant nor a part of the chain");
  }

  bool same_read(const std::string& name, graph::ValueId value) {
    const auto found = std::find(match_.inputs.begin(), match_.inputs.end(), value);
    if (found == match_.inputs.end())
      return stop(fmt::format("{} is not an input of the rule", name));
    const auto read = std::find_if(facts_.reads.begin(), facts_.reads.end(),
                                   [&](const ReadFact& fact) { return fact.text == name; });
    if (read == facts_.reads.end() || (read->kind != "local" && read->kind != "module_member"))
      return stop(fmt::format("{} may change between two reads ({})", name,
                              read == facts_.reads.end() ? "unknown name" : read->kind));
    // The same value may enter twice under two names today and be two values at the next call.
    std::string& bound = names_[found - match_.inputs.begin()];
    if (!bound.empty() && bound != name)
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
  Refused refusal_;
};

SpanProof prove_apply(const match::Match& match, const SiteFacts& facts) {
  const auto fail = [](std::string why) { return SpanProof{refuse(36, std::move(why)), {}}; };
  if (match.function_scope == graph::kNone)
    return fail(fmt::format("the chain is not the forward of {}", facts.function_class));
  if (facts.operations.size() != 1) return fail("the call of apply is not alone in its expression");
  const OperationFact& call = facts.operations[0];
  if (call.callee != "Function.apply:" + facts.function_class)
    return SpanProof{refuse(44, fmt::format("{} is called where {}.apply was recorded", call.callee,
                                            facts.function_class)),
                     {}};
  if (call.span.begin != facts.span.begin || call.span.end != facts.span.end)
    return fail("the call of apply is not the whole expression");
  if (call.arguments.size() != 1 || match.inputs.size() != 1 || facts.argument_sources.size() != 1)
    return fail(fmt::format("{}.apply is called with other than one positional argument",
                            facts.function_class));
  if (!call.arguments[0].starts_with("read:") && call.arguments[0] != "expr")
    return fail(fmt::format("the argument of {}.apply is not one value", facts.function_class));
  return {std::nullopt, facts.argument_sources};
}

using PlaceKey = std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t>;

PlaceKey place_key(const graph::Position& at) {
  return {at.code, at.line, at.column, at.end_line, at.end_column};
}

// Line (from one) and byte column of an offset, as Python counts them.
std::pair<int32_t, int32_t> line_column(std::string_view text, int64_t offset) {
  int32_t line = 1;
  int64_t start = text.starts_with("\xEF\xBB\xBF") ? 3 : 0;  // a BOM is no column
  for (int64_t i = start; i < offset; i++) {
    const bool ends =
        text[i] == '\n' || (text[i] == '\r' && (i + 1 == offset || text[i + 1] != '\n'));
    if (!ends) continue;
    line++;
    start = i + 1;
  }
  return {line, static_cast<int32_t>(offset - start)};
}

// Places of the span's operations, with the code object that the record knows them by.
std::vector<PlaceKey> operation_places(const graph::Graph& graph, const match::Match& match,
                                       const SiteFacts& facts) {
  std::vector<PlaceKey> places;
  for (const OperationFact& operation : facts.operations) {
    const auto [line, column] = line_column(facts.text, operation.span.begin);
    const auto [end_line, end_column] = line_column(facts.text, operation.span.end);
    for (const graph::NodeId node : match.nodes)
      for (const int32_t row : graph.nodes[node].positions) {
        const PlaceKey key = place_key(graph.positions[row]);
        if (key == PlaceKey{std::get<0>(key), line, column, end_line, end_column})
          places.push_back(key);
      }
  }
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  return places;
}

bool stands_at(const graph::Graph& graph, const graph::Node& node,
               const std::vector<PlaceKey>& places) {
  return std::any_of(node.positions.begin(), node.positions.end(), [&](int32_t row) {
    return std::binary_search(places.begin(), places.end(), place_key(graph.positions[row]));
  });
}

}  // namespace

Refused refusal_from_facts(const SiteFacts& facts) {
  for (const auto rows : {source_row, running_row, code_row})
    if (Refused refusal = rows(facts)) return refusal;
  if (!facts.span_problem.empty() || facts.span_kind.empty())
    return refuse(36, fmt::format("the chain is not one expression that can be exchanged: {}",
                                  facts.span_problem.empty() ? "not proved" : facts.span_problem));
  for (const ReadFact& read : facts.reads)
    if (Refused refusal = read_row(read)) return refusal;
  // A module may be another one at the next call, and its identity is the user's business.
  for (const OperationFact& operation : facts.operations) {
    if (operation.callee.starts_with("module:"))
      return refuse(37,
                    fmt::format("{} is called as a module, which may be exchanged or subclassed",
                                operation.callee.substr(7)));
    if (operation.callee.starts_with("unknown:"))
      return refuse(44, fmt::format("{} resolves to something else than the operator of that name",
                                    operation.callee.substr(8)));
  }
  return function_row(facts);
}

SpanProof prove_span(const graph::Graph& graph, const match::Match& match, const SiteFacts& facts) {
  if (facts.span_kind == "function_apply") return prove_apply(match, facts);
  if (match.function_scope != graph::kNone)
    return {
        refuse(25, "the chain is the forward of a custom Function, but its caller is not the edit"),
        {}};
  return SpanWalk(graph, match, facts).run();
}

Refused foreign_operator(const graph::Graph& graph, const match::MatchReport& report,
                         const match::Site& site, const SiteFacts& facts) {
  std::vector<PlaceKey> places;
  std::vector<bool> own(graph.nodes.size());
  for (const int index : site.matches) {
    const match::Match& match = report.matches[index];
    for (const graph::NodeId node : match.nodes) own[node] = true;
    for (const graph::NodeId node : match.backward.nodes) own[node] = true;
    if (places.empty()) places = operation_places(graph, match, facts);
    for (const graph::NodeId node : match.nodes)
      if (!stands_at(graph, graph.nodes[node], places))
        return Refusal{
            36, fmt::format("{} ran at another place than the one to edit", graph.nodes[node].op),
            node};
  }
  for (size_t i = 0; i < graph.nodes.size(); i++) {
    if (own[i]) continue;
    if (stands_at(graph, graph.nodes[i], places))
      return Refusal{36,
                     fmt::format("{} ran at the same place without being the chain in that call",
                                 graph.nodes[i].op),
                     static_cast<graph::NodeId>(i)};
  }
  return {};
}

}  // namespace opfuse::rewrite
