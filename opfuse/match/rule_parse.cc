#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "opfuse/match/rule_ast.h"

namespace opfuse::match {
namespace {

class RuleParser {
 public:
  RuleParser(std::vector<Token> tokens, std::string_view text, std::string_view file)
      : tokens_(std::move(tokens)), text_(text), file_(file) {}

  Result<std::vector<RuleSyntax>> file() {
    std::vector<RuleSyntax> rules;
    while (peek().kind != TokenKind::kEnd) {
      OPFUSE_TRY(RuleSyntax next, rule());
      rules.push_back(std::move(next));
    }
    return rules;
  }

 private:
  const Token& peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  bool is(std::string_view text) const {
    const Token& t = peek();
    return (t.kind == TokenKind::kName || t.kind == TokenKind::kSign) && t.text == text;
  }
  bool eat(std::string_view text) {
    if (!is(text)) return false;
    ++at_;
    return true;
  }
  bool eat(TokenKind kind) {
    if (peek().kind != kind) return false;
    ++at_;
    return true;
  }
  Error fail(std::string_view expected) const {
    return Error{fmt::format("{}:{}:{}: expected {}, found {}", file_, peek().line, peek().column,
                             expected, describe(peek()))};
  }
  Error unsupported(const Token& at, std::string_view what) const {
    return Error{fmt::format("{}:{}:{}: not supported yet: {}", file_, at.line, at.column, what)};
  }
  Status expect(std::string_view text) {
    if (!eat(text)) return fail(fmt::format("'{}'", text));
    return ok_status();
  }
  Status expect(TokenKind kind, std::string_view what) {
    if (!eat(kind)) return fail(what);
    return ok_status();
  }
  Result<std::string> take(TokenKind kind, std::string_view what) {
    if (peek().kind != kind) return fail(what);
    return tokens_[at_++].text;
  }

  Result<RuleSyntax> rule() {
    RuleSyntax rule;
    size_t begin = peek().offset;
    rule.head.file = file_;
    rule.head.line = peek().line;
    rule.head.extends = eat("extend");
    if (!rule.head.extends && !eat("op")) return fail("'op' or 'extend'");
    OPFUSE_TRY(rule.head.name, take(TokenKind::kName, "the rule's name"));
    if (!rule.head.extends) OPFUSE_TRY_STATUS(signature(&rule));
    OPFUSE_TRY_STATUS(expect(TokenKind::kNewline, "the end of the line"));
    OPFUSE_TRY_STATUS(expect(TokenKind::kIndent, "an indented block"));
    while (!eat(TokenKind::kDedent)) {
      if (peek().kind == TokenKind::kEnd) return fail("a clause of the rule");
      OPFUSE_TRY_STATUS(clause(&rule));
    }
    std::string_view source = text_.substr(begin, peek().offset - begin);
    rule.head.source = std::string(source.substr(0, source.find_last_not_of(" \n") + 1));
    if (!rule.head.extends && rule.composition.results.empty())
      return Error{fmt::format("{}:{}:1: rule {}: expected a composition", file_, rule.head.line,
                               rule.head.name)};
    if (rule.head.targets.empty())
      return Error{fmt::format("{}:{}:1: rule {}: expected a target", file_, rule.head.line,
                               rule.head.name)};
    return rule;
  }

  // (x: T[..., n], weight: T[n]?, eps: float) -> T[..., n]  where T in f32, a is not b
  Status signature(RuleSyntax* rule) {
    OPFUSE_TRY_STATUS(expect("("));
    while (!eat(")")) {
      OPFUSE_TRY_STATUS(parameter(&rule->head));
      if (!eat(",") && !is(")")) return fail("',' or ')'");
    }
    OPFUSE_TRY_STATUS(expect("->"));
    bool several = eat("(");
    do {
      if (several && peek(1).text == ":") at_ += 2;
      OPFUSE_TRY(std::string type, type_text());
      rule->returns.push_back(std::move(type));
    } while (several && eat(","));
    if (several) OPFUSE_TRY_STATUS(expect(")"));
    if (eat("where")) return conditions(&rule->head.dtypes, &rule->head.guards);
    return ok_status();
  }

