#include "opfuse/trace/json_text.h"

#include <cstdlib>
#include <limits>

namespace opfuse::trace {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

bool is_digit(char c) { return static_cast<unsigned char>(c - '0') < 10; }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

bool append_digit(int64_t* value, char digit) {
  if (*value > (kMost - 9) / 10) return false;
  *value = *value * 10 + (digit - '0');
  return true;
}

// Digits, point and exponent taken apart: value = digits * 10^scale.
struct Decimal {
  bool negative = false;
  std::string digits;
  int64_t scale = 0;
};

bool take_apart(std::string_view text, Decimal* number) {
  size_t i = 0;
  number->negative = !text.empty() && text[0] == '-';
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) ++i;
  bool point = false, any = false;
  for (; i < text.size() && (is_digit(text[i]) || (text[i] == '.' && !point)); ++i) {
    if (text[i] == '.') {
      point = true;
      continue;
    }
    any = true;
    number->digits += text[i];
    number->scale -= point;
  }
  if (!any) return false;
  if (i == text.size()) return true;
  if (lower(text[i]) != 'e') return false;
  const std::string exponent(text.substr(i + 1));
  if (exponent.empty()) return false;
  char* end = nullptr;
  const long power = std::strtol(exponent.c_str(), &end, 10);
  if (*end != '\0' || power > 10000 || power < -10000) return false;
  number->scale += power;
  return true;
}

// digits * 10^(scale + shift), rounded half up, as an integer.
Scalar to_integer(const Decimal& number, int64_t shift, int64_t* value) {
  int64_t zeros = number.scale + shift, result = 0;
  size_t used = number.digits.size();
  bool up = false;
  if (zeros < 0) {
    const auto cut = static_cast<size_t>(-zeros);
    up = cut <= used && used > 0 && number.digits[used - cut] >= '5';
    used = cut >= used ? 0 : used - cut;
    zeros = 0;
  }
  for (size_t i = 0; i < used; ++i)
    if (!append_digit(&result, number.digits[i])) return Scalar::kTooLarge;
  for (; zeros > 0 && result != 0; --zeros)
    if (!append_digit(&result, '0')) return Scalar::kTooLarge;
  result += up;
  *value = number.negative ? -result : result;
  return Scalar::kNumber;
}

Scalar parse_general(std::string_view text, int64_t shift, int64_t* value) {
  Decimal number;
  if (!take_apart(text, &number)) return is_not_finite(text) ? Scalar::kNotFinite : Scalar::kWord;
  return to_integer(number, shift, value);
}

int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  c = lower(c);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// The four hex digits of \uXXXX at raw[at], or -1.
int32_t hex4(std::string_view raw, size_t at) {
  if (at + 4 > raw.size()) return -1;
  int32_t code = 0;
  for (size_t i = at; i < at + 4; ++i) {
    const int digit = hex_digit(raw[i]);
    if (digit < 0) return -1;
    code = code * 16 + digit;
  }
  return code;
}

void append_utf8(std::string* text, uint32_t code) {
  const auto put = [&](uint32_t byte) { *text += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6), put(0x80 | (code & 63));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12), put(0x80 | (code >> 6 & 63)), put(0x80 | (code & 63));
  } else {
    put(0xF0 | code >> 18), put(0x80 | (code >> 12 & 63));
    put(0x80 | (code >> 6 & 63)), put(0x80 | (code & 63));
  }
}

// \uXXXX at raw[at] == 'u', with its second half where it is one of a pair. Returns the bytes used.
size_t append_unicode(std::string_view raw, size_t at, std::string* text) {
  const int32_t first = hex4(raw, at + 1);
  if (first < 0) return 0;
  if (first < 0xD800 || first > 0xDFFF) {
    append_utf8(text, static_cast<uint32_t>(first));
    return 5;
  }
  const bool pair = first < 0xDC00 && raw.substr(at + 5, 2) == "\\u";
  const int32_t second = pair ? hex4(raw, at + 7) : -1;
  if (second < 0xDC00 || second > 0xDFFF) {
    append_utf8(text, 0xFFFD);
    return 5;
  }
  append_utf8(text, 0x10000u + (static_cast<uint32_t>(first - 0xD800) << 10) +
                        static_cast<uint32_t>(second - 0xDC00));
  return 11;
}

