#pragma once
// A window that moves over JSON text of any length, or shows a text that is in memory: the bytes,
// and where their quotes and brackets are. Internal to trace/.

#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

#include "opfuse/trace/byte_source.h"
#include "opfuse/trace/json_marks.h"

namespace opfuse::trace {

class JsonWindow {
 public:
  static constexpr size_t kSize = 256 << 10;
  // Grows up to this for one value that is longer than the window.
  static constexpr size_t kLongest = 64 << 20;

  static constexpr size_t kPadding = 128;

  explicit JsonWindow(ByteSource* source, int64_t offset = 0);
  JsonWindow() = default;
  // Shows the whole of a text in memory, which stays as it is, without a copy. kPadding bytes
  // behind it are written.
  void show(char* text, size_t size, int64_t offset);

  const char* begin() const { return text_; }
  const char* end() const { return text_ + size_; }
  bool ended() const { return ended_; }  // nothing comes behind end()
  int64_t offset_of(const char* p) const { return offset_ + (p - begin()); }

  // Drops what is before `keep`, which then stands at begin(), and reads on. False when nothing
  // more came: the end of the source, or a value longer than kLongest.
  bool refill(const char* keep);
  bool full() const { return size_ >= kLongest; }

  // The next quote or backslash; the next of those or a bracket. `p` may be end(); beyond the text
  // stand quotes, so that the answer is at most a few bytes behind end().
  const char* next_quote(const char* p) const { return next<&JsonMarks::quotes>(p); }
  const char* next_mark(const char* p) const { return next<&JsonMarks::marks>(p); }

 private:
  template <uint64_t JsonMarks::* member>
  const char* next(const char* p) const {
    const auto at = static_cast<size_t>(p - begin());
    size_t block = at >> 6;
    uint64_t bits = marks_[block].*member >> (at & 63);
    if (bits != 0) return p + std::countr_zero(bits);
    do bits = marks_[++block].*member;
    while (bits == 0);
    return begin() + block * 64 + std::countr_zero(bits);
  }

  void grow();
  void mark();

  ByteSource* source_ = nullptr;  // none: a text in memory
  std::unique_ptr<char[]> own_;
  char* text_ = nullptr;
  size_t capacity_ = 0, size_ = 0;
  std::vector<JsonMarks> marks_;
  int64_t offset_ = 0;
  bool ended_ = false;
};

}  // namespace opfuse::trace