  Status parameter(Rule* rule) {
    Token at = peek();
    RuleParameter parameter;
    OPFUSE_TRY(parameter.name, take(TokenKind::kName, "a parameter's name"));
    OPFUSE_TRY_STATUS(expect(":"));
    if (is("random")) return unsupported(peek(), "random values as inputs");
    Token type_at = peek();
    OPFUSE_TRY(parameter.type, type_text());
    parameter.is_tensor =
        parameter.type.starts_with("T") || dtype_from_name(type_at.text).has_value();
    parameter.optional = eat("?");
    if (!parameter.is_tensor)
      return unsupported(type_at,
                         fmt::format("parameter '{}' of type {}", parameter.name, parameter.type));
    if (parameter.optional)
      return unsupported(at, fmt::format("optional parameter '{}'", parameter.name));
    if (parameter.type != "T")
      return unsupported(type_at, fmt::format("the shape or dtype in type {}", parameter.type));
    if (std::ranges::find(rule->parameters, parameter.name, &RuleParameter::name) !=
        rule->parameters.end())
      return Error{fmt::format("{}:{}:{}: parameter '{}' is named twice", file_, at.line, at.column,
                               parameter.name)};
    rule->parameters.push_back(std::move(parameter));
    return ok_status();
  }

  // T, f32, float, int[]; with dimensions: T[..., n], T[n, 2].
  Result<std::string> type_text() {
    OPFUSE_TRY(std::string text, take(TokenKind::kName, "a type such as T or float"));
    if (!eat("[")) return text;
    text += '[';
    while (!eat("]")) {
      const Token& t = peek();
      if (t.kind != TokenKind::kName && t.kind != TokenKind::kNumber && t.text != "...")
        return fail("a dimension or ']'");
      text += t.text;
      ++at_;
      if (eat(","))
        text += ", ";
      else if (!is("]"))
        return fail("',' or ']'");
    }
    return text + ']';
  }

  // T in f32, bf16 · a is not b · shape(a) == shape(b) · shape(a) != shape(b), joined by `and`.
  Status conditions(std::vector<DType>* dtypes, std::vector<Guard>* guards) {
    do {
      if (is("T") && peek(1).text == "in") {
        at_ += 2;
        if (!dtypes) return fail("a condition without dtypes");
        OPFUSE_TRY_STATUS(dtype_list(dtypes));
      } else if (is("shape")) {
        Guard guard;
        OPFUSE_TRY(guard.a, shape_of());
        guard.kind = is("!=") ? Guard::Kind::kOtherShape : Guard::Kind::kSameShape;
        if (!eat("==") && !eat("!=")) return fail("'==' or '!='");
        OPFUSE_TRY(guard.b, shape_of());
        guards->push_back(std::move(guard));
      } else {
        Guard guard;
        OPFUSE_TRY(guard.a, take(TokenKind::kName, "a condition"));
        OPFUSE_TRY_STATUS(expect("is"));
        OPFUSE_TRY_STATUS(expect("not"));
        OPFUSE_TRY(guard.b, take(TokenKind::kName, "a name"));
        guards->push_back(std::move(guard));
      }
    } while (eat("and"));
    return ok_status();
  }

  Result<std::string> shape_of() {
    OPFUSE_TRY_STATUS(expect("shape"));
    OPFUSE_TRY_STATUS(expect("("));
    OPFUSE_TRY(std::string name, take(TokenKind::kName, "a name"));
    OPFUSE_TRY_STATUS(expect(")"));
    return name;
  }

  Status dtype_list(std::vector<DType>* dtypes) {
    do {
      std::optional<DType> dtype = dtype_from_name(peek().text);
      if (peek().kind != TokenKind::kName || !dtype) return fail("a dtype such as f32");
      dtypes->push_back(*dtype);
      ++at_;
    } while (eat(","));
    return ok_status();
  }