Scalar parse_any_microseconds(std::string_view text, int64_t* ns) {
  size_t i = 0;
  const bool negative = !text.empty() && text[0] == '-';
  i += negative;
  int64_t value = 0;
  const size_t first = i;
  for (; i < text.size() && is_digit(text[i]); ++i)
    if (!append_digit(&value, text[i])) return parse_general(text, 3, ns);
  if (i == first) return parse_general(text, 3, ns);
  int scale = 3;
  if (i < text.size() && text[i] == '.')
    for (++i; i < text.size() && is_digit(text[i]); ++i) {
      if (scale == 0 || !append_digit(&value, text[i])) return parse_general(text, 3, ns);
      --scale;
    }
  if (i != text.size()) return parse_general(text, 3, ns);
  for (; scale > 0; --scale)
    if (!append_digit(&value, '0')) return Scalar::kTooLarge;
  *ns = negative ? -value : value;
  return Scalar::kNumber;
}

}  // namespace

Scalar parse_microseconds(std::string_view text, int64_t* ns) {
  int64_t value = 0;
  const Scalar kind = parse_any_microseconds(text, &value);
  if (kind != Scalar::kNumber) return kind;
  if (value > kMostTimeNs || value < -kMostTimeNs) return Scalar::kTooLarge;
  *ns = value;
  return kind;
}

Scalar parse_integer(std::string_view text, int64_t* value) {
  size_t i = 0;
  const bool negative = !text.empty() && text[0] == '-';
  i += negative;
  if (i == text.size()) return Scalar::kWord;
  uint64_t result = 0;
  for (; i < text.size() && is_digit(text[i]); ++i) {
    const auto digit = static_cast<uint64_t>(text[i] - '0');
    if (result > (std::numeric_limits<uint64_t>::max() - digit) / 10) return Scalar::kTooLarge;
    result = result * 10 + digit;
  }
  if (i != text.size()) return parse_general(text, 0, value);
  *value = static_cast<int64_t>(negative ? 0 - result : result);
  return Scalar::kNumber;
}

bool is_not_finite(std::string_view text) {
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  std::string word;
  for (char c : text.substr(0, 9)) word += lower(c);
  return word == "inf" || word == "nan" || word == "infinity";
}

DecodedString decode_string(std::string_view raw) {
  DecodedString decoded;
  std::string& text = decoded.text;
  text.reserve(raw.size());
  for (size_t i = 0; i < raw.size(); ++i) {
    if (raw[i] != '\\' || i + 1 == raw.size()) {
      text += raw[i];
      continue;
    }
    static constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
    const char c = raw[i + 1];
    if (const size_t known = kFrom.find(c); known != kFrom.npos) {
      text += kTo[known];
      ++i;
      continue;
    }
    const size_t used = c == 'u' ? append_unicode(raw, i + 1, &text) : 0;
    if (used == 0) {
      text += '\\';
      decoded.illegal_escape = true;
    }
    i += used;
  }
  return decoded;
}

size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  // Overlong forms, surrogates, beyond U+10FFFF.
  if ((first == 0xE0 && byte(1) < 0xA0) || (first == 0xED && byte(1) >= 0xA0)) return 0;
  if ((first == 0xF0 && byte(1) < 0x90) || (first == 0xF4 && byte(1) >= 0x90)) return 0;
  return length;
}

CheckedText check_text(std::string_view text) {
  CheckedText found;
  while (!text.empty()) {
    const auto c = static_cast<uint8_t>(text[0]);
    if (c < 0x20 && c != '\t' && c != '\n' && c != '\r') found.control_bytes = true;
    const size_t length = utf8_length(text);
    if (length == 0) found.valid_utf8 = false;
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return found;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string valid;
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    if (length == 0)
      valid += "\xEF\xBF\xBD";
    else
      valid += text.substr(0, length);
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return valid;
}

}  // namespace opfuse::trace
