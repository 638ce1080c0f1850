#include "opfuse/match/rule_lower.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <numbers>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "opfuse/graph/canonical.h"
#include "opfuse/graph/text.h"

namespace opfuse::match {
namespace {

using graph::Graph;
using graph::kNone;
using graph::ValueId;

constexpr RuleFunction kFunctions[] = {
    {"abs", "aten.abs"},
    {"add", "aten.add.Tensor"},
    {"clamp", "aten.clamp"},
    {"cos", "aten.cos"},
    {"div", "aten.div.Tensor"},
    {"erf", "aten.erf"},
    {"exp", "aten.exp"},
    {"gelu", "aten.gelu"},
    {"hardsigmoid", "aten.hardsigmoid"},
    {"hardtanh", "aten.hardtanh"},
    {"log", "aten.log"},
    {"maximum", "aten.maximum"},
    {"mean", "aten.mean.dim"},
    {"minimum", "aten.minimum"},
    {"mul", "aten.mul.Tensor"},
    {"neg", "aten.neg"},
    {"pow", "aten.pow.Tensor_Scalar"},
    {"reciprocal", "aten.reciprocal"},
    {"relu", "aten.relu"},
    {"rsqrt", "aten.rsqrt"},
    {"sigmoid", "aten.sigmoid"},
    {"silu", "aten.silu"},
    {"sin", "aten.sin"},
    {"softplus", "aten.softplus"},
    {"sqrt", "aten.sqrt"},
    {"sub", "aten.sub.Tensor"},
    {"sum", "aten.sum.dim_IntList"},
    {"tanh", "aten.tanh"},
    {"where", "aten.where.self"},
};

// In the language, but not matched yet.
constexpr std::string_view kLater[] = {"to", "dtype", "shape", "chunk", "cat", "view", "matmul"};

// A tensor by its name in the text form, or a number that is folded.
struct Term {
  std::string name;
  std::optional<double> number;
  bool integral = false;

  std::string text() const {
    if (!number) return "%" + name;
    if (integral) return fmt::to_string(static_cast<int64_t>(*number));
    return graph::print_attr(graph::Attr{*number});
  }
};

// The text form of one composition under construction.
class Lowering {
 public:
  Lowering(const Rule& rule, const graph::SchemaTable& schemas, bool free_names)
      : rule_(rule), schemas_(schemas), free_names_(free_names) {
    for (const RuleParameter& parameter : rule.parameters)
      bind(parameter.name, named(parameter.name));
  }

  Status block(const Block& block) {
    for (const Binding& binding : block.bindings) {
      if (binding.names.size() > 1)
        return fail(binding, "not supported yet: several results of one call");
      if (bindings_.contains(binding.names[0]))
        return fail(binding, fmt::format("'{}' is bound twice", binding.names[0]));
      OPFUSE_TRY(Term term, value(binding.value));
      bind(binding.names[0], term);
    }
    for (const Expression& result : block.results) OPFUSE_TRY_STATUS(returns(result));
    return ok_status();
  }

  Status returns(const Expression& expression) {
    OPFUSE_TRY(Term term, value(expression));
    if (term.number) return fail(expression, "expected a tensor as the result, found a number");
    results_.push_back(term.text());
    return ok_status();
  }

  const std::vector<std::string>& others() const { return others_; }

  Result<Graph> finish(int line) {
    std::string text;
    std::vector<std::string> externals;
    for (const RuleParameter& parameter : rule_.parameters) externals.push_back(parameter.name);
    externals.insert(externals.end(), others_.begin(), others_.end());
    for (const std::string& name : externals) text += fmt::format("%{}: f32\n", name);
    for (const auto& [content, source] : lines_) text += content + "\n";
    text += fmt::format("return {}\n", fmt::join(results_, ", "));
    Result<Graph> parsed = graph::parse_graph(text, schemas_);
    if (!parsed.ok()) return located(parsed.error().message, externals.size(), line);
    Graph canonical = graph::canonicalize(*parsed).graph;
    return compacted(std::move(canonical), externals, line);
  }

 private:
  template <class Located>
  Error fail(const Located& at, const std::string& sentence) const {
    return Error{fmt::format("{}:{}:{}: {}", rule_.file, at.line, at.column, sentence)};
  }

  static Term named(const std::string& name) { return {name, std::nullopt, false}; }
  void bind(const std::string& name, const Term& term) { bindings_[name] = term; }

