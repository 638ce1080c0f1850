#pragma once
// One line of the text form and a position in it: words, numbers, strings, and errors that say
// where.

#include <cctype>
#include <charconv>
#include <limits>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "opfuse/base/result.h"
#include "opfuse/graph/graph.h"

namespace opfuse::graph::text {

inline bool is_name_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.';
}

// One line of the text and a position in it.
class Line {
 public:
  Line(std::string_view text, int number) : text_(text), number_(number) {}

  Error fail(std::string_view expected) const {
    std::string_view rest = text_.substr(std::min(pos_, text_.size()), 24);
    std::string found = rest.empty() ? "the end of the line" : fmt::format("'{}'", rest);
    return Error{fmt::format("{}:{}: expected {}, found {}", number_, pos_ + 1, expected, found)};
  }
  Error fail_at(size_t pos, const std::string& sentence) const {
    return Error{fmt::format("{}:{}: {}", number_, pos + 1, sentence)};
  }

  size_t pos() const { return pos_; }
  void skip_spaces() {
    while (pos_ < text_.size() && (text_[pos_] == ' ' || text_[pos_] == '\t')) ++pos_;
  }
  bool at_end() {
    skip_spaces();
    return pos_ >= text_.size();
  }
  char peek() {
    skip_spaces();
    return pos_ < text_.size() ? text_[pos_] : '\0';
  }
  bool eat(std::string_view token) {
    skip_spaces();
    if (text_.substr(pos_, token.size()) != token) return false;
    if (is_name_char(token.back()) && pos_ + token.size() < text_.size() &&
        is_name_char(text_[pos_ + token.size()]))
      return false;
    pos_ += token.size();
    return true;
  }
  // Letters, digits, '_' and '.', no spaces skipped afterwards.
  std::string_view word() {
    skip_spaces();
    size_t begin = pos_;
    while (pos_ < text_.size() && is_name_char(text_[pos_])) ++pos_;
    return text_.substr(begin, pos_ - begin);
  }
  std::string_view until(std::string_view stops) {
    size_t begin = pos_;
    pos_ = std::min(text_.find_first_of(stops, pos_), text_.size());
    return text_.substr(begin, pos_ - begin);
  }

  Result<int64_t> integer() {
    skip_spaces();
    int64_t value = 0;
    auto [end, error] = std::from_chars(text_.data() + pos_, text_.data() + text_.size(), value);
    if (error != std::errc()) return fail("an integer");
    pos_ = end - text_.data();
    return value;
  }

  Result<std::string> quoted() {
    if (!eat("\"")) return fail("a string");
    std::string value;
    while (pos_ < text_.size() && text_[pos_] != '"') {
      char c = text_[pos_++];
      if (c == '\\' && pos_ < text_.size()) {
        c = text_[pos_++];
        if (c == 'n') c = '\n';
      }
      value += c;
    }
    if (!eat("\"")) return fail("'\"'");
    return value;
  }

  // None, True, False, ?, <opaque>, a string or a number.
  Result<Attr> literal() {
    char c = peek();
    if (c == '"') {
      OPFUSE_TRY(std::string text, quoted());
      return Attr{text};
    }
    if (eat("?")) return Attr{UnknownAttr{}};
    if (eat("None")) return Attr{NoneAttr{}};
    if (eat("True")) return Attr{true};
    if (eat("False")) return Attr{false};
    if (eat("<")) {
      std::string type(until(">"));
      if (!eat(">")) return fail("'>'");
      return Attr{OpaqueAttr{type}};
    }
    return number();
  }

  Result<Attr> number() {
    if (eat("inf")) return Attr{std::numeric_limits<double>::infinity()};
    if (eat("-inf")) return Attr{-std::numeric_limits<double>::infinity()};
    if (eat("nan")) return Attr{std::numeric_limits<double>::quiet_NaN()};
    skip_spaces();
    double value = 0;
    const char* begin = text_.data() + pos_;
    auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc()) return fail("a value");
    std::string_view token(begin, end - begin);
    if (token.find_first_of(".en") == std::string_view::npos) {
      OPFUSE_TRY(int64_t whole, integer());
      return Attr{whole};
    }
    pos_ += token.size();
    return Attr{value};
  }

 private:
  std::string_view text_;
  int number_;
  size_t pos_ = 0;
};

}  // namespace opfuse::graph::text
