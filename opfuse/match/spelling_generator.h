#pragma once
// Random ways of writing the formulas of some rules, as recorded graphs in text form, and mutants
// of them. Knows nothing of canonical.cc or alternatives.cc: it writes what a programmer may write.
// For tests.

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace opfuse::match::testing {

struct Formula;
using FormulaPtr = std::shared_ptr<const Formula>;

// op: "x", "z" (another tensor), "number", or an operator's word: add, sub, mul (of any number of
// factors), div, neg, square, cube, sqrt, rsqrt, clamp (bounds in `number`, `number2`), mean, sum,
// amax, exp, …
struct Formula {
  std::string op;
  std::vector<FormulaPtr> operands;
  double number = 0, number2 = 0;
};

// Formula by the rule's name.
const std::map<std::string, FormulaPtr>& formulas();

// What may be wrong with a mutant.
enum class Fault {
  kNumber,    // another constant
  kOperand,   // another tensor in place of one use of x
  kFunction,  // another function
  kUse,       // an inner value is returned too
  kWrite,     // an inner value or x is written in between
  kDim,       // reduced over another dimension
  kCast,      // a part is computed in another dtype
  kEps,       // eps outside of the root
};

class Speller {
 public:
  explicit Speller(uint64_t seed) : random_(seed) {}

  // The graph as text; its result is returned. `x` is f32[4,6], `z` as well.
  std::string spell(const FormulaPtr& formula);
  // The formula with one fault of the kinds that change it; null when it has no place for the kind.
  FormulaPtr changed(const FormulaPtr& formula, Fault fault);
  // The text of the formula with a fault of the kinds kUse, kWrite and kCast.
  std::string spell_with(const FormulaPtr& formula, Fault fault);

 private:
  int pick(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  std::string line(const std::string& call, const std::string& shape);
  std::string emit(const FormulaPtr& f);
  std::string emit_plain(const FormulaPtr& f);
  std::string decorated(const std::string& value, const std::string& shape);
  std::string sum_of(const std::string& a, const FormulaPtr& b, bool minus,
                     const std::string& shape);
  std::string with_number(const std::string& a, double c, const std::string& op,
                          const std::string& shape);
  std::string product(std::vector<FormulaPtr> factors);
  std::string quotient(const Formula& f, const std::string& shape);
  std::string clamp(const Formula& f, const std::string& shape);
  std::string reduction(const Formula& f);
  std::string number_text(double c);

  std::mt19937_64 random_;
  std::string text_;
  std::map<const Formula*, std::string> done_;
  std::map<std::string, std::string> shapes_;  // by value
  std::vector<std::string> inner_;
  int next_ = 0;
};

}  // namespace opfuse::match::testing
