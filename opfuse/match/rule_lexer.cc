#include "opfuse/match/rule_lexer.h"

#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>

namespace opfuse::match {
namespace {

constexpr std::array<std::string_view, 23> kSigns = {"...", "->", "**", "==", "!=", "<=", ">=", "<",
                                                     ">",   "(",  ")",  "[",  "]",  ",",  ":",  "=",
                                                     "?",   "+",  "-",  "*",  "/",  ".",  "@"};

bool is_name_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)); }

class Lexer {
 public:
  Lexer(std::string_view text, std::string_view file) : text_(text), file_(file) {}

  Result<std::vector<Token>> run() {
    while (pos_ < text_.size()) OPFUSE_TRY_STATUS(line());
    while (indents_.size() > 1) {
      indents_.pop_back();
      push(TokenKind::kDedent, "");
    }
    push(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  Error fail(std::string_view expected, std::string_view found) const {
    return Error{
        fmt::format("{}:{}:{}: expected {}, found {}", file_, line_, column(), expected, found)};
  }
  int column() const { return static_cast<int>(pos_ - line_begin_) + 1; }

  void push(TokenKind kind, std::string text) {
    tokens_.push_back({kind, std::move(text), line_, column(), pos_});
  }

  Status line() {
    line_begin_ = pos_;
    while (pos_ < text_.size() && text_[pos_] == ' ') ++pos_;
    bool blank = pos_ >= text_.size() || text_[pos_] == '\n' || text_[pos_] == '#';
    if (!blank && depth_ == 0) OPFUSE_TRY_STATUS(indentation(column() - 1));
    while (pos_ < text_.size() && text_[pos_] != '\n') {
      if (text_[pos_] == '#') {
        pos_ = std::min(text_.find('\n', pos_), text_.size());
      } else if (text_[pos_] == ' ') {
        ++pos_;
      } else {
        OPFUSE_TRY_STATUS(token());
      }
    }
    if (!blank && depth_ == 0) push(TokenKind::kNewline, "");
    ++pos_;
    ++line_;
    return ok_status();
  }

  Status indentation(int width) {
    if (width > indents_.back()) {
      indents_.push_back(width);
      push(TokenKind::kIndent, "");
      return ok_status();
    }
    while (width < indents_.back()) {
      indents_.pop_back();
      push(TokenKind::kDedent, "");
    }
    if (width == indents_.back()) return ok_status();
    return fail(fmt::format("an indentation of {}", indents_.back()), std::to_string(width));
  }

  Status token() {
    size_t begin = pos_;
    char c = text_[pos_];
    if (is_name_start(c)) {
      while (pos_ < text_.size() && (is_name_start(text_[pos_]) || is_digit(text_[pos_]))) ++pos_;
      add(TokenKind::kName, begin, text_.substr(begin, pos_ - begin));
    } else if (is_digit(c) || (c == '.' && pos_ + 1 < text_.size() && is_digit(text_[pos_ + 1]))) {
      number();
      add(TokenKind::kNumber, begin, text_.substr(begin, pos_ - begin));
    } else if (c == '"') {
      size_t end = text_.find_first_of("\"\n", pos_ + 1);
      if (end == std::string_view::npos || text_[end] == '\n')
        return fail("'\"'", "the end of the line");
      pos_ = end + 1;
      add(TokenKind::kString, begin, text_.substr(begin + 1, end - begin - 1));
    } else {
      auto sign = std::ranges::find_if(
          kSigns, [&](std::string_view s) { return text_.substr(pos_, s.size()) == s; });
      if (sign == kSigns.end())
        return fail("a name, a number, a string or a sign", fmt::format("'{}'", c));
      pos_ += sign->size();
      if (*sign == "(" || *sign == "[") ++depth_;
      if (*sign == ")" || *sign == "]") depth_ = std::max(0, depth_ - 1);
      add(TokenKind::kSign, begin, *sign);
    }
    return ok_status();
  }

  void number() {
    while (pos_ < text_.size() && (is_digit(text_[pos_]) || text_[pos_] == '.')) ++pos_;
    size_t exponent = pos_;
    if (exponent >= text_.size() || (text_[exponent] != 'e' && text_[exponent] != 'E')) return;
    ++exponent;
    if (exponent < text_.size() && (text_[exponent] == '-' || text_[exponent] == '+')) ++exponent;
    if (exponent >= text_.size() || !is_digit(text_[exponent])) return;
    pos_ = exponent;
    while (pos_ < text_.size() && is_digit(text_[pos_])) ++pos_;
  }

  void add(TokenKind kind, size_t begin, std::string_view text) {
    tokens_.push_back(
        {kind, std::string(text), line_, static_cast<int>(begin - line_begin_) + 1, begin});
  }

  std::string_view text_, file_;
  size_t pos_ = 0, line_begin_ = 0;
  int line_ = 1, depth_ = 0;
  std::vector<int> indents_ = {0};
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> tokenize_rules(std::string_view text, std::string_view file) {
  return Lexer(text, file).run();
}

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kNewline:
      return "the end of the line";
    case TokenKind::kIndent:
      return "a deeper indentation";
    case TokenKind::kDedent:
      return "the end of the block";
    case TokenKind::kEnd:
      return "the end of the file";
    case TokenKind::kString:
      return fmt::format("\"{}\"", token.text);
    default:
      return fmt::format("'{}'", token.text);
  }
}

}  // namespace opfuse::match
