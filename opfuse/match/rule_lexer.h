#pragma once
// Tokens of a rule file: names, numbers, strings, signs, and the layout (a line's end, deeper and
// shallower indentation) as tokens. `#` starts a comment; a bracket continues the line.

#include <string>
#include <string_view>
#include <vector>

#include "opfuse/base/result.h"

namespace opfuse::match {

enum class TokenKind : uint8_t { kName, kNumber, kString, kSign, kNewline, kIndent, kDedent, kEnd };

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;          // of a string: without quotes
  int line = 0, column = 0;  // 1-based
  size_t offset = 0;         // of its first byte
};

Result<std::vector<Token>> tokenize_rules(std::string_view text, std::string_view file);

// "'foo'", "the end of the line", for messages.
std::string describe(const Token& token);

}  // namespace opfuse::match
