#include "opfuse/match/rule_number.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace opfuse::match {
namespace {

using Kind = Number::Kind;

double apply(Kind kind, double a, double b) {
  switch (kind) {
    case Kind::kAdd:
      return a + b;
    case Kind::kSub:
      return a - b;
    case Kind::kMul:
      return a * b;
    case Kind::kDiv:
      return a / b;
    case Kind::kPow:
      return std::pow(a, b);
    case Kind::kNeg:
      return -a;
    case Kind::kSqrt:
      return std::sqrt(a);
    default:
      return a;
  }
}

// The left operand x of `x kind b == value`.
double undo_left(Kind kind, double b, double value) {
  switch (kind) {
    case Kind::kAdd:
      return value - b;
    case Kind::kSub:
      return value + b;
    case Kind::kMul:
      return value / b;
    case Kind::kDiv:
      return value * b;
    case Kind::kPow:
      return std::pow(value, 1 / b);
    case Kind::kNeg:
      return -value;
    case Kind::kSqrt:
      return value * value;
    default:
      return value;
  }
}

// The right operand y of `a kind y == value`.
double undo_right(Kind kind, double a, double value) {
  switch (kind) {
    case Kind::kAdd:
      return value - a;
    case Kind::kSub:
      return a - value;
    case Kind::kMul:
      return value / a;
    case Kind::kDiv:
      return a / value;
    case Kind::kPow:
      return std::log(value) / std::log(a);
    default:
      return value;
  }
}

}  // namespace

Number constant(double value, bool integral) {
  Number number;
  number.constant = value;
  number.integral = integral;
  return number;
}

Number named_number(int name) {
  Number number;
  number.kind = Kind::kName;
  number.name = name;
  return number;
}

Number combined(Kind kind, std::vector<Number> operands) {
  if (std::ranges::all_of(operands, &Number::is_constant)) {
    const double b = operands.size() > 1 ? operands[1].constant : 0;
    const bool whole = std::ranges::all_of(operands, &Number::integral);
    return constant(apply(kind, operands[0].constant, b),
                    whole && kind != Kind::kDiv && kind != Kind::kPow && kind != Kind::kSqrt);
  }
  Number number;
  number.kind = kind;
  number.operands = std::move(operands);
  return number;
}

std::optional<double> value_of(const Number& number, const NumberBindings& bindings) {
  if (number.kind == Kind::kConstant) return number.constant;
  if (number.kind == Kind::kName) return bindings[number.name];
  const std::optional<double> a = value_of(number.operands[0], bindings);
  if (!a) return std::nullopt;
  if (number.operands.size() == 1) return apply(number.kind, *a, 0);
  const std::optional<double> b = value_of(number.operands[1], bindings);
  if (!b) return std::nullopt;
  return apply(number.kind, *a, *b);
}

void solve_number(const Number& number, double value, NumberBindings* bindings) {
  if (std::isnan(value) || number.kind == Kind::kConstant) return;
  if (std::isinf(value) && number.kind != Kind::kName) return;
  if (number.kind == Kind::kName) {
    std::optional<double>& bound = (*bindings)[number.name];
    if (!bound) bound = value;
    return;
  }
  const std::optional<double> a = value_of(number.operands[0], *bindings);
  if (number.operands.size() == 1) {
    if (!a) solve_number(number.operands[0], undo_left(number.kind, 0, value), bindings);
    return;
  }
  const std::optional<double> b = value_of(number.operands[1], *bindings);
  if (!a && b) solve_number(number.operands[0], undo_left(number.kind, *b, value), bindings);
  if (a && !b) solve_number(number.operands[1], undo_right(number.kind, *a, value), bindings);
}

std::string number_text(const Number& number, std::span<const std::string> names) {
  const auto operand = [&](int i) {
    const Number& one = number.operands[i];
    const bool plain = one.operands.empty() || one.kind == Kind::kSqrt;
    return plain ? number_text(one, names) : "(" + number_text(one, names) + ")";
  };
  switch (number.kind) {
    case Kind::kConstant:
      return fmt::format("{:.9g}", number.constant);
    case Kind::kName:
      return names[number.name];
    case Kind::kNeg:
      return "-" + operand(0);
    case Kind::kSqrt:
      return fmt::format("sqrt({})", number_text(number.operands[0], names));
    case Kind::kAdd:
      return fmt::format("{} + {}", operand(0), operand(1));
    case Kind::kSub:
      return fmt::format("{} - {}", operand(0), operand(1));
    case Kind::kMul:
      return fmt::format("{} * {}", operand(0), operand(1));
    case Kind::kDiv:
      return fmt::format("{} / {}", operand(0), operand(1));
    case Kind::kPow:
      return fmt::format("{} ** {}", operand(0), operand(1));
  }
  return "";
}

}  // namespace opfuse::match
