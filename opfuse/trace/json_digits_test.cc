#include "opfuse/trace/json_digits.h"

#include <string>

#include <gtest/gtest.h>

namespace opfuse::trace {
namespace {

TEST(JsonDigits, CountAndValueOfEveryLength) {
  const std::string digits = "9081726354908172";
  for (size_t length = 0; length <= 16; ++length)
    for (const char behind : {',', '.', '}', '"', ' ', '/', ':', '\n', '\x80', '\xff', 'a'}) {
      std::string text = digits.substr(0, length) + behind;
      text.append(16, '"');
      uint64_t value = 1;
      EXPECT_EQ(leading_digits16(text.data(), &value), static_cast<int>(length)) << text;
      EXPECT_EQ(value, length == 0 ? 0 : std::stoull(digits.substr(0, length))) << text;
    }
}

}  // namespace
}  // namespace opfuse::trace
