#pragma once
// The syntax tree of a rule file, as written; rule_lower.h turns compositions into graphs.

#include <memory>
#include <string>
#include <vector>

#include "opfuse/match/rule.h"
#include "opfuse/match/rule_lexer.h"

namespace opfuse::match {

enum class ExpressionKind : uint8_t {
  kName,
  kNumber,
  kString,
  kList,
  kCall,
  kUnary,
  kBinary,
  kConditional,
};

// `text` is the name, the number, the callee or the operator sign. kConditional: then, else.
struct Expression {
  ExpressionKind kind = ExpressionKind::kName;
  std::string text;
  std::vector<Expression> children;
  std::vector<std::string>
      keywords;  // kCall: "" or the argument's name; kConditional: the parameter
  int line = 0, column = 0;
};

struct Binding {
  std::vector<std::string> names;
  Expression value;
  int line = 0, column = 0;
};

struct Block {
  std::vector<Binding> bindings;
  std::vector<Expression> results;
  int line = 0, column = 0;
};

struct SpellingSyntax {
  std::string title;
  Equivalence equivalence = Equivalence::kE1;
  Block block;
};

// `eps > 0`, `dim == -1`: both sides as written; names become numbers when the rule is lowered.
struct Condition {
  Guard guard;
  Expression left, right;  // kCompare
  int line = 0, column = 0;
};

struct NearSyntax {
  std::string title, why;
  std::string
      substituted;  // `if weight is EXPR`: the parameter that EXPR stands for; "" whole formula
  Expression formula;
  std::vector<Condition> conditions;
  int line = 0, column = 0;
};

struct RuleSyntax {
  Rule head;  // everything but the graphs and the conditions
  std::vector<Condition> conditions;
  Block composition;
  std::vector<SpellingSyntax> spellings;
  std::vector<NearSyntax> near;
};

Result<std::vector<RuleSyntax>> parse_rule_syntax(std::string_view text, std::string_view file);

}  // namespace opfuse::match
