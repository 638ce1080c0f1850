#include "opfuse/trace/losses.h"

#include <algorithm>

namespace opfuse::trace {
namespace {

constexpr LossInfo kInfos[] = {
#define OPFUSE_LOSS_INFO(name, severity, text) {#name, text, Severity::k##severity},
    OPFUSE_LOSSES(OPFUSE_LOSS_INFO)
#undef OPFUSE_LOSS_INFO
};

// One printable line.
std::string excerpt_of(std::string_view text) {
  constexpr size_t kLongest = 60;
  std::string line;
  for (char c : text.substr(0, kLongest))
    line += c >= 0x20 && c < 0x7f ? c : (c == '\n' || c == '\t' || c == '\r') ? ' ' : '?';
  return line;
}

}  // namespace

const LossInfo& loss_info(LossKind kind) { return kInfos[static_cast<size_t>(kind)]; }

void LossLog::add(LossKind kind, int64_t offset, std::string_view excerpt, int64_t count) {
  if (count <= 0) return;
  LossCount& entry = counts_[static_cast<size_t>(kind)];
  if (entry.count == 0) {
    entry.first_offset = offset;
    entry.excerpt = excerpt_of(excerpt);
  }
  entry.count += count;
}

void LossLog::merge(const LossLog& other) {
  for (size_t i = 0; i < counts_.size(); ++i) {
    if (other.counts_[i].count == 0) continue;
    const int64_t count = counts_[i].count;
    if (count == 0) counts_[i] = other.counts_[i];
    counts_[i].count = count + other.counts_[i].count;
  }
}

bool LossLog::damaged() const {
  for (size_t i = 0; i < counts_.size(); ++i)
    if (counts_[i].count > 0 && kInfos[i].severity != Severity::kNote) return true;
  return false;
}

std::vector<LossKind> LossLog::present() const {
  std::vector<LossKind> kinds;
  for (size_t i = 0; i < counts_.size(); ++i)
    if (counts_[i].count > 0) kinds.push_back(static_cast<LossKind>(i));
  std::ranges::stable_sort(
      kinds, [](LossKind a, LossKind b) { return loss_info(a).severity > loss_info(b).severity; });
  return kinds;
}

}  // namespace opfuse::trace
