#include <algorithm>
#include <cstring>
#include <limits>

#include "opfuse/base/check.h"
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

// Both halves of the product of two words: every bit of either reaches the result.
uint64_t mix(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

using Block = unsigned char __attribute__((vector_size(16)));

uint64_t differ16(const char* a, const char* b) {
  Block x, y;
  std::memcpy(&x, a, 16);
  std::memcpy(&y, b, 16);
  x ^= y;
  uint64_t words[2];
  std::memcpy(words, &x, sizeof(words));
  return words[0] | words[1];
}

// As ==, without a call for the short texts that most are.
bool same_bytes(const char* a, const char* b, size_t n) {
  if (n < 8) return load_short(a, n) == load_short(b, n);
  if (n < 16)
    return load<uint64_t>(a) == load<uint64_t>(b) &&
           load<uint64_t>(a + n - 8) == load<uint64_t>(b + n - 8);
  for (size_t i = 0; i + 16 < n; i += 16)
    if (differ16(a + i, b + i) != 0) return false;
  return differ16(a + n - 16, b + n - 16) == 0;
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

// Thirty-two bytes at a step in two lanes that do not wait for each other; the last step overlaps
// the one before it.
uint64_t StringPool::hash_of(std::string_view text) {
  constexpr uint64_t kA = 0xA0761D6478BD642Full, kB = 0xE7037ED1A0B428DBull,
                     kC = 0x8EBC6AF09C88C6E3ull, kD = 0x589965CC75374CC3ull;
  const char* p = text.data();
  const size_t n = text.size();
  if (n < 8) return mix(load_short(p, n) ^ kA, n ^ kB);
  if (n <= 16) return mix(load<uint64_t>(p) ^ kA ^ n, load<uint64_t>(p + n - 8) ^ kB);
  uint64_t a = n ^ kA, b = kB;
  for (size_t i = 0; i + 32 < n; i += 32) {
    a = mix(load<uint64_t>(p + i) ^ kC, load<uint64_t>(p + i + 8) ^ a);
    b = mix(load<uint64_t>(p + i + 16) ^ kD, load<uint64_t>(p + i + 24) ^ b);
  }
  if (n > 32)
    a ^= mix(load<uint64_t>(p + n - 32) ^ kC, load<uint64_t>(p + n - 24) ^ kD);
  else if (n > 16)
    a ^= load<uint64_t>(p) ^ load<uint64_t>(p + 8) * kD;
  return mix(load<uint64_t>(p + n - 16) ^ a, load<uint64_t>(p + n - 8) ^ b);
}

size_t StringPool::slot_of(std::string_view text, uint64_t hash) const {
  const size_t mask = slots_.size() - 1;
  const auto tag = static_cast<uint32_t>(hash >> 32);
  size_t slot = hash & mask;
  while (slots_[slot].id != kEmpty) {
    const Slot& at = slots_[slot];
    if (at.tag == tag && length_of(at.text) == text.size() &&
        same_bytes(at.text, text.data(), text.size()))
      return slot;
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
  texts_.push_back(keep(text));
  slots_[slot] = {static_cast<uint32_t>(hash >> 32), id, texts_.back().data()};
  if (texts_.size() * 2 > slots_.size()) grow();
  return id;
}

// Before each text stands its length, so that a look at it needs one place of the memory.
std::string_view StringPool::keep(std::string_view text) {
  OPFUSE_CHECK(text.size() < std::numeric_limits<uint32_t>::max(), "a text of 4 GiB");
  const auto length = static_cast<uint32_t>(text.size());
  const size_t needed = sizeof(length) + text.size();
  if (block_size_ - block_used_ < needed) {
    block_size_ = std::max(kBlock, needed);
    blocks_.push_back(std::make_unique_for_overwrite<char[]>(block_size_));
    block_bytes_ += block_size_;
    block_used_ = 0;
  }
  char* at = blocks_.back().get() + block_used_;
  std::memcpy(at, &length, sizeof(length));
  if (!text.empty()) std::memcpy(at + sizeof(length), text.data(), text.size());
  block_used_ += needed;
  return {at + sizeof(length), text.size()};
}

uint32_t StringPool::length_of(const char* text) {
  uint32_t length;
  std::memcpy(&length, text - sizeof(length), sizeof(length));
  return length;
}

void StringPool::grow() {
  slots_.assign(slots_.size() * 2, Slot{});
  const size_t mask = slots_.size() - 1;
  for (StringId id = 0; id < texts_.size(); ++id) {
    const uint64_t hash = hash_of(texts_[id]);
    size_t slot = hash & mask;
    while (slots_[slot].id != kEmpty) slot = (slot + 1) & mask;
    slots_[slot] = {static_cast<uint32_t>(hash >> 32), id, texts_[id].data()};
  }
}

size_t StringPool::bytes() const {
  return block_bytes_ + texts_.capacity() * sizeof(std::string_view) +
         slots_.capacity() * sizeof(Slot);
}

}  // namespace opfuse::trace
