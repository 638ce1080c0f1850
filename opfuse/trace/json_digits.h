#pragma once
// Decimal digits eight at a time, in one word. Internal to trace/.

#include <bit>
#include <cstdint>
#include <cstring>

namespace opfuse::trace {

inline uint64_t load8(const char* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof(word));
  if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
  return word;
}

// The digits at the beginning of the 8 bytes at `p`: how many, and their value.
inline int leading_digits(const char* p, uint64_t* value) {
  const uint64_t word = load8(p) ^ 0x3030303030303030ull;
  // The top bit of each byte that is no digit; carries go upwards only, behind the first such byte.
  const uint64_t others = ((word + 0x7676767676767676ull) | word) & 0x8080808080808080ull;
  const int count = others == 0 ? 8 : std::countr_zero(others) >> 3;
  if (count == 0) {
    *value = 0;
    return 0;
  }
  uint64_t digits = word << (8 * (8 - count));  // zeros in front
  digits = digits * 10 + (digits >> 8);
  *value = ((digits & 0x000000FF000000FFull) * 0x000F424000000064ull +
            (digits >> 16 & 0x000000FF000000FFull) * 0x0000271000000001ull) >>
           32;
  return count;
}

// The digits at `p`, at most 16 of them; the text must reach 16 bytes behind `p`.
inline int leading_digits16(const char* p, uint64_t* value) {
  static constexpr uint64_t kPowers[] = {1,      10,      100,      1000,     10000,
                                         100000, 1000000, 10000000, 100000000};
  const int first = leading_digits(p, value);
  if (first < 8) return first;
  uint64_t more = 0;
  const int second = leading_digits(p + 8, &more);
  *value = *value * kPowers[second] + more;
  return 8 + second;
}

}  // namespace opfuse::trace
