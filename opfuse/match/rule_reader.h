#pragma once
// Reads a rule file token by token: what is next, what was expected instead, and expressions.

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "opfuse/match/rule_ast.h"

namespace opfuse::match {

class RuleReader {
 public:
  RuleReader(std::vector<Token> tokens, std::string_view text, std::string_view file)
      : tokens_(std::move(tokens)), text_(text), file_(file) {}

 protected:
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

  Result<std::string> dotted(std::string_view what) {
    OPFUSE_TRY(std::string name, take(TokenKind::kName, what));
    while (eat(".")) {
      OPFUSE_TRY(std::string next, take(TokenKind::kName, "a name"));
      name += "." + next;
    }
    return name;
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
                            Result<Expression> (RuleReader::*next)()) {
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

  Result<Expression> sum() { return binary({"+", "-"}, &RuleReader::product); }
  Result<Expression> product() { return binary({"*", "/", "@"}, &RuleReader::unary); }

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

}  // namespace opfuse::match
