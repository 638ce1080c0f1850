#pragma once
// From the syntax tree of a rule to the rule: its compositions, spellings and neighbours as
// canonical graphs, with the alternatives that follow from them.

#include "opfuse/base/result.h"
#include "opfuse/graph/schema.h"
#include "opfuse/match/rule_ast.h"
#include "opfuse/match/rule_functions.h"

namespace opfuse::match {

Result<Rule> lower_rule(const RuleSyntax& syntax, const graph::SchemaTable& schemas);

}  // namespace opfuse::match
