#pragma once
// Compositions as graphs of ATen overloads: what the names, signs and functions of the rule
// language stand for.

#include <span>
#include <string_view>

#include "opfuse/base/result.h"
#include "opfuse/graph/schema.h"
#include "opfuse/match/rule_ast.h"

namespace opfuse::match {

// A function of the rule language and the overload that it calls; arguments are those of its
// schema.
struct RuleFunction {
  std::string_view name, overload;
};
std::span<const RuleFunction> rule_functions();

// `syntax` with its compositions, spellings and neighbours as canonical graphs.
Result<Rule> lower_rule(const RuleSyntax& syntax, const graph::SchemaTable& schemas);

}  // namespace opfuse::match