  Term emit(const std::string& call, const Expression& at) {
    std::string name = fmt::format("t{}", lines_.size());
    lines_.emplace_back(fmt::format("%{}: f32 = {}", name, call), &at);
    return named(name);
  }

  Result<Term> value(const Expression& e) {
    switch (e.kind) {
      case ExpressionKind::kName:
        return name(e);
      case ExpressionKind::kNumber:
        return number(e);
      case ExpressionKind::kUnary:
        return negation(e);
      case ExpressionKind::kBinary:
        return binary(e);
      case ExpressionKind::kCall:
        return call(e);
      case ExpressionKind::kConditional:
        return fail(e, "not supported yet: optional parts");
      default:
        return fail(e, "expected a tensor or a number");
    }
  }

  Result<Term> name(const Expression& e) {
    auto it = bindings_.find(e.text);
    if (it != bindings_.end()) return it->second;
    if (e.text == "pi") return Term{"", std::numbers::pi, false};
    if (!free_names_)
      return fail(e, fmt::format("expected a parameter or a binding, found '{}'", e.text));
    others_.push_back(e.text);
    bind(e.text, named(e.text));
    return named(e.text);
  }

  Result<Term> number(const Expression& e) {
    Term term;
    double value = 0;
    auto [end, error] = std::from_chars(e.text.data(), e.text.data() + e.text.size(), value);
    if (error != std::errc() || end != e.text.data() + e.text.size())
      return fail(e, fmt::format("expected a number, found '{}'", e.text));
    term.number = value;
    term.integral = e.text.find_first_not_of("0123456789") == std::string::npos;
    return term;
  }

  Result<Term> negation(const Expression& e) {
    OPFUSE_TRY(Term operand, value(e.children[0]));
    if (operand.number) {
      operand.number = -*operand.number;
      return operand;
    }
    return emit(fmt::format("aten.neg({})", operand.text()), e);
  }

  Result<Term> binary(const Expression& e) {
    if (e.text == "@") return fail(e, "not supported yet: matrix products");
    OPFUSE_TRY(Term a, value(e.children[0]));
    OPFUSE_TRY(Term b, value(e.children[1]));
    if (a.number && b.number) return folded(e, a, b);
    if (e.text == "**") {
      if (!b.number) return fail(e, "not supported yet: a tensor as an exponent");
      return emit(fmt::format("aten.pow.Tensor_Scalar({}, {})", a.text(), b.text()), e);
    }
    if (a.number && (e.text == "+" || e.text == "*")) std::swap(a, b);
    static const std::map<std::string, std::string_view> kOps = {
        {"+", "add"}, {"-", "sub"}, {"*", "mul"}, {"/", "div"}};
    return emit(fmt::format("aten.{}.Tensor({}, {})", kOps.at(e.text), a.text(), b.text()), e);
  }

  static Result<Term> folded(const Expression& e, const Term& a, const Term& b) {
    double x = *a.number, y = *b.number;
    double result = e.text == "+"   ? x + y
                    : e.text == "-" ? x - y
                    : e.text == "*" ? x * y
                    : e.text == "/" ? x / y
                                    : std::pow(x, y);
    bool integral = a.integral && b.integral && e.text != "/" && e.text != "**";
    return Term{"", result, integral};
  }

  Result<Term> call(const Expression& e) {
    auto function = std::ranges::find(kFunctions, e.text, &RuleFunction::name);
    if (std::ranges::find(kLater, e.text) != std::end(kLater))
      return fail(e, fmt::format("not supported yet: {}()", e.text));
    if (function == std::end(kFunctions))
      return fail(e, fmt::format("expected a function of docs/rulebook.md, found '{}'", e.text));
    if (e.text == "sqrt" && e.children.size() == 1) return square_root(e);
    const graph::Schema* schema = schemas_.find(function->overload);
    std::vector<std::string> arguments;
    for (size_t i = 0; i < e.children.size(); ++i) {
      OPFUSE_TRY(std::string text, argument(e.children[i], e.keywords[i], *schema));
      arguments.push_back(std::move(text));
    }
    return emit(fmt::format("{}({})", function->overload, fmt::join(arguments, ", ")), e);
  }