  Status clause(RuleSyntax* rule) {
    if (eat("target")) return target(&rule->head);
    if (rule->head.extends) return fail("'target'");
    if (eat("version")) return version(&rule->head);
    if (eat("composition")) return block(&rule->composition);
    if (eat("spelling")) return spelling(rule);
    if (eat("near")) return near(rule);
    if (eat("domain")) return domain(&rule->head);
    if (is("requires")) return requires_mode(&rule->head);
    return fail("version, composition, spelling, near, domain, requires or target");
  }

  Status version(Rule* rule) {
    OPFUSE_TRY(std::string number, take(TokenKind::kNumber, "the version, a whole number"));
    if (number.find_first_not_of("0123456789") != std::string::npos) {
      --at_;
      return fail("the version, a whole number");
    }
    rule->version = std::stoi(number.substr(0, 6));
    return expect(TokenKind::kNewline, "the end of the line");
  }

  Status domain(Rule* rule) {
    if (!is("floating")) return fail("the domain: floating");
    OPFUSE_TRY(rule->domain, take(TokenKind::kName, "a domain"));
    return expect(TokenKind::kNewline, "the end of the line");
  }

  Status requires_mode(Rule*) {
    Token at = peek();
    ++at_;
    if (!is("training") && !is("eval")) return fail("training or eval");
    return unsupported(at, "requires " + peek().text);
  }

  Status spelling(RuleSyntax* rule) {
    SpellingSyntax next;
    OPFUSE_TRY(next.title, take(TokenKind::kString, "the spelling's title"));
    if (eat("class")) {
      const std::string& name = peek().text;
      bool known = name.size() == 2 && name[0] == 'E' && name[1] >= '0' && name[1] <= '4';
      if (!known) return fail("a class E0 to E4");
      next.equivalence = static_cast<Equivalence>(name[1] - '0');
      ++at_;
    }
    OPFUSE_TRY_STATUS(block(&next.block));
    rule->spellings.push_back(std::move(next));
    return ok_status();
  }

  // near "weight plus one" if weight is add(w, 1)   or   near "gate" if x * sigmoid(gate) where …
  //   because "…"
  Status near(RuleSyntax* rule) {
    NearSyntax next;
    next.line = peek().line;
    next.column = peek().column;
    OPFUSE_TRY(next.title, take(TokenKind::kString, "the neighbour's title"));
    OPFUSE_TRY_STATUS(expect("if"));
    if (peek().kind == TokenKind::kName && peek(1).text == "is") {
      next.substituted = peek().text;
      if (std::ranges::find(rule->head.parameters, next.substituted, &RuleParameter::name) ==
          rule->head.parameters.end())
        return fail("a parameter of the rule");
      at_ += 2;
    }
    OPFUSE_TRY(next.formula, expression());
    if (eat("where")) OPFUSE_TRY_STATUS(conditions(nullptr, &next.guards));
    OPFUSE_TRY_STATUS(expect(TokenKind::kNewline, "the end of the line"));
    if (eat(TokenKind::kIndent)) {
      OPFUSE_TRY_STATUS(expect("because"));
      OPFUSE_TRY(next.why, take(TokenKind::kString, "the reason, a string"));
      OPFUSE_TRY_STATUS(expect(TokenKind::kNewline, "the end of the line"));
      OPFUSE_TRY_STATUS(expect(TokenKind::kDedent, "the end of the block"));
    }
    rule->near.push_back(std::move(next));
    return ok_status();
  }

