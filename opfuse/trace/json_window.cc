#include "opfuse/trace/json_window.h"

#include <algorithm>
#include <cstring>

namespace opfuse::trace {

JsonWindow::JsonWindow(ByteSource* source, int64_t offset)
    : source_(source),
      own_(std::make_unique_for_overwrite<char[]>(kSize + kPadding)),
      text_(own_.get()),
      capacity_(kSize),
      marks_((kSize + kPadding) / 64),
      offset_(offset) {
  refill(begin());
}

void JsonWindow::show(char* text, size_t size, int64_t offset) {
  source_ = nullptr;
  text_ = text;
  size_ = capacity_ = size;
  offset_ = offset;
  ended_ = true;
  if (marks_.size() < (size + kPadding) / 64) marks_.resize((size + kPadding) / 64);
  mark();
}

bool JsonWindow::refill(const char* keep) {
  const auto dropped = static_cast<size_t>(keep - begin());
  if (source_ == nullptr) {
    text_ += dropped;
  } else if (dropped == 0 && size_ == capacity_) {
    if (full()) return false;
    grow();
  } else if (dropped > 0) {
    std::memmove(text_, keep, size_ - dropped);
  }
  size_ -= dropped;
  offset_ += static_cast<int64_t>(dropped);
  const size_t before = size_;
  if (!ended_) {
    const size_t room = capacity_ - size_;
    const size_t got = read_fully(source_, text_ + size_, room);
    ended_ = got < room;
    size_ += got;
  }
  mark();
  return size_ > before;
}

void JsonWindow::mark() {
  std::memset(text_ + size_, '"', kPadding);
  find_marks(text_, (size_ + kPadding) / 64, marks_.data());
}

void JsonWindow::grow() {
  const size_t larger = std::min(capacity_ * 2, kLongest);
  auto text = std::make_unique_for_overwrite<char[]>(larger + kPadding);
  std::memcpy(text.get(), text_, size_);
  own_ = std::move(text);
  text_ = own_.get();
  capacity_ = larger;
  marks_.resize((larger + kPadding) / 64);
}

}  // namespace opfuse::trace
