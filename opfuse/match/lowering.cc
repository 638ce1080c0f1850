#include "opfuse/match/lowering.h"

#include <algorithm>
#include <charconv>
#include <numbers>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "opfuse/graph/canonical.h"
#include "opfuse/graph/text.h"
#include "opfuse/match/rule_functions.h"

namespace opfuse::match {

using graph::Graph;
using graph::kNone;
using graph::ValueId;
using Kind = Number::Kind;

namespace {

void names_in(const Number& number, std::set<int>* names) {
  if (number.kind == Kind::kName) names->insert(number.name);
  for (const Number& operand : number.operands) names_in(operand, names);
}

bool is_list(const graph::SchemaArgument& formal) {
  return formal.type.find("[]") != std::string::npos;
}

const graph::SchemaArgument* formal_of(const graph::Schema& schema, const std::string& keyword,
                                       size_t position) {
  if (keyword.empty())
    return position < schema.arguments.size() ? &schema.arguments[position] : nullptr;
  auto it = std::ranges::find(schema.arguments, keyword, &graph::SchemaArgument::name);
  return it == schema.arguments.end() ? nullptr : &*it;
}

}  // namespace

Lowering::Lowering(const Rule& rule, const graph::SchemaTable& schemas, Options options)
    : rule_(rule), schemas_(schemas), options_(options) {
  for (size_t i = 0; i < rule.parameters.size(); ++i) {
    const RuleParameter& parameter = rule.parameters[i];
    Term term{parameter.name, std::nullopt, false};
    if (!parameter.is_tensor) term.number = named_number(static_cast<int>(i));
    term.none = (options.absent >> i & 1) != 0;
    bindings_[parameter.name] = std::move(term);
  }
  const int parameters = static_cast<int>(rule.parameters.size());
  for (size_t i = 0; i < rule.sizes.size(); ++i)
    bindings_.try_emplace(rule.sizes[i],
                          Term{"", named_number(parameters + static_cast<int>(i)), false});
}

template <class Located>
Error Lowering::fail(const Located& at, const std::string& sentence) const {
  return Error{fmt::format("{}:{}:{}: {}", rule_.file, at.line, at.column, sentence)};
}

int Lowering::hole(const Number& number) {
  numbers_.push_back(number);
  return static_cast<int>(numbers_.size()) - 1;
}

// As an argument that is no tensor.
std::string Lowering::text(const Term& term) {
  if (term.none) return "None";
  if (!term.number) return "%" + term.name;
  const Number& number = *term.number;
  if (!number.is_constant()) return fmt::format("<number {}>", hole(number));
  if (number.integral) return fmt::to_string(static_cast<int64_t>(number.constant));
  return graph::print_attr(graph::Attr{number.constant});
}

// In a tensor's place.
std::string Lowering::tensor_text(const Term& term) {
  if (!term.number || term.number->is_constant()) return text(term);
  value_holes_.push_back(fmt::format("number.{}", hole(*term.number)));
  return "%" + value_holes_.back();
}

Status Lowering::block(const Block& block) {
  for (const Binding& binding : block.bindings) {
    for (const std::string& name : binding.names)
      if (bindings_.contains(name)) return fail(binding, fmt::format("'{}' is bound twice", name));
    if (binding.names.size() > 1) {
      OPFUSE_TRY_STATUS(several(binding));
      continue;
    }
    OPFUSE_TRY(Term term, value(binding.value));
    bindings_[binding.names[0]] = term;
  }
  for (const Expression& result : block.results) OPFUSE_TRY_STATUS(returns(result));
  return ok_status();
}

Status Lowering::returns(const Expression& expression) {
  OPFUSE_TRY(Term term, value(expression));
  if (term.number) return fail(expression, "expected a tensor as the result, found a number");
  results_.push_back(text(term));
  return ok_status();
}

Status Lowering::substitute(const std::string& parameter, const Expression& expression) {
  OPFUSE_TRY(Term term, value(expression));
  bindings_[parameter] = term;
  return ok_status();
}

Result<Number> Lowering::number_of(const Expression& expression) {
  OPFUSE_TRY(Term term, value(expression));
  if (term.number) return *term.number;
  return fail(expression, "expected a number of parameters and sizes, found a tensor");
}

Lowering::Term Lowering::emit(const std::string& call, const Expression& at,
                              const std::vector<std::string>& names) {
  std::vector<std::string> types;
  for (const std::string& name : names) types.push_back(fmt::format("%{}: f32", name));
  lines_.emplace_back(fmt::format("{} = {}", fmt::join(types, ", "), call), &at);
  return {names[0], std::nullopt, false};
}

Lowering::Term Lowering::emit(const std::string& call, const Expression& at) {
  return emit(call, at, {fmt::format("t{}", names_++)});
}

// a, b = chunk(x, 2, dim=-1): as many names as the call has results.
Status Lowering::several(const Binding& binding) {
  const Expression& e = binding.value;
  if (e.kind != ExpressionKind::kCall)
    return fail(e, "expected a call of a function with several results");
  std::string text;
  if (e.text == "chunk") {
    OPFUSE_TRY(text, chunk_text(e, binding.names.size()));
  } else {
    const RuleFunction* function = find_rule_function(e.text);
    const graph::Schema* schema = function ? schemas_.find(function->overload) : nullptr;
    const bool list =
        schema && schema->returns.size() == 1 && schema->returns[0].type == "Tensor[]";
    const size_t results = list ? binding.names.size() : schema ? schema->returns.size() : 1;
    if (results != binding.names.size())
      return fail(e, fmt::format("expected {} names for the results of {}, found {}", results,
                                 e.text, binding.names.size()));
    OPFUSE_TRY(text, call_text(e));
  }
  std::vector<std::string> names;
  for (const std::string& name : binding.names) {
    names.push_back(fmt::format("t{}", names_++));
    bindings_[name] = {names.back(), std::nullopt, false};
  }
  emit(text, e, names);
  return ok_status();
}

Result<Lowering::Term> Lowering::value(const Expression& e) {
  switch (e.kind) {
    case ExpressionKind::kName:
      return name(e);
    case ExpressionKind::kNumber:
      return literal(e);
    case ExpressionKind::kUnary:
      return negation(e);
    case ExpressionKind::kBinary:
      return binary(e);
    case ExpressionKind::kCall:
      return call(e);
    case ExpressionKind::kConditional:
      return conditional(e);
    default:
      return fail(e, "expected a tensor or a number");
  }
}

Result<Lowering::Term> Lowering::name(const Expression& e) {
  auto it = bindings_.find(e.text);
  if (it != bindings_.end()) return it->second;
  if (e.text == "pi") return Term{"", constant(std::numbers::pi, false), false};
  if (!options_.free_names)
    return fail(e, fmt::format("expected a parameter or a binding, found '{}'", e.text));
  others_.push_back(e.text);
  bindings_[e.text] = {e.text, std::nullopt, false};
  return bindings_[e.text];
}

Result<Lowering::Term> Lowering::literal(const Expression& e) {
  double value = 0;
  auto [end, error] = std::from_chars(e.text.data(), e.text.data() + e.text.size(), value);
  if (error != std::errc() || end != e.text.data() + e.text.size())
    return fail(e, fmt::format("expected a number, found '{}'", e.text));
  const bool integral = e.text.find_first_not_of("0123456789") == std::string::npos;
  return Term{"", constant(value, integral), false};
}

Result<Lowering::Term> Lowering::negation(const Expression& e) {
  OPFUSE_TRY(Term operand, value(e.children[0]));
  if (operand.number) return Term{"", combined(Kind::kNeg, {*operand.number}), false};
  return emit(fmt::format("aten.neg({})", text(operand)), e);
}

Result<Lowering::Term> Lowering::conditional(const Expression& e) {
  auto it = std::ranges::find(rule_.parameters, e.keywords[0], &RuleParameter::name);
  if (it == rule_.parameters.end() || !it->optional)
    return fail(
        e, fmt::format("expected an optional parameter after 'if', found '{}'", e.keywords[0]));
  const bool given = (options_.absent >> (it - rule_.parameters.begin()) & 1) == 0;
  return value(e.children[given != (e.text == "not") ? 0 : 1]);
}

// The canonical form knows constants only: what stands for a number is put where that form would.
Result<Lowering::Term> Lowering::binary(const Expression& e) {
  OPFUSE_TRY(Term a, value(e.children[0]));
  OPFUSE_TRY(Term b, value(e.children[1]));
  for (const auto& [term, child] : {std::pair(&a, 0), std::pair(&b, 1)}) {
    if (!term->none) continue;
    needs_absent_ = true;
    return fail(e.children[child], fmt::format("'{}' may be absent: expected '… if {} else …'",
                                               term->name, term->name));
  }
  static const std::map<std::string, std::pair<std::string_view, Kind>> kOps = {
      {"+", {"add.Tensor", Kind::kAdd}},
      {"-", {"sub.Tensor", Kind::kSub}},
      {"*", {"mul.Tensor", Kind::kMul}},
      {"/", {"div.Tensor", Kind::kDiv}},
      {"**", {"pow.Tensor_Scalar", Kind::kPow}}};
  if (e.text == "@") {
    if (a.number || b.number) return fail(e, "expected two matrices around '@'");
    return emit(fmt::format("aten.mm({}, {})", text(a), text(b)), e);
  }
  auto [op, kind] = kOps.at(e.text);
  if (a.number && b.number) return Term{"", combined(kind, {*a.number, *b.number}), false};
  if (kind == Kind::kPow) {
    if (!b.number) return fail(e.children[1], "expected a number as the exponent, found a tensor");
    return emit(fmt::format("aten.pow.Tensor_Scalar({}, {})", text(a), text(b)), e);
  }
  const bool open = b.number && !b.number->is_constant();
  if (open && kind == Kind::kDiv) {
    b.number = combined(Kind::kDiv, {constant(1, true), *b.number});
    op = "mul.Tensor";
  } else if (open && kind == Kind::kSub) {
    b.number = combined(Kind::kNeg, {*b.number});
    op = "add.Tensor";
  }
  if (a.number && (kind == Kind::kAdd || kind == Kind::kMul)) std::swap(a, b);
  const std::string left = tensor_text(a), right = tensor_text(b);
  return emit(fmt::format("aten.{}({}, {})", op, left, right), e);
}

Result<Lowering::Term> Lowering::call(const Expression& e) {
  if (e.text == "to") return cast(e);
  if (e.text == "reshape") return reshape(e);
  if (e.text == "sqrt" && e.children.size() == 1) return square_root(e);
  if (e.text == "chunk") return fail(e, "expected several names for the results of chunk");
  OPFUSE_TRY(std::string text, call_text(e));
  const graph::Schema* schema = schemas_.find(find_rule_function(e.text)->overload);
  std::vector<std::string> names;
  for (size_t i = 0; i < std::max<size_t>(1, schema->returns.size()); ++i)
    names.push_back(fmt::format("t{}", names_++));
  return emit(text, e, names);  // the first result
}

Result<std::string> Lowering::call_text(const Expression& e) {
  const RuleFunction* function = find_rule_function(e.text);
  if (!function)
    return fail(e, fmt::format("expected a function of docs/rulebook.md, found '{}'", e.text));
  const graph::Schema* schema = schemas_.find(function->overload);
  std::vector<std::string> arguments;
  for (size_t i = 0; i < e.children.size(); ++i) {
    OPFUSE_TRY(std::string text, argument(e.children[i], e.keywords[i], i, *schema));
    arguments.push_back(std::move(text));
  }
  return fmt::format("{}({})", function->overload, fmt::join(arguments, ", "));
}

// Recorded as a split into parts of equal size; which size depends on the tensor.
Result<std::string> Lowering::chunk_text(const Expression& e, size_t parts) {
  if (e.children.size() < 2 || e.children[1].text != std::to_string(parts))
    return fail(e, fmt::format("expected chunk(x, {}, dim) for {} names", parts, parts));
  OPFUSE_TRY(Term x, value(e.children[0]));
  if (x.number || x.none) return fail(e.children[0], "expected a tensor");
  Term dim{"", constant(0, true), false};
  if (e.children.size() > 2) {
    OPFUSE_TRY(dim, value(e.children[2]));
    if (!dim.number) return fail(e.children[2], "expected a number as the dimension");
  }
  return fmt::format("aten.split.Tensor({}, <any>, {})", text(x), text(dim));
}

// Of a number, it is a number: sqrt(2 / pi).
Result<Lowering::Term> Lowering::square_root(const Expression& e) {
  OPFUSE_TRY(Term operand, value(e.children[0]));
  if (operand.number) return Term{"", combined(Kind::kSqrt, {*operand.number}), false};
  return emit(fmt::format("aten.sqrt({})", text(operand)), e);
}

// to(x, f32), to(x, dtype(y)).
Result<Lowering::Term> Lowering::cast(const Expression& e) {
  if (e.children.size() != 2) return fail(e, "expected to(tensor, dtype)");
  OPFUSE_TRY(Term operand, value(e.children[0]));
  needs_absent_ = needs_absent_ || operand.none;
  if (operand.number || operand.none) return fail(e.children[0], "expected a tensor");
  const Expression& dtype = e.children[1];
  std::string wanted;
  if (dtype.kind == ExpressionKind::kName && dtype_from_name(dtype.text)) {
    wanted = dtype.text;
  } else if (dtype.kind == ExpressionKind::kCall && dtype.text == "dtype" &&
             dtype.children.size() == 1) {
    const std::string& name = dtype.children[0].text;
    auto it = std::ranges::find(rule_.parameters, name, &RuleParameter::name);
    if (it == rule_.parameters.end() || !it->is_tensor)
      return fail(dtype.children[0], fmt::format("expected a tensor parameter, found '{}'", name));
    wanted = fmt::format("dtype {}", it - rule_.parameters.begin());
  } else {
    return fail(dtype, "expected a dtype such as f32, or dtype(x)");
  }
  return emit(fmt::format("{}({}, <{}>)", kTo, text(operand), wanted), e);
}

Result<Lowering::Term> Lowering::reshape(const Expression& e) {
  const bool sized = e.children.size() == 2 && e.children[1].kind == ExpressionKind::kList;
  if (e.children.size() != 1 && !sized)
    return fail(e, "expected reshape(tensor) or reshape(tensor, [size, _, …])");
  OPFUSE_TRY(Term operand, value(e.children[0]));
  needs_absent_ = needs_absent_ || operand.none;
  if (operand.number || operand.none) return fail(e.children[0], "expected a tensor");
  if (!sized) return emit(fmt::format("{}({})", kReshape, text(operand)), e);
  std::vector<std::string> sizes;
  for (const Expression& child : e.children[1].children) {
    if (child.kind == ExpressionKind::kName && child.text == "_") {
      sizes.emplace_back("_");
      continue;
    }
    if (child.kind == ExpressionKind::kString && child.text == "..." && sizes.empty()) {
      sizes.emplace_back("...");
      continue;
    }
    OPFUSE_TRY(Number size, number_of(child));
    sizes.push_back(fmt::to_string(hole(size)));
  }
  return emit(fmt::format("{}({}, \"{}\")", kReshape, text(operand), fmt::join(sizes, ",")), e);
}

// `keepdim` alone is keepdim=True.
Result<std::string> Lowering::argument(const Expression& e, const std::string& keyword,
                                       size_t position, const graph::Schema& schema) {
  std::string prefix = keyword.empty() ? "" : keyword + "=";
  const graph::SchemaArgument* formal = formal_of(schema, keyword, position);
  if (e.kind == ExpressionKind::kString) return prefix + graph::print_attr(graph::Attr{e.text});
  if (e.kind == ExpressionKind::kList) {
    std::vector<std::string> items;
    for (const Expression& child : e.children) {
      OPFUSE_TRY(Term item, value(child));
      if (item.number && !item.number->is_constant() && e.children.size() == 1)
        return prefix + text(item);  // a list of one is that number
      if (item.number && !item.number->is_constant())
        return fail(child, "expected a constant: of several sizes only constants are compared");
      items.push_back(text(item));
    }
    return fmt::format("{}[{}]", prefix, fmt::join(items, ", "));
  }
  if (e.kind == ExpressionKind::kName && !bindings_.contains(e.text)) {
    if (e.text == "None" || e.text == "True" || e.text == "False") return prefix + e.text;
    if (e.text == "_") return prefix + "<any>";
    for (const graph::SchemaArgument& flag : schema.arguments)
      if (keyword.empty() && flag.type == "bool" && flag.name == e.text) return e.text + "=True";
  }
  OPFUSE_TRY(Term term, value(e));
  if (formal && (formal->is_tensor() || formal->is_tensor_list()))
    return prefix + tensor_text(term);
  const bool open = term.number && !term.number->is_constant();
  if (formal && is_list(*formal) && !open) return fmt::format("{}[{}]", prefix, text(term));
  return prefix + text(term);
}

Result<Spelling> Lowering::finish(const std::string& name, int line) {
  std::string text;
  std::vector<std::string> externals;
  for (const RuleParameter& parameter : rule_.parameters) {
    const DType dtype = parameter.tensor.dtype;
    text += fmt::format("%{}: {}\n", parameter.name,
                        dtype == DType::kUnknown ? "f32" : dtype_name(dtype));
    externals.push_back(parameter.name);
  }
  for (const std::string& other : others_) text += fmt::format("%{}: f32\n", other);
  externals.insert(externals.end(), others_.begin(), others_.end());
  for (const std::string& hole : value_holes_) text += fmt::format("%{}: f64[] wrapped\n", hole);
  for (const auto& [content, source] : lines_) text += content + "\n";
  text += fmt::format("return {}\n", fmt::join(results_, ", "));
  Result<Graph> parsed = graph::parse_graph(text, schemas_);
  if (!parsed.ok())
    return located(parsed.error().message, externals.size() + value_holes_.size(), line);
  Graph canonical = graph::canonicalize(*parsed).graph;
  Spelling spelling;
  spelling.name = name;
  spelling.line = line;
  spelling.absent = options_.absent;
  spelling.numbers = numbers_;
  OPFUSE_TRY(spelling.graph, compacted(std::move(canonical), externals, line));
  return spelling;
}

// An error of the text form, told at the expression that its line came from.
Error Lowering::located(const std::string& message, size_t externals, int line) const {
  size_t number = 0;
  std::from_chars(message.data(), message.data() + message.size(), number);
  size_t sentence = message.find(": ");
  if (number > externals && number - externals <= lines_.size())
    return fail(*lines_[number - externals - 1].second, message.substr(sentence + 2));
  return Error{fmt::format("{}:{}:1: {}", rule_.file, line, message)};
}

bool Lowering::is_used(const Graph& graph, ValueId id) const {
  if (static_cast<size_t>(id) < rule_.parameters.size() && !rule_.parameters[id].is_tensor) {
    std::set<int> names;
    for (const Number& number : numbers_) names_in(number, &names);
    return names.contains(id);
  }
  return !graph.users[id].empty() || std::ranges::find(graph.results, id) != graph.results.end();
}

// Externals in the order of the parameters, and no value that nothing uses.
Result<Graph> Lowering::compacted(Graph graph, const std::vector<std::string>& externals,
                                  int line) const {
  std::vector<ValueId> place(graph.values.size(), kNone);
  std::vector<graph::Value> kept;
  for (ValueId id = 0; id < static_cast<ValueId>(graph.values.size()); ++id) {
    bool external = id < static_cast<ValueId>(externals.size());
    bool used = is_used(graph, id);
    bool absent = external && id < 32 && (options_.absent >> id & 1) != 0;
    if (external && !used && !absent && !options_.free_names)  // a neighbour may lack a parameter
      return Error{fmt::format("{}:{}:1: '{}' is not used", rule_.file, line, externals[id])};
    if (external && std::ranges::find(graph.results, id) != graph.results.end())
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
    for (ValueId& value : node.outputs) value = value == kNone ? kNone : place[value];
  }
  for (ValueId& value : graph.results) value = place[value];
  index_users(&graph);
  return graph;
}

}  // namespace opfuse::match
