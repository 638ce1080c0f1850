#pragma once
// The functions of the rule language and the operators that they call.

#include <span>
#include <string_view>

namespace opfuse::match {

// Arguments are those of the overload's schema. Beside these there are `to`, `dtype`, `shape`,
// `chunk` and `reshape`, which call no single overload.
struct RuleFunction {
  std::string_view name, overload;
};
std::span<const RuleFunction> rule_functions();
const RuleFunction* find_rule_function(std::string_view name);

// What a pattern holds where the graph may hold several operators, or none.
constexpr std::string_view kReshape = "rule.reshape";  // operators that change the shape alone
constexpr std::string_view kTo = "rule.to";            // a cast, or nothing where the dtype is that

}  // namespace opfuse::match