  // target opfuse.rms_norm(x, [n], eps) on cuda where T is f32, with indented python and backward.
  Status target(Rule* rule) {
    Target next;
    OPFUSE_TRY(next.op, dotted("the target's operator"));
    OPFUSE_TRY_STATUS(expect("("));
    while (!eat(")")) {
      OPFUSE_TRY(std::string argument, target_argument());
      next.arguments.push_back(std::move(argument));
      if (!eat(",") && !is(")")) return fail("',' or ')'");
    }
    if (eat("on")) {
      OPFUSE_TRY(next.device, take(TokenKind::kName, "a device"));
    }
    if (eat("where")) {
      OPFUSE_TRY_STATUS(expect("T"));
      if (!eat("in") && !eat("is")) return fail("'in' or 'is'");
      OPFUSE_TRY_STATUS(dtype_list(&next.dtypes));
    }
    OPFUSE_TRY_STATUS(expect(TokenKind::kNewline, "the end of the line"));
    if (eat(TokenKind::kIndent)) OPFUSE_TRY_STATUS(target_details(&next));
    rule->targets.push_back(std::move(next));
    return ok_status();
  }

  Status target_details(Target* target) {
    while (!eat(TokenKind::kDedent)) {
      if (eat("python")) {
        OPFUSE_TRY(target->python, dotted("how Python calls it"));
      } else if (eat("backward")) {
        size_t begin = peek().offset;
        OPFUSE_TRY(std::string op, dotted("the backward operator"));
        OPFUSE_TRY_STATUS(expect("("));
        while (!eat(")")) {
          OPFUSE_TRY(std::string argument, target_argument());
          if (!eat(",") && !is(")")) return fail("',' or ')'");
        }
        std::string_view source = text_.substr(begin, peek().offset - begin);
        target->backward = std::string(source.substr(0, source.find(')') + 1));
      } else {
        return fail("python or backward");
      }
      OPFUSE_TRY_STATUS(expect(TokenKind::kNewline, "the end of the line"));
    }
    return ok_status();
  }

  Result<std::string> target_argument() {
    if (peek().kind == TokenKind::kName) return tokens_[at_++].text;
    bool negative = eat("-");
    if (peek().kind == TokenKind::kNumber) return (negative ? "-" : "") + tokens_[at_++].text;
    if (!negative && peek().kind == TokenKind::kString) return '"' + tokens_[at_++].text + '"';
    if (is("[")) return unsupported(peek(), "a list as a target's argument");
    return fail("a parameter or a literal");
  }

  Result<std::string> dotted(std::string_view what) {
    OPFUSE_TRY(std::string name, take(TokenKind::kName, what));
    while (eat(".")) {
      OPFUSE_TRY(std::string next, take(TokenKind::kName, "a name"));
      name += "." + next;
    }
    return name;
  }

  // An indented block of bindings that ends in `return`.
  Status block(Block* block) {
    block->line = peek().line;
    block->column = peek().column;
    OPFUSE_TRY_STATUS(expect(TokenKind::kNewline, "the end of the line"));
    OPFUSE_TRY_STATUS(expect(TokenKind::kIndent, "an indented block"));
    while (!is("return")) {
      Binding binding;
      binding.line = peek().line;
      binding.column = peek().column;
      do {
        OPFUSE_TRY(std::string name, take(TokenKind::kName, "a binding or 'return'"));
        binding.names.push_back(std::move(name));
      } while (eat(","));
      OPFUSE_TRY_STATUS(expect("="));
      OPFUSE_TRY(binding.value, expression());
      OPFUSE_TRY_STATUS(expect(TokenKind::kNewline, "the end of the line"));
      block->bindings.push_back(std::move(binding));
    }
    ++at_;
    do {
      OPFUSE_TRY(Expression result, expression());
      block->results.push_back(std::move(result));
    } while (eat(","));
    OPFUSE_TRY_STATUS(expect(TokenKind::kNewline, "the end of the line"));
    return expect(TokenKind::kDedent, "the end of the block after 'return'");
  }

  static Expression make(ExpressionKind kind, const Token& at, std::string text = {}) {
    Expression e;
    e.kind = kind;
    e.text = std::move(text);
    e.line = at.line;
    e.column = at.column;
    return e;
  }

