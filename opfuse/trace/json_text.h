#pragma once
// The scalars of tolerant JSON: decimal text to exact integers, strings with their escapes, UTF-8.
// Internal to trace/.

#include <cstdint>
#include <string>
#include <string_view>

namespace opfuse::trace {

enum class Scalar : uint8_t { kNumber, kNotFinite, kTooLarge, kWord };

// Times beyond this (95 years) are taken for damage, so that their sums and differences fit.
constexpr int64_t kMostTimeNs = 3'000'000'000'000'000'000;

// The whole of `text` as microseconds in decimal notation -> nanoseconds, rounded at the fourth
// digit behind the point. Exact: never through a double.
Scalar parse_microseconds(std::string_view text, int64_t* ns);
// A whole number; a fraction of zeros is accepted. Unsigned 64-bit values wrap into int64.
Scalar parse_integer(std::string_view text, int64_t* value);
// inf, -Infinity, nan … in any case.
bool is_not_finite(std::string_view text);

struct DecodedString {
  std::string text;
  bool illegal_escape = false;  // kept as a literal backslash
};
// The inside of a JSON string with its escapes. Lone surrogates become U+FFFD.
DecodedString decode_string(std::string_view raw);

struct CheckedText {
  bool valid_utf8 = true;
  bool control_bytes = false;  // below 0x20, other than tab, newline and return
};
CheckedText check_text(std::string_view text);
std::string replace_invalid_utf8(std::string_view text);

// Bytes of the valid UTF-8 sequence at the beginning of `text`, 0 when there is none.
size_t utf8_length(std::string_view text);

}  // namespace opfuse::trace