  // Of a number, it is a constant: sqrt(2 / pi).
  Result<Term> square_root(const Expression& e) {
    OPFUSE_TRY(Term operand, value(e.children[0]));
    if (operand.number) return Term{"", std::sqrt(*operand.number), false};
    return emit(fmt::format("aten.sqrt({})", operand.text()), e);
  }

  // `keepdim` alone is keepdim=True.
  Result<std::string> argument(const Expression& e, const std::string& keyword,
                               const graph::Schema& schema) {
    std::string prefix = keyword.empty() ? "" : keyword + "=";
    if (e.kind == ExpressionKind::kString) return prefix + graph::print_attr(graph::Attr{e.text});
    if (e.kind == ExpressionKind::kList) {
      std::vector<std::string> items;
      for (const Expression& child : e.children) {
        OPFUSE_TRY(Term item, value(child));
        items.push_back(item.text());
      }
      return fmt::format("{}[{}]", prefix, fmt::join(items, ", "));
    }
    if (e.kind == ExpressionKind::kName && !bindings_.contains(e.text)) {
      if (e.text == "None" || e.text == "True" || e.text == "False") return prefix + e.text;
      for (const graph::SchemaArgument& formal : schema.arguments)
        if (keyword.empty() && formal.type == "bool" && formal.name == e.text)
          return e.text + "=True";
    }
    OPFUSE_TRY(Term term, value(e));
    bool list = std::ranges::any_of(schema.arguments, [&](const graph::SchemaArgument& formal) {
      return formal.name == keyword && formal.type.find("[]") != std::string::npos;
    });
    return list ? fmt::format("{}[{}]", prefix, term.text()) : prefix + term.text();
  }

  // An error of the text form, told at the expression that its line came from.
  Error located(const std::string& message, size_t externals, int line) const {
    size_t number = 0;
    std::from_chars(message.data(), message.data() + message.size(), number);
    size_t sentence = message.find(": ");
    if (number > externals && number - externals <= lines_.size())
      return fail(*lines_[number - externals - 1].second, message.substr(sentence + 2));
    return Error{fmt::format("{}:{}:1: {}", rule_.file, line, message)};
  }

  // Externals in the order of the parameters, and no value that nothing uses.
  Result<Graph> compacted(Graph graph, const std::vector<std::string>& externals, int line) const {
    std::vector<ValueId> place(graph.values.size(), kNone);
    std::vector<graph::Value> kept;
    for (ValueId id = 0; id < static_cast<ValueId>(graph.values.size()); ++id) {
      bool external = id < static_cast<ValueId>(externals.size());
      bool is_result = std::ranges::find(graph.results, id) != graph.results.end();
      bool used = !graph.users[id].empty() || is_result;
      if (external && !used && !free_names_)  // a neighbour may lack a parameter
        return Error{fmt::format("{}:{}:1: '{}' is not used", rule_.file, line, externals[id])};
      if (external && is_result)
        return Error{
            fmt::format("{}:{}:1: '{}' is returned as it is", rule_.file, line, externals[id])};
      if (!used && !external && graph.values[id].producer == kNone) continue;
      place[id] = static_cast<ValueId>(kept.size());
      kept.push_back(std::move(graph.values[id]));
    }
    graph.values = std::move(kept);
    for (graph::Node& node : graph.nodes) {
      for (graph::Input& input : node.inputs)
        for (ValueId& value : input.values)
          if (value != kNone) value = place[value];
      for (ValueId& value : node.outputs) value = place[value];
    }
    for (ValueId& value : graph.results) value = place[value];
    index_users(&graph);
    return graph;
  }

