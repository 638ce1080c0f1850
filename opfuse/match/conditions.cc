// The solver's last part: what must hold of shapes, numbers and dtypes once every operator is
// bound.

#include <algorithm>
#include <cmath>

#include "opfuse/match/solver.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::match {
namespace {

using graph::Graph;
using graph::kNone;
using graph::ValueId;

template <class Float>
bool within_one_ulp(Float a, Float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b || std::nextafter(a, b) == b;
}

bool compares(const std::string& sign, double a, double b) {
  if (sign == "==") return same_constant(a, b, DType::kF32);
  if (sign == "!=") return !same_constant(a, b, DType::kF32);
  if (sign == "<") return a < b;
  if (sign == "<=") return a <= b;
  if (sign == ">") return a > b;
  return a >= b;
}

// A comparison of numbers that are not known.
bool is_open(const Guard& guard, const NumberBindings& numbers) {
  return guard.kind == Guard::Kind::kCompare &&
         (!value_of(guard.left, numbers) || !value_of(guard.right, numbers));
}

// Made by an operator that draws random numbers; products with a number may follow, as in
// bernoulli_(keep).div_(keep).
bool is_drawn(const Graph& graph, ValueId value) {
  while (value != kNone && graph.values[value].producer != kNone) {
    const graph::Node& maker = graph.nodes[graph.values[value].producer];
    if (maker.random) return true;
    const bool scaled = maker.op == "aten.mul.Tensor" && maker.inputs[1].values.size() == 1 &&
                        maker.inputs[1].values[0] != kNone &&
                        graph.values[maker.inputs[1].values[0]].meta.number.has_value();
    if (!scaled) return false;
    value = maker.inputs[0].values[0];
  }
  return false;
}

}  // namespace

bool same_constant(double a, double b, DType dtype) {
  if (dtype == DType::kF64) return within_one_ulp(a, b);
  return within_one_ulp(static_cast<float>(a), static_cast<float>(b));
}

bool Solver::finish() {
  const Rule& rule = *pattern_->rule;
  numbers_.assign(rule.parameters.size() + rule.sizes.size(), std::nullopt);
  shapes_known_ = true;
  if (pattern_->near) return check_dtypes();  // a neighbour is told apart by its own conditions
  return check_shapes() && check_numbers() && check_dtypes() && check_guards();
}

bool Solver::check_shapes() {
  const Rule& rule = *pattern_->rule;
  std::vector<std::vector<int64_t>> rest;
  for (size_t i = 0; i < rule.parameters.size(); ++i) {
    const ValueId value = values_[i];
    if (!rule.parameters[i].is_tensor || value == kNone) continue;
    if (!check_shape(rule.parameters[i].tensor, value, &rest))
      return fail(Mismatch::Kind::kShape, static_cast<ValueId>(i), value, kNone,
                  static_cast<int>(i));
  }
  for (size_t i = 0; i < rule.returns.size(); ++i) {
    const ValueId value = values_[pattern_->graph().results[i]];
    if (!check_shape(rule.returns[i], value, &rest))
      return fail(Mismatch::Kind::kShape, pattern_->graph().results[i], value, kNone, -1);
  }
  return true;
}

bool Solver::shapes_agree_so_far() {
  const Rule& rule = *pattern_->rule;
  if (pattern_->near) return true;
  numbers_.assign(rule.parameters.size() + rule.sizes.size(), std::nullopt);
  std::vector<std::vector<int64_t>> rest;
  for (size_t i = 0; i < rule.parameters.size(); ++i)
    if (rule.parameters[i].is_tensor && values_[i] != kNone &&
        !check_shape(rule.parameters[i].tensor, values_[i], &rest))
      return false;
  return true;
}

