#include "opfuse/trace/json_window.h"

#include <algorithm>
#include <cstring>

namespace opfuse::trace {

JsonWindow::JsonWindow(ByteSource* source, int64_t offset)
    : source_(source),
      text_(std::make_unique_for_overwrite<char[]>(kSize + kPadding)),
      marks_((kSize + kPadding) / 64),
      offset_(offset) {
  refill(begin());
}

bool JsonWindow::refill(const char* keep) {
  const auto dropped = static_cast<size_t>(keep - begin());
  if (dropped == 0 && size_ == capacity_) {
    if (full()) return false;
    grow();
  } else if (dropped > 0) {
    std::memmove(text_.get(), keep, size_ - dropped);
  }
  size_ -= dropped;
  offset_ += static_cast<int64_t>(dropped);
  const size_t before = size_;
  if (!ended_) {
    const size_t room = capacity_ - size_;
    const size_t got = read_fully(source_, text_.get() + size_, room);
    ended_ = got < room;
    size_ += got;
  }
  std::memset(text_.get() + size_, '"', kPadding);
  find_marks(text_.get(), (size_ + kPadding) / 64, marks_.data());
  return size_ > before;
}

void JsonWindow::grow() {
  const size_t larger = std::min(capacity_ * 2, kLongest);
  auto text = std::make_unique_for_overwrite<char[]>(larger + kPadding);
  std::memcpy(text.get(), text_.get(), size_);
  text_ = std::move(text);
  capacity_ = larger;
  marks_.resize((larger + kPadding) / 64);
}

}  // namespace opfuse::trace
