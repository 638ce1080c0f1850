#include "opfuse/trace/json_walker.h"

#include <algorithm>
#include <string_view>

namespace opfuse::trace {
namespace {

// Members of the top level that are kept, as text. Anything else (environment dumps, user keys) is
// skipped without being held.
constexpr std::string_view kKept[] = {"schemaVersion",
                                      "deviceProperties",
                                      "distributedInfo",
                                      "displayTimeUnit",
                                      "traceName",
                                      "baseTimeNanoseconds",
                                      "record_shapes",
                                      "profile_memory",
                                      "with_stack",
                                      "with_modules",
                                      "with_flops",
                                      "cupti_version",
                                      "cuda_runtime_version",
                                      "cuda_driver_version",
                                      "roctracer_version",
                                      "hip_runtime_version",
                                      "hip_driver_version",
                                      "schema",
                                      "pid",
                                      "time",
                                      "start_ts",
                                      "finish_ts"};
constexpr size_t kLongestKept = 64 << 10;

bool is_space(char c) { return static_cast<unsigned char>(c) <= ' '; }

}  // namespace

JsonWalker::JsonWalker(ByteSource* source, int64_t offset, LossLog* losses,
                       std::map<std::string, std::string>* header, MakeReader make_reader)
    : window_(source, offset),
      at_(window_.begin()),
      losses_(*losses),
      header_(*header),
      make_reader_(std::move(make_reader)) {}

JsonWalker::JsonWalker(LossLog* losses, std::map<std::string, std::string>* header,
                       MakeReader make_reader)
    : at_(nullptr), losses_(*losses), header_(*header), make_reader_(std::move(make_reader)) {}

void JsonWalker::run_piece(char* text, size_t size, int64_t offset, Place place, bool bare,
                           bool last) {
  window_.show(text, size, offset);
  at_ = window_.begin();
  clean_ = comma_ = true;
  run(place, bare, last);
}

void JsonWalker::run(Place place, bool bare, bool last) {
  place_ = place;
  bare_ = bare;
  if (place == Place::kStart) start();
  if (place_ == Place::kEvents && !reader_) reader_ = make_reader_("traceEvents", &window_);
  while (place_ == Place::kObject || place_ == Place::kEvents) {
    if (place_ == Place::kObject)
      top_member();
    else
      events();
    if (at_ >= window_.end() && window_.ended()) break;
  }
  if (last && place_ != Place::kDone) losses_.add(LossKind::kFileEndMissing, done_offset());
}

bool JsonWalker::more() {
  const bool moved = window_.refill(at_);
  at_ = window_.begin();
  if (on_progress) on_progress(done_offset());
  return moved;
}

bool JsonWalker::skip_space() {
  while (true) {
    while (at_ < window_.end() && is_space(*at_)) ++at_;
    if (at_ < window_.end()) return true;
    if (!more()) return false;
  }
}

void JsonWalker::stray(const char* from) {
  clean_ = false;
  losses_.add(LossKind::kStrayText, window_.offset_of(from),
              {from, static_cast<size_t>(std::min<ptrdiff_t>(60, window_.end() - from))});
}

void JsonWalker::start() {
  if (window_.end() - at_ >= 3 && std::string_view(at_, 3) == "\xEF\xBB\xBF") at_ += 3;
  if (!skip_space()) {
    place_ = Place::kDone;
    return;
  }
  if (*at_ != '{' && *at_ != '[') {
    stray(at_);
    while (at_ < window_.end() && *at_ != '{' && *at_ != '[') {
      ++at_;
      if (at_ == window_.end()) more();
    }
    if (at_ == window_.end()) {
      place_ = Place::kDone;
      return;
    }
  }
  if (*at_++ == '[') {
    place_ = Place::kEvents;
    bare_ = true;
    if (!reader_) reader_ = make_reader_("", &window_);
  } else {
    place_ = Place::kObject;
  }
}

bool JsonWalker::read_key(std::string* key) {
  key->clear();
  ++at_;
  while (true) {
    if (at_ >= window_.end() && !more()) return false;
    if (*at_ == '"') break;
    if (key->size() > kLongestKept) return false;
    *key += *at_++;
  }
  ++at_;
  return skip_space() && *at_ == ':' && (++at_, skip_space());
}

// Any value, however long, without holding it; its text when it is short.
bool JsonWalker::value(std::string* kept) {
  int depth = 0;
  bool in_string = false;
  while (true) {
    if (at_ >= window_.end() && !more()) return false;
    const char c = *at_;
    const bool ends_scalar = depth == 0 && !in_string && (c == ',' || c == '}' || c == ']');
    if (ends_scalar) return true;
    if (kept->size() < kLongestKept) *kept += c;
    ++at_;
    if (in_string) {
      if (c == '\\') {
        if (at_ >= window_.end() && !more()) return false;
        *kept += *at_++;
      } else if (c == '"') {
        in_string = false;
        if (depth == 0) return true;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if ((c == '}' || c == ']') && --depth == 0) {
      return true;
    }
  }
}

void JsonWalker::top_member() {
  if (!skip_space()) return;
  if (*at_ == ',') {
    ++at_;
    return;
  }
  if (*at_ == '}') {
    ++at_;
    place_ = Place::kDone;
    return;
  }
  if (*at_ != '"') {
    stray(at_);
    if (!reader_) reader_ = make_reader_("traceEvents", &window_);
    resync();
    return;
  }
  std::string key, text;
  if (!read_key(&key)) {
    if (at_ < window_.end()) stray(at_);
    return;
  }
  if ((key == "traceEvents" || key == "nodes") && *at_ == '[') {
    ++at_;
    place_ = Place::kEvents;
    comma_ = true;
    reader_ = make_reader_(key, &window_);
    return;
  }
  const bool whole = value(&text);
  if (whole && text.size() < kLongestKept && std::ranges::find(kKept, key) != std::end(kKept))
    header_[key] = std::move(text);
}

// Between two events.
void JsonWalker::events() {
  while (place_ == Place::kEvents) {
    if (at_ < window_.end() && is_space(*at_)) ++at_;  // most often one newline
    if (!skip_space()) return;
    switch (*at_) {
      case '{':
        if (!comma_) losses_.add(LossKind::kCommaMissing, window_.offset_of(at_), {at_, 60});
        event();
        break;
      case ',':
        comma_ = true;
        ++at_;
        break;
      case ']':
        ++at_;
        place_ = bare_ ? Place::kDone : Place::kObject;
        // Pieces of bare arrays are sometimes glued together.
        if (bare_ && skip_space()) {
          stray(at_ - 1);
          place_ = Place::kEvents;
          comma_ = true;
        }
        break;
      case '[':
        ++at_;
        break;
      default:
        stray(at_);
        resync();
    }
  }
}

void JsonWalker::event() {
  while (true) {
    const char* const begin = at_;
    switch (reader_->scan(&at_)) {
      case Scan::kDone:
        comma_ = false;
        return;
      case Scan::kMore:
        at_ = begin;
        if (more()) continue;
        clean_ = false;
        if (window_.full()) {
          losses_.add(LossKind::kEventTooLong, window_.offset_of(at_), {at_, 60});
          ++at_;
          return resync();
        }
        losses_.add(LossKind::kEventCut, window_.offset_of(at_),
                    {at_, static_cast<size_t>(std::min<ptrdiff_t>(60, window_.end() - at_))});
        ++at_;
        return resync();  // an event that is not cut may follow one with a broken string
      case Scan::kBad:
        at_ = begin;
        clean_ = false;
        losses_.add(LossKind::kEventUnreadable, window_.offset_of(at_), {at_, 60});
        ++at_;
        return resync();
    }
  }
}

// To the next text that can be an event, or to the end of the array.
void JsonWalker::resync() {
  comma_ = true;
  while (true) {
    const char* p = window_.next_mark(at_);
    // A candidate close to the end is looked at with what comes behind it.
    if (p + 64 >= window_.end()) {
      at_ = std::min(p, window_.end());
      if (more()) continue;
      p = window_.next_mark(at_);
      if (p >= window_.end()) {
        at_ = window_.end();
        return;
      }
    }
    at_ = p;
    if (reader_ && reader_->looks_like_event(p)) {
      place_ = Place::kEvents;
      return;
    }
    if (*p == ']' && place_ == Place::kEvents) {
      const char* before = p;
      while (before > window_.begin() && is_space(before[-1])) --before;
      if (before > window_.begin() && before[-1] == '}') return;
    }
    ++at_;
  }
}

}  // namespace opfuse::trace
