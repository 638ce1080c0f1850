#include "opfuse/trace/chrome_event.h"

#include <cstring>

#include "opfuse/trace/file_kind.h"

namespace opfuse::trace {
namespace {

constexpr size_t kMostCategories = 250;
// A quote inside a name is looked past no further than this.
constexpr ptrdiff_t kLongestRepair = 64 << 10;

uint64_t load8(const char* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

bool is_space(char c) { return static_cast<unsigned char>(c) <= ' '; }
bool is_digit(char c) { return static_cast<unsigned char>(c - '0') < 10; }
bool ends_value(char c) { return c == ',' || c == '}' || c == ']' || is_space(c); }

// Behind the window's text stand quotes, so this ends there.
const char* skip_space(const char* p) {
  while (load8(p) == 0x2020202020202020ull) p += 8;
  while (is_space(*p)) ++p;
  return p;
}

bool is_event_key(std::string_view key) {
  for (std::string_view known :
       {"ph", "name", "cat", "ts", "pid", "tid", "dur", "args", "id", "s", "bp", "cname"})
    if (key == known) return true;
  return false;
}

bool is_flow(char phase) { return phase == 's' || phase == 't' || phase == 'f'; }

}  // namespace

// ---- values

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
  std::string_view value;
  const char* first = *at;
  if (!scalar(at, &value)) return false;
  const bool is_word = !is_digit(c) && !(c == '-' && value.size() > 1 && is_digit(value[1]));
  if (is_word && value != "null" && value != "true" && value != "false")
    note_scalar(is_not_finite(value) ? Scalar::kNotFinite : Scalar::kWord, first);
  return true;
}

bool ChromeEvents::integer(const char** at, int64_t* value) {
  const char* p = *at;
  const char* const first = p;
  if (is_digit(*p)) {  // up to 18 digits: nothing overflows
    int64_t number = 0;
    while (is_digit(*p) && p - first < 18) number = number * 10 + (*p++ - '0');
    if (ends_value(*p)) {
      if (p >= window_.end()) return stop(Scan::kMore);
      *value = number;
      *at = p;
      return true;
    }
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
  const char* p = *at;
  const char* const first = p;
  int64_t number = 0;
  while (is_digit(*p) && p - first < 16) number = number * 10 + (*p++ - '0');
  if (p != first && !is_digit(*p) && number < kMostTimeNs / 1000) {
    int scale = 3;
    if (*p == '.')
      for (++p; is_digit(*p) && scale > 0; --scale) number = number * 10 + (*p++ - '0');
    if (ends_value(*p)) {
      if (p >= window_.end()) return stop(Scan::kMore);
      static constexpr int64_t kPowers[] = {1, 10, 100, 1000};
      *ns = number * kPowers[scale];
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

// Most events have the category of the one before.
bool ChromeEvents::category(const char** at) {
  const std::string_view last = file_.text(last_category_);
  const char* p = *at;
  if (*p == '"' && static_cast<size_t>(window_.end() - p) > last.size() + 2 &&
      p[last.size() + 1] == '"' && (p[last.size() + 2] == ',' || p[last.size() + 2] == '}') &&
      std::string_view(p + 1, last.size()) == last) {
    fields_.category = last_category_;
    *at = p + last.size() + 2;
    return true;
  }
  return string(at, &fields_.category);
}

bool ChromeEvents::raw(const char** at, StringId* id) {
  if (**at != '[') return string(at, id);
  const char* first = *at;
  if (!skip_nested(at)) return false;
  *id = file_.strings.intern({first, static_cast<size_t>(*at - first)});
  return true;
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

// ---- members

bool ChromeEvents::key(const char** at, std::string_view* name) {
  const char* begin = *at + 1;
  const char* p = window_.next_quote(begin);
  while (p < window_.end() && *p == '\\') p = window_.next_quote(p + 2);
  if (p + 1 >= window_.end()) return stop(Scan::kMore);
  *name = {begin, static_cast<size_t>(p - begin)};
  ++p;
  if (*p != ':') p = skip_space(p);
  if (p >= window_.end()) return stop(Scan::kMore);
  if (*p != ':') return stop(Scan::kBad);
  p = skip_space(p + 1);
  if (p >= window_.end()) return stop(Scan::kMore);
  *at = p;
  return true;
}

bool ChromeEvents::object(const char** at,
                          bool (ChromeEvents::*member)(const char**, std::string_view)) {
  const char* p = skip_space(*at + 1);
  while (true) {
    if (*p == ',') p = skip_space(p + 1);
    if (p >= window_.end()) return stop(Scan::kMore);
    if (*p == '}') break;
    if (*p != '"') return stop(Scan::kBad);
    std::string_view name;
    if (!key(&p, &name) || !(this->*member)(&p, name)) return false;
    if (*p == ',') {
      p = skip_space(p + 1);
      continue;
    }
    p = skip_space(p);
    if (p < window_.end() && *p == '"') note(LossKind::kCommaMissing, p);
  }
  *at = p + 1;
  return true;
}

bool ChromeEvents::member(const char** at, std::string_view key) {
  switch (key.size()) {
    case 2:
      if (key == "ph") return phase(at);
      if (key == "ts") return time(at, &fields_.start_ns, false);
      if (key == "id") return number_or_text(at, &fields_.id, &fields_.id_text);
      break;
    case 3:
      if (key == "cat") return category(at);
      if (key == "dur") return time(at, &fields_.dur_ns, true);
      if (key == "pid") return number_or_text(at, &fields_.pid, &fields_.pid_text);
      if (key == "tid") return number_or_text(at, &fields_.tid, &fields_.tid_text);
      break;
    case 4:
      if (key == "name") return string(at, &fields_.name);
      if (key == "args" && **at == '{') return object(at, &ChromeEvents::argument);
      break;
  }
  return skip(at);
}

bool ChromeEvents::argument(const char** at, std::string_view key) {
  Fields& f = fields_;
  switch (key.size()) {
    case 4:
      if (key == "name") return string(at, &f.metadata);
      if (key == "Addr") return integer(at, &f.address);
      break;
    case 5:
      if (key == "Bytes") return integer(at, &f.memory.bytes);
      if (key == "bytes") return integer(at, &f.device.bytes);
      break;
    case 6:
      if (key == "stream") return small(at, &f.device.stream);
      if (key == "device") return small(at, &f.device.device);
      break;
    case 9:
      if (key == "Device Id") return small(at, &f.memory.device);
      if (key == "Python id") return integer(at, &f.python_id);
      if (key == "Stream Id") return small(at, &f.device.stream);
      break;
    case 10:
      if (key == "Input Dims") return raw(at, &f.op.dims);
      if (key == "Input type") return raw(at, &f.op.types);
      if (key == "Call stack") return string(at, &f.op.call_stack);
      break;
    case 11:
      if (key == "External id" || key == "external id") return integer(at, &f.external);
      if (key == "correlation") return integer(at, &f.correlation);
      if (key == "Device Type") return small(at, &f.memory.device_type);
      break;
    case 13:
      if (key == "Input Strides") return raw(at, &f.op.strides);
      if (key == "Fwd thread id") return integer(at, &f.op.forward_thread);
      if (key == "connection_id") return integer(at, &f.correlation);
      break;
    case 15:
      if (key == "Concrete Inputs") return raw(at, &f.op.values);
      if (key == "Sequence number") return integer(at, &f.op.sequence);
      break;
    case 16:
      if (key == "Python parent id") return integer(at, &f.python.parent);
      if (key == "Python module id") return integer(at, &f.python.module);
      if (key == "Module Hierarchy") return string(at, &f.op.module);
      break;
    case 18:
      if (key == "Record function id") return integer(at, &f.op.record_id);
      break;
  }
  return skip(at);
}

Scan ChromeEvents::scan(const char** at) {
  event_ = *at;
  fields_ = Fields{};
  scan_ = Scan::kDone;
  pending_.clear();
  if (!object(at, &ChromeEvents::member)) return scan_;
  for (const auto& [kind, where] : pending_)
    file_.losses.add(kind, window_.offset_of(where), {where, 60});
  keep();
  return Scan::kDone;
}

bool ChromeEvents::looks_like_event(const char* at) const {
  if (*at != '{') return false;
  const char* before = at;
  while (before > window_.begin() && is_space(before[-1])) --before;
  if (before > window_.begin() && before[-1] == ':') return false;
  const char* p = skip_space(at + 1);
  if (p >= window_.end() || *p != '"') return false;
  const char* close = window_.next_quote(p + 1);
  return close < window_.end() && *close == '"' &&
         is_event_key({p + 1, static_cast<size_t>(close - p - 1)});
}

// ---- rows

StringId ChromeEvents::intern(const Text& value) {
  std::string_view text = value.view();
  StringId id = 0;
  std::string owned;
  if (value.escaped) {
    DecodedString decoded = decode_string(text);
    if (decoded.illegal_escape) note(LossKind::kEscapeIllegal, value.begin);
    owned = std::move(decoded.text);
    text = owned;
  }
  if (file_.strings.find(text, &id)) return id;
  const CheckedText checked = check_text(text);
  if (checked.control_bytes && !value.escaped) note(LossKind::kControlBytes, value.begin);
  if (checked.valid_utf8) return file_.strings.intern(text);
  note(LossKind::kNotUtf8, value.begin);
  return file_.strings.intern(replace_invalid_utf8(text));
}

// Kept until the event is whole: one that the window cuts is scanned again.
void ChromeEvents::note(LossKind kind, const char* at) { pending_.emplace_back(kind, at); }

void ChromeEvents::note_scalar(Scalar kind, const char* at) {
  if (kind == Scalar::kNotFinite) note(LossKind::kNumberNotFinite, at);
  if (kind == Scalar::kTooLarge) note(LossKind::kNumberTooLarge, at);
  if (kind == Scalar::kWord) note(LossKind::kWordBare, at);
}

uint8_t ChromeEvents::category_row(StringId id) {
  if (id == last_category_ && !kinds_.empty()) return last_category_row_;
  size_t row = 0;
  while (row < file_.categories.size() && file_.categories[row] != id) ++row;
  if (row == file_.categories.size()) {
    if (row == kMostCategories) {
      file_.losses.add(LossKind::kCategoriesMany, window_.offset_of(event_));
      row = 0;
    } else {
      file_.categories.push_back(id);
    }
  }
  while (kinds_.size() < file_.categories.size())
    kinds_.push_back(kind_of_category(file_.text(file_.categories[kinds_.size()])));
  last_category_ = id;
  last_category_row_ = static_cast<uint8_t>(row);
  return last_category_row_;
}

int32_t ChromeEvents::thread_row() {
  const Fields& f = fields_;
  const auto is = [&](int32_t row) {
    const FileThread& t = file_.threads[row];
    return t.tid == f.tid && t.pid == f.pid && t.tid_text == f.tid_text && t.pid_text == f.pid_text;
  };
  if (last_thread_ != kNone && is(last_thread_)) return last_thread_;
  const auto [first, last] = threads_.equal_range(f.tid);
  for (auto it = first; it != last; ++it)
    if (is(it->second)) return last_thread_ = it->second;
  last_thread_ = static_cast<int32_t>(file_.threads.size());
  file_.threads.push_back({f.pid, f.tid, f.pid_text, f.tid_text, 0, 0});
  threads_.emplace(f.tid, last_thread_);
  return last_thread_;
}

FileKind ChromeEvents::kind_of(uint8_t category) const {
  const Fields& f = fields_;
  if (is_flow(f.phase)) return FileKind::kFlow;
  if (f.phase == 'i' || f.phase == 'I')
    return f.address != kNoId && file_.text(f.name) == "[memory]" ? FileKind::kMemory
                                                                  : FileKind::kOther;
  if (f.phase != 'X' && f.phase != 'B') return FileKind::kOther;
  return kinds_[category];
}

std::pair<int64_t, int32_t> ChromeEvents::keep_detail(FileKind kind) {
  Fields& f = fields_;
  const auto row = [](auto* table, auto&& detail) {
    table->push_back(detail);
    return static_cast<int32_t>(table->size() - 1);
  };
  switch (kind) {
    case FileKind::kOperator:
    case FileKind::kAnnotation:
      f.op.external = f.external;
      return {f.external, row(&file_.operators, f.op)};
    case FileKind::kPython:
      return {f.python_id, row(&file_.python, f.python)};
    case FileKind::kMemory:
      return {f.address, row(&file_.memory, f.memory)};
    case FileKind::kFlow:
      return {f.id_text == 0 ? f.id : kNoId + 1 + static_cast<int64_t>(f.id_text), kNone};
    case FileKind::kRuntime:
    case FileKind::kKernel:
    case FileKind::kMemcpy:
    case FileKind::kMemset:
    case FileKind::kHost:
    case FileKind::kQueue:
      f.device.external = f.external;
      return {f.correlation, row(&file_.devices, f.device)};
    default:
      return {f.correlation != kNoId ? f.correlation : f.id, kNone};
  }
}

void ChromeEvents::keep_metadata(int32_t thread) {
  const std::string_view name = file_.text(fields_.name);
  if (name == "thread_name") file_.threads[thread].name = fields_.metadata;
  if (name != "process_name") return;
  FileThread& own = file_.threads[thread];
  for (FileThread& t : file_.threads)
    if (t.pid == own.pid && t.pid_text == own.pid_text) t.process = fields_.metadata;
}

void ChromeEvents::keep() {
  const Fields& f = fields_;
  const int32_t thread = thread_row();
  const uint8_t category = category_row(f.category);
  if (f.phase == 'M') keep_metadata(thread);
  const FileKind kind = kind_of(category);
  const auto [id, detail] = keep_detail(kind);
  if (f.start_ns == kNoTime && f.phase != 'M')
    file_.losses.add(LossKind::kEventWithoutTime, window_.offset_of(event_), {event_, 60});
  if (f.phase == 0) file_.losses.add(LossKind::kPhaseUnknown, window_.offset_of(event_));
  file_.name.push_back(f.name);
  file_.kind.push_back(kind);
  file_.category.push_back(category);
  file_.phase.push_back(f.phase);
  file_.thread.push_back(thread);
  file_.start_ns.push_back(f.start_ns);
  file_.dur_ns.push_back(f.dur_ns);
  file_.id.push_back(id);
  file_.detail.push_back(detail);
}

}  // namespace opfuse::trace
