// The values of an event's members, from their first byte to behind them.

#include "opfuse/trace/chrome_event.h"
#include "opfuse/trace/json_digits.h"

namespace opfuse::trace {
namespace {

// A quote inside a name is looked past no further than this.
constexpr ptrdiff_t kLongestRepair = 64 << 10;

bool is_space(char c) { return static_cast<unsigned char>(c) <= ' '; }
bool is_digit(char c) { return static_cast<unsigned char>(c - '0') < 10; }
bool ends_value(char c) { return c == ',' || c == '}' || c == ']' || is_space(c); }

}  // namespace

bool ChromeEvents::text(const char** at, Text* value) {
  value->begin = *at + 1;
  value->escaped = false;
  const char* p = value->begin;
  while (true) {
    p = window_.next_quote(p);
    if (p + 1 >= window_.end()) return stop(Scan::kMore);
    if (*p == '"') break;
    value->escaped = true;
    p += 2;
    if (p >= window_.end()) return stop(Scan::kMore);
  }
  value->end = p;
  const char next = p[1];
  if (next != ',' && next != '}' && next != ']') {
    const char* behind = skip_space(p + 1);
    if (behind >= window_.end()) return stop(Scan::kMore);
    if (*behind != ',' && *behind != '}' && *behind != ']' && !stray_quote(value)) return false;
  }
  *at = value->end + 1;
  return true;
}

// The quote at value->end has something behind it that cannot follow a value: a member without its
// comma, or a quote inside the text, which then goes on to the next quote that can end it.
bool ChromeEvents::stray_quote(Text* value) {
  const char* p = skip_space(value->end + 1);
  if (*p == '"') {
    const char* close = window_.next_quote(p + 1);
    if (close + 1 >= window_.end()) return stop(Scan::kMore);
    if (close[1] == ':' && is_event_key({p + 1, static_cast<size_t>(close - p - 1)})) return true;
  }
  const char* first = value->end;
  for (p = value->end + 1; p - first < kLongestRepair; p += 1 + (*p == '\\')) {
    p = window_.next_quote(p);
    if (p + 1 >= window_.end()) return stop(Scan::kMore);
    if (*p == '\\') continue;
    const char* behind = skip_space(p + 1);
    if (behind >= window_.end()) return stop(Scan::kMore);
    if (*behind == ',' || *behind == '}' || *behind == ']') {
      note(LossKind::kQuoteInString, first);
      value->end = p;
      return true;
    }
  }
  return stop(Scan::kBad);
}

bool ChromeEvents::skip_nested(const char** at) {
  int depth = 0;
  for (const char* p = *at;; ++p) {
    p = window_.next_mark(p);
    if (p >= window_.end()) return stop(Scan::kMore);
    switch (*p) {
      case '{':
      case '[':
        ++depth;
        break;
      case '}':
      case ']':
        if (--depth == 0) {
          *at = p + 1;
          return true;
        }
        break;
      case '"':
        p = window_.next_quote(p + 1);
        while (p < window_.end() && *p == '\\') p = window_.next_quote(p + 2);
        if (p >= window_.end()) return stop(Scan::kMore);
        break;
      default:  // a backslash outside a string
        return stop(Scan::kBad);
    }
  }
}

// A number or word: up to what can end it.
bool ChromeEvents::scalar(const char** at, std::string_view* value) {
  const char* p = *at;
  while (!ends_value(*p)) {
    if (*p == '"' || *p == '{' || *p == '[' || *p == ':')
      return stop(p >= window_.end() ? Scan::kMore : Scan::kBad);
    ++p;
  }
  if (p >= window_.end()) return stop(Scan::kMore);
  *value = {*at, static_cast<size_t>(p - *at)};
  if (value->empty()) return stop(Scan::kBad);
  *at = p;
  return true;
}

bool ChromeEvents::skip(const char** at) {
  const char c = **at;
  if (c == '"') {
    Text value;
    return text(at, &value);
  }
  if (c == '{' || c == '[') return skip_nested(at);
  if (is_digit(c)) {  // most often a short whole number
    uint64_t number = 0;
    const char* behind = *at + leading_digits(*at, &number);
    if (behind < window_.end() && ends_value(*behind)) {
      *at = behind;
      return true;
    }
  }
  std::string_view value;
  const char* first = *at;
  if (!scalar(at, &value)) return false;
  const bool is_word = !is_digit(c) && !(c == '-' && value.size() > 1 && is_digit(value[1]));
  if (is_word && value != "null" && value != "true" && value != "false")
    note_scalar(is_not_finite(value) ? Scalar::kNotFinite : Scalar::kWord, first);
  return true;
}

bool ChromeEvents::integer(const char** at, int64_t* value) {
  const char* const first = *at;
  uint64_t number = 0;
  if (const int digits = leading_digits16(first, &number);
      digits > 0 && ends_value(first[digits])) {
    if (first + digits >= window_.end()) return stop(Scan::kMore);
    *value = static_cast<int64_t>(number);
    *at = first + digits;
    return true;
  }
  if (*first == '{' || *first == '[') return skip(at);
  Text quoted;
  std::string_view digits;
  if (*first == '"') {
    if (!text(at, &quoted)) return false;
    digits = quoted.view();
  } else if (!scalar(at, &digits)) {
    return false;
  }
  if (digits == "null" || digits.empty()) return true;
  const Scalar kind = parse_integer(digits, value);
  if (kind != Scalar::kNumber && *first != '"') note_scalar(kind, first);
  return true;
}

bool ChromeEvents::small(const char** at, int32_t* value) {
  int64_t number = *value;
  if (!integer(at, &number)) return false;
  if (number >= INT32_MIN && number <= INT32_MAX) *value = static_cast<int32_t>(number);
  return true;
}

bool ChromeEvents::time(const char** at, int64_t* ns, bool is_duration) {
  static constexpr uint64_t kPowers[] = {1000, 100, 10, 1};
  const char* const first = *at;
  uint64_t number = 0, fraction = 0;
  const int whole = leading_digits16(first, &number);
  if (whole > 0 && number < static_cast<uint64_t>(kMostTimeNs / 1000)) {
    const char* p = first + whole;
    int places = 0;
    if (*p == '.') {
      places = leading_digits(p + 1, &fraction);
      p += 1 + places;
    }
    if (places <= 3 && ends_value(*p)) {
      if (p >= window_.end()) return stop(Scan::kMore);
      *ns = static_cast<int64_t>(number * 1000 + fraction * kPowers[places]);
      *at = p;
      return true;
    }
  }
  Text quoted;
  std::string_view digits;
  if (*first == '"') {
    if (!text(at, &quoted)) return false;
    digits = quoted.view();
  } else if (*first == '{' || *first == '[') {
    return skip(at);
  } else if (!scalar(at, &digits)) {
    return false;
  }
  if (digits == "null") return true;
  const Scalar kind = parse_microseconds(digits, ns);
  if (kind == Scalar::kNumber && is_duration && *ns < 0) note(LossKind::kDurationNegative, first);
  if (kind == Scalar::kNumber && is_duration && *ns < 0) *ns = -1;
  if (kind == Scalar::kNotFinite || kind == Scalar::kTooLarge) note_scalar(kind, first);
  if (kind != Scalar::kNumber && is_duration) note(LossKind::kDurationUnreadable, first);
  return true;
}

bool ChromeEvents::string(const char** at, StringId* id) {
  if (**at != '"') return skip(at);
  Text value;
  if (!text(at, &value)) return false;
  *id = intern(value);
  return true;
}

bool ChromeEvents::raw(const char** at, StringId* id) {
  if (**at != '[') return string(at, id);
  const char* first = *at;
  if (!skip_list(at)) return false;
  *id = file_.strings.intern({first, static_cast<size_t>(*at - first)});
  return true;
}

// A list of numbers or of lists ends at the last bracket before the next key; a list of strings at
// a bracket behind a quote. Anything else is counted bracket by bracket.
bool ChromeEvents::skip_list(const char** at) {
  const char* p = *at + 1;
  if (*p == '"') {
    while (true) {
      const char* close = window_.next_quote(p + 1);
      if (close + 1 >= window_.end() || *close != '"') break;
      if (close[1] == ']') {
        *at = close + 2;
        return true;
      }
      p = window_.next_quote(close + 1);
      if (p >= window_.end() || *p != '"' || p - close > 4) break;
    }
  } else {
    const char* quote = window_.next_quote(p);
    if (quote < window_.end()) {
      const char* back = quote - 1;
      while (is_space(*back)) --back;
      // Not the bracket behind the last event.
      if (*back == ',' && back[-1] == ']' &&
          std::memchr(p, '}', static_cast<size_t>(back - p)) == nullptr) {
        *at = back;
        return true;
      }
    }
  }
  return skip_nested(at);
}

bool ChromeEvents::number_or_text(const char** at, int64_t* number, StringId* id) {
  if (**at != '"') return integer(at, number);
  Text value;
  if (!text(at, &value)) return false;
  if (parse_integer(value.view(), number) != Scalar::kNumber) *id = intern(value);
  return true;
}

bool ChromeEvents::phase(const char** at) {
  if (**at != '"') return skip(at);
  Text value;
  if (!text(at, &value)) return false;
  if (value.begin != value.end) fields_.phase = *value.begin;
  return true;
}

}  // namespace opfuse::trace