// `rest` holds what `...` is, once it is known.
bool Solver::check_shape(const TensorType& type, ValueId value,
                         std::vector<std::vector<int64_t>>* rest) {
  using Kind = Dimension::Kind;
  if (!type.has_shape) return true;
  const graph::TensorMeta& meta = graph_.values[value].meta;
  if (!meta.shape_known) {
    shapes_known_ = false;
    return true;
  }
  const auto is_run = [](const Dimension& one) {
    return one.kind == Kind::kRest || one.kind == Kind::kAnyRest || one.kind == Kind::kOnes;
  };
  const auto run = std::ranges::find_if(type.shape, is_run);
  const int64_t fixed = static_cast<int64_t>(type.shape.size()) - (run != type.shape.end());
  const int64_t spare = static_cast<int64_t>(meta.shape.size()) - fixed;
  if (spare < 0 || (run == type.shape.end() && spare > 0)) return false;
  size_t at = 0;
  for (const Dimension& one : type.shape) {
    if (is_run(one)) {
      const std::vector<int64_t> sizes(meta.shape.begin() + at, meta.shape.begin() + at + spare);
      at += spare;
      if (one.kind == Kind::kAnyRest) continue;
      if (one.kind == Kind::kOnes) {
        if (std::ranges::any_of(sizes, [](int64_t size) { return size != 1; })) return false;
        if (!rest->empty() && rest->front().size() != sizes.size()) return false;
        continue;
      }
      if (rest->empty()) rest->push_back(sizes);
      if (rest->front() != sizes) return false;
      continue;
    }
    const double size = static_cast<double>(meta.shape[at++]);
    if (one.kind == Kind::kSize && size != static_cast<double>(one.size)) return false;
    if (one.kind != Kind::kName) continue;
    std::optional<double>& bound = numbers_[one.name];
    if (!bound) bound = size;
    if (*bound != size) return false;
  }
  return true;
}

bool Solver::check_numbers() {
  const std::vector<Number>& numbers = pattern_->spelling->numbers;
  // What stands alone binds first; an expression of one free name then gives that name.
  for (int pass = 0; pass < 2; ++pass)
    for (const Observation& one : observations_)
      if (pass == 1 || numbers[one.hole].kind == Number::Kind::kName)
        solve_number(numbers[one.hole], one.value, &numbers_);
  for (const Observation& one : observations_) {
    const std::optional<double> value = value_of(numbers[one.hole], numbers_);
    if (!value || !same_constant(*value, one.value, one.dtype))
      return fail(Mismatch::Kind::kNumber, kNone, one.at, kNone, one.hole, one.value);
  }
  const std::vector<RuleParameter>& parameters = pattern_->rule->parameters;
  for (size_t i = 0; i < parameters.size(); ++i)
    if (parameters[i].type == "int" && numbers_[i] && *numbers_[i] != std::floor(*numbers_[i]))
      return fail(Mismatch::Kind::kNumber, kNone, values_[pattern_->graph().results[0]], kNone, -1,
                  *numbers_[i]);
  return true;
}

bool Solver::check_dtypes() {
  for (const DtypeCheck& one : dtypes_) {
    const ValueId value = values_[one.parameter];
    const DType dtype = value == kNone ? DType::kUnknown : graph_.values[value].meta.dtype;
    if (dtype == DType::kUnknown || dtype != one.dtype)
      return fail(Mismatch::Kind::kDtype, kNone, one.at, kNone, one.parameter);
  }
  const std::vector<RuleParameter>& parameters = pattern_->rule->parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const ValueId value = values_[i];
    if (value == kNone) continue;
    const DType wanted = parameters[i].tensor.dtype;
    if (wanted != DType::kUnknown && graph_.values[value].meta.dtype != wanted)
      return fail(Mismatch::Kind::kDtype, kNone, value, kNone, static_cast<int>(i));
    if (parameters[i].random && !is_drawn(graph_, value))
      return fail(Mismatch::Kind::kRandom, kNone, value, kNone, static_cast<int>(i));
  }
  return true;
}

bool Solver::check_guards() {
  const std::vector<Guard>& guards = pattern_->rule->guards;
  for (size_t i = 0; i < guards.size(); ++i)
    if (!guard_holds(graph_, *pattern_, guards[i], values_, numbers_) &&
        !(assume_unknown_ && is_open(guards[i], numbers_)))
      return fail(Mismatch::Kind::kGuard, kNone, values_[pattern_->graph().results[0]], kNone,
                  static_cast<int>(i));
  return true;
}

bool guard_holds(const Graph& graph, const Pattern& pattern, const Guard& guard,
                 const std::vector<ValueId>& values, const NumberBindings& numbers) {
  if (guard.kind == Guard::Kind::kCompare) {
    const std::optional<double> a = value_of(guard.left, numbers);
    const std::optional<double> b = value_of(guard.right, numbers);
    return a && b && compares(guard.sign, *a, *b);
  }
  const ValueId a = values[index_of(pattern, guard.a)], b = values[index_of(pattern, guard.b)];
  if (a == kNone || b == kNone) return guard.kind == Guard::Kind::kNotSame && a != b;
  if (guard.kind == Guard::Kind::kNotSame) return a != b;
  const graph::TensorMeta &x = graph.values[a].meta, &y = graph.values[b].meta;
  if (!x.shape_known || !y.shape_known) return false;
  return (x.shape == y.shape) == (guard.kind == Guard::Kind::kSameShape);
}

}  // namespace opfuse::match
