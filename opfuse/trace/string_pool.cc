#include <algorithm>
#include <cstring>

#include "opfuse/trace/event_table.h"

namespace opfuse::trace {
namespace {

constexpr StringId kEmpty = ~StringId{0};
constexpr size_t kBlock = 64 << 10;

template <class Word>
uint64_t load(const char* p) {
  Word word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

// All bytes of a text shorter than 8.
uint64_t load_short(const char* p, size_t n) {
  if (n >= 4) return load<uint32_t>(p) | load<uint32_t>(p + n - 4) << 32;
  if (n == 0) return 0;
  return load<uint8_t>(p) | load<uint8_t>(p + n / 2) << 8 | load<uint8_t>(p + n - 1) << 16;
}

uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0xD6E8FEB86659FD93ull;
  return hash ^ hash >> 32;
}

// As ==, without a call for the short texts that most are.
bool same(std::string_view a, std::string_view b) {
  const size_t n = a.size();
  if (n != b.size()) return false;
  if (n < 8) return load_short(a.data(), n) == load_short(b.data(), n);
  for (size_t i = 0; i + 8 <= n; i += 8)
    if (load<uint64_t>(a.data() + i) != load<uint64_t>(b.data() + i)) return false;
  return load<uint64_t>(a.data() + n - 8) == load<uint64_t>(b.data() + n - 8);
}

}  // namespace

StringPool::StringPool() : slots_(1 << 10) { intern(""); }

StringPool::StringPool(const StringPool& other) : slots_(other.slots_.size()) {
  for (std::string_view text : other.texts_) intern(text);
}

StringPool& StringPool::operator=(const StringPool& other) {
  if (this != &other) *this = StringPool(other);
  return *this;
}

// Sixteen bytes at a step in two lanes that do not wait for each other; the last step overlaps the
// one before it.
uint64_t StringPool::hash_of(std::string_view text) {
  const char* p = text.data();
  const size_t n = text.size();
  uint64_t a = n * 0x9E3779B97F4A7C15ull;
  if (n < 8) return mix(a, load_short(p, n));
  if (n < 16) return mix(mix(a, load<uint64_t>(p)), load<uint64_t>(p + n - 8));
  uint64_t b = 0x94D049BB133111EBull;
  for (size_t i = 0; i + 16 <= n; i += 16) {
    a = mix(a, load<uint64_t>(p + i));
    b = mix(b, load<uint64_t>(p + i + 8));
  }
  a = mix(a, load<uint64_t>(p + n - 16));
  b = mix(b, load<uint64_t>(p + n - 8));
  return mix(a, b);
}

size_t StringPool::slot_of(std::string_view text, uint64_t hash) const {
  const size_t mask = slots_.size() - 1;
  const auto tag = static_cast<uint32_t>(hash >> 32);
  size_t slot = hash & mask;
  while (slots_[slot].id != kEmpty) {
    if (slots_[slot].tag == tag && same(texts_[slots_[slot].id], text)) return slot;
    slot = (slot + 1) & mask;
  }
  return slot;
}

bool StringPool::find(std::string_view text, StringId* id) const {
  const size_t slot = slot_of(text, hash_of(text));
  if (slots_[slot].id == kEmpty) return false;
  *id = slots_[slot].id;
  return true;
}

StringId StringPool::intern(std::string_view text) {
  const uint64_t hash = hash_of(text);
  const size_t slot = slot_of(text, hash);
  if (slots_[slot].id != kEmpty) return slots_[slot].id;
  const auto id = static_cast<StringId>(texts_.size());
  slots_[slot] = {static_cast<uint32_t>(hash >> 32), id};
  texts_.push_back(keep(text));
  if (texts_.size() * 2 > slots_.size()) grow();
  return id;
}

std::string_view StringPool::keep(std::string_view text) {
  if (text.empty()) return {};
  if (block_size_ - block_used_ < text.size()) {
    block_size_ = std::max(kBlock, text.size());
    blocks_.push_back(std::make_unique_for_overwrite<char[]>(block_size_));
    block_bytes_ += block_size_;
    block_used_ = 0;
  }
  char* at = blocks_.back().get() + block_used_;
  std::memcpy(at, text.data(), text.size());
  block_used_ += text.size();
  return {at, text.size()};
}

void StringPool::grow() {
  slots_.assign(slots_.size() * 2, Slot{});
  const size_t mask = slots_.size() - 1;
  for (StringId id = 0; id < texts_.size(); ++id) {
    const uint64_t hash = hash_of(texts_[id]);
    size_t slot = hash & mask;
    while (slots_[slot].id != kEmpty) slot = (slot + 1) & mask;
    slots_[slot] = {static_cast<uint32_t>(hash >> 32), id};
  }
}

size_t StringPool::bytes() const {
  return block_bytes_ + texts_.capacity() * sizeof(std::string_view) +
         slots_.capacity() * sizeof(Slot);
}

}  // namespace opfuse::trace