  const Rule& rule_;
  const graph::SchemaTable& schemas_;
  bool free_names_;
  std::map<std::string, Term> bindings_;
  std::vector<std::string> others_;
  std::vector<std::pair<std::string, const Expression*>> lines_;
  std::vector<std::string> results_;
};

Result<Spelling> lower_block(const Rule& rule, const Block& block, const std::string& name,
                             const graph::SchemaTable& schemas) {
  Lowering lowering(rule, schemas, false);
  OPFUSE_TRY_STATUS(lowering.block(block));
  Spelling spelling;
  spelling.name = name;
  spelling.line = block.line;
  OPFUSE_TRY(spelling.graph, lowering.finish(block.line));
  return spelling;
}

Result<NearNeighbour> lower_near(const Rule& rule, const NearSyntax& near,
                                 const graph::SchemaTable& schemas) {
  if (!near.substituted.empty())
    return Error{fmt::format("{}:{}:{}: not supported yet: a neighbour that stands for a parameter",
                             rule.file, near.line, near.column)};
  Lowering lowering(rule, schemas, true);
  OPFUSE_TRY_STATUS(lowering.returns(near.formula));
  NearNeighbour result;
  result.title = near.title;
  result.why = near.why;
  result.guards = near.guards;
  result.others = lowering.others();
  result.spelling.name = near.title;
  result.spelling.line = near.line;
  OPFUSE_TRY(result.spelling.graph, lowering.finish(near.line));
  return result;
}

bool is_parameter_or_other(const Rule& rule, const std::vector<std::string>& others,
                           const std::string& name) {
  return std::ranges::find(rule.parameters, name, &RuleParameter::name) != rule.parameters.end() ||
         std::ranges::find(others, name) != others.end();
}

Status check_names(const Rule& rule) {
  auto unknown = [&](int line, const std::string& name) {
    return Error{fmt::format("{}:{}:1: rule {}: expected a parameter, found '{}'", rule.file, line,
                             rule.name, name)};
  };
  for (const Guard& guard : rule.guards)
    for (const std::string& name : {guard.a, guard.b})
      if (!is_parameter_or_other(rule, {}, name)) return unknown(rule.line, name);
  for (const NearNeighbour& near : rule.near)
    for (const Guard& guard : near.guards)
      for (const std::string& name : {guard.a, guard.b})
        if (!is_parameter_or_other(rule, near.others, name))
          return unknown(near.spelling.line, name);
  return ok_status();
}

// Several results are matched from the last one: the others must be inner values of it.
Status check_results(const Rule& rule, const Spelling& spelling) {
  const Graph& g = spelling.graph;
  ValueId root =
      *std::ranges::max_element(g.results, {}, [&](ValueId v) { return g.values[v].producer; });
  std::vector<bool> reached(g.values.size());
  std::vector<ValueId> todo = {root};
  while (!todo.empty()) {
    ValueId value = todo.back();
    todo.pop_back();
    if (reached[value]) continue;
    reached[value] = true;
    if (g.values[value].producer == kNone) continue;
    for (const graph::Input& input : g.nodes[g.values[value].producer].inputs)
      for (ValueId operand : input.values)
        if (operand != kNone) todo.push_back(operand);
  }
  for (size_t id = 0; id < g.values.size(); ++id)
    if (!reached[id] && g.values[id].producer != kNone)
      return Error{
          fmt::format("{}:{}:1: not supported yet: {} computes something that its last "
                      "result does not need",
                      rule.file, spelling.line, spelling.name)};
  return ok_status();
}

}  // namespace

std::span<const RuleFunction> rule_functions() { return kFunctions; }

Result<Rule> lower_rule(const RuleSyntax& syntax, const graph::SchemaTable& schemas) {
  Rule rule = syntax.head;
  for (const Target& target : rule.targets)
    if (target.op.starts_with("aten.") && !schemas.find(target.op))
      return Error{fmt::format("{}:{}:1: rule {}: expected an operator as target, found '{}'",
                               rule.file, rule.line, rule.name, target.op)};
  if (rule.extends) return rule;
  OPFUSE_TRY(rule.composition, lower_block(rule, syntax.composition, "composition", schemas));
  if (rule.composition.graph.results.size() != syntax.returns.size())
    return Error{fmt::format("{}:{}:1: rule {}: expected {} results, found {}", rule.file,
                             syntax.composition.line, rule.name, syntax.returns.size(),
                             rule.composition.graph.results.size())};
  OPFUSE_TRY_STATUS(check_results(rule, rule.composition));
  for (const SpellingSyntax& spelling : syntax.spellings) {
    OPFUSE_TRY(Spelling lowered, lower_block(rule, spelling.block, spelling.title, schemas));
    lowered.equivalence = spelling.equivalence;
    OPFUSE_TRY_STATUS(check_results(rule, lowered));
    rule.spellings.push_back(std::move(lowered));
  }
  for (const NearSyntax& near : syntax.near) {
    OPFUSE_TRY(NearNeighbour lowered, lower_near(rule, near, schemas));
    OPFUSE_TRY_STATUS(check_results(rule, lowered.spelling));
    rule.near.push_back(std::move(lowered));
  }
  OPFUSE_TRY_STATUS(check_names(rule));
  return rule;
}

}  // namespace opfuse::match
