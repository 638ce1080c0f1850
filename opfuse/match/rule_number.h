#pragma once
// Numbers that a rule computes from its number parameters and its sizes: `1 / sqrt(d)`, `1 - p`.
// A constant of the graph that stands where such a number is expected binds the parameter, when it
// is the only one not bound yet, or is compared with the number's value.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace opfuse::match {

struct Number {
  enum class Kind : uint8_t { kConstant, kName, kAdd, kSub, kMul, kDiv, kPow, kNeg, kSqrt };
  Kind kind = Kind::kConstant;
  double constant = 0;
  bool integral = false;  // kConstant: written without a point
  int name = -1;          // kName: index of the parameter, or of the size after all parameters
  std::vector<Number> operands;

  bool is_constant() const { return kind == Kind::kConstant; }
};

Number constant(double value, bool integral);
Number named_number(int name);
// Arithmetic of constants is done at once; of anything else it is kept.
Number combined(Number::Kind kind, std::vector<Number> operands);

using NumberBindings = std::vector<std::optional<double>>;  // by name

// Nothing while a name is not bound.
std::optional<double> value_of(const Number& number, const NumberBindings& bindings);

// Binds the one free name so that `number` equals `value`; nothing happens where none or several
// are free, or where no such value exists.
void solve_number(const Number& number, double value, NumberBindings* bindings);

// "1 / sqrt(d)".
std::string number_text(const Number& number, std::span<const std::string> names);

}  // namespace opfuse::match