  // a if weight else b
  Result<Expression> expression() {
    Token at = peek();
    OPFUSE_TRY(Expression then, sum());
    if (!is("if")) return then;
    ++at_;
    Expression e = make(ExpressionKind::kConditional, at, eat("not") ? "not" : "");
    OPFUSE_TRY(std::string parameter, take(TokenKind::kName, "an optional parameter"));
    e.keywords.push_back(parameter);
    OPFUSE_TRY_STATUS(expect("else"));
    OPFUSE_TRY(Expression otherwise, expression());
    e.children.push_back(std::move(then));
    e.children.push_back(std::move(otherwise));
    return e;
  }

  Result<Expression> binary(std::initializer_list<std::string_view> signs,
                            Result<Expression> (RuleParser::*next)()) {
    OPFUSE_TRY(Expression left, (this->*next)());
    while (std::ranges::any_of(signs, [&](std::string_view s) { return is(s); })) {
      Expression e = make(ExpressionKind::kBinary, peek(), peek().text);
      ++at_;
      OPFUSE_TRY(Expression right, (this->*next)());
      e.children.push_back(std::move(left));
      e.children.push_back(std::move(right));
      left = std::move(e);
    }
    return left;
  }

  Result<Expression> sum() { return binary({"+", "-"}, &RuleParser::product); }
  Result<Expression> product() { return binary({"*", "/", "@"}, &RuleParser::unary); }

  Result<Expression> unary() {
    if (!is("-")) return power();
    Expression e = make(ExpressionKind::kUnary, peek(), "-");
    ++at_;
    OPFUSE_TRY(Expression operand, unary());
    e.children.push_back(std::move(operand));
    return e;
  }

  Result<Expression> power() {
    OPFUSE_TRY(Expression base, primary());
    if (!is("**")) return base;
    Expression e = make(ExpressionKind::kBinary, peek(), "**");
    ++at_;
    OPFUSE_TRY(Expression exponent, unary());
    e.children.push_back(std::move(base));
    e.children.push_back(std::move(exponent));
    return e;
  }

  Result<Expression> primary() {
    Token at = peek();
    if (eat("(")) {
      OPFUSE_TRY(Expression inner, expression());
      OPFUSE_TRY_STATUS(expect(")"));
      return inner;
    }
    if (eat("[")) {
      Expression e = make(ExpressionKind::kList, at);
      while (!eat("]")) {
        OPFUSE_TRY(Expression item, expression());
        e.children.push_back(std::move(item));
        if (!eat(",") && !is("]")) return fail("',' or ']'");
      }
      return e;
    }
    if (eat(TokenKind::kNumber)) return make(ExpressionKind::kNumber, at, at.text);
    if (eat(TokenKind::kString)) return make(ExpressionKind::kString, at, at.text);
    if (at.kind != TokenKind::kName) return fail("an expression");
    ++at_;
    if (!eat("(")) return make(ExpressionKind::kName, at, at.text);
    return call(at);
  }

  Result<Expression> call(const Token& at) {
    Expression e = make(ExpressionKind::kCall, at, at.text);
    while (!eat(")")) {
      std::string keyword;
      if (peek().kind == TokenKind::kName && peek(1).text == "=") {
        keyword = peek().text;
        at_ += 2;
      }
      OPFUSE_TRY(Expression argument, expression());
      e.children.push_back(std::move(argument));
      e.keywords.push_back(std::move(keyword));
      if (!eat(",") && !is(")")) return fail("',' or ')'");
    }
    return e;
  }

  std::vector<Token> tokens_;
  std::string_view text_;
  std::string file_;
  size_t at_ = 0;
};

}  // namespace

Result<std::vector<RuleSyntax>> parse_rule_syntax(std::string_view text, std::string_view file) {
  OPFUSE_TRY(std::vector<Token> tokens, tokenize_rules(text, file));
  return RuleParser(std::move(tokens), text, file).file();
}

}  // namespace opfuse::match
