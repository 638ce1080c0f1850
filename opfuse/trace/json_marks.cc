// Brackets are told by one comparison: '[' | 0x20 is '{' and ']' | 0x20 is '}'. The portable level
// uses the compiler's vectors, 16 bytes at a time.

#include "opfuse/trace/json_marks.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace opfuse::trace {
namespace {

using Bytes = unsigned char __attribute__((vector_size(16)));

// Bit i: the top bit of byte i of a vector that holds 0 or 0xff.
uint64_t bits_of(Bytes flags) {
#if defined(__x86_64__)
  return static_cast<uint32_t>(_mm_movemask_epi8(reinterpret_cast<__m128i>(flags)));
#else
  constexpr Bytes kBit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const Bytes bits = flags & kBit;
  uint64_t low = 0, high = 0;
  for (int i = 0; i < 8; ++i) low |= bits[i], high |= bits[i + 8];
  return low | high << 8;
#endif
}

void find_generic(const char* text, size_t blocks, JsonMarks* out) {
  for (size_t block = 0; block < blocks; ++block) {
    JsonMarks found;
    for (int part = 0; part < 4; ++part) {
      Bytes bytes;
      std::memcpy(&bytes, text + block * 64 + part * 16, 16);
      const Bytes folded = bytes | 0x20;
      const auto quotes = (bytes == '"') | (bytes == '\\');
      const auto brackets = (folded == '{') | (folded == '}');
      const uint64_t quote_bits = bits_of(reinterpret_cast<Bytes>(quotes));
      found.quotes |= quote_bits << (part * 16);
      found.marks |= (quote_bits | bits_of(reinterpret_cast<Bytes>(brackets))) << (part * 16);
    }
    out[block] = found;
  }
}

#if defined(__x86_64__)

__attribute__((target("avx2"))) void find_avx2(const char* text, size_t blocks, JsonMarks* out) {
  const __m256i quote = _mm256_set1_epi8('"'), slash = _mm256_set1_epi8('\\');
  const __m256i open = _mm256_set1_epi8('{'), close = _mm256_set1_epi8('}');
  const __m256i fold = _mm256_set1_epi8(0x20);
  for (size_t block = 0; block < blocks; ++block) {
    JsonMarks found;
    for (int part = 0; part < 2; ++part) {
      const __m256i bytes =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(text + block * 64 + part * 32));
      const __m256i folded = _mm256_or_si256(bytes, fold);
      const __m256i quotes =
          _mm256_or_si256(_mm256_cmpeq_epi8(bytes, quote), _mm256_cmpeq_epi8(bytes, slash));
      const __m256i brackets =
          _mm256_or_si256(_mm256_cmpeq_epi8(folded, open), _mm256_cmpeq_epi8(folded, close));
      const auto quote_bits = static_cast<uint32_t>(_mm256_movemask_epi8(quotes));
      const auto all =
          static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_or_si256(quotes, brackets)));
      found.quotes |= static_cast<uint64_t>(quote_bits) << (part * 32);
      found.marks |= static_cast<uint64_t>(all) << (part * 32);
    }
    out[block] = found;
  }
}

__attribute__((target("avx512f,avx512bw"))) void find_avx512(const char* text, size_t blocks,
                                                             JsonMarks* out) {
  const __m512i quote = _mm512_set1_epi8('"'), slash = _mm512_set1_epi8('\\');
  const __m512i open = _mm512_set1_epi8('{'), close = _mm512_set1_epi8('}');
  const __m512i fold = _mm512_set1_epi8(0x20);
  for (size_t block = 0; block < blocks; ++block) {
    const __m512i bytes = _mm512_loadu_si512(text + block * 64);
    const __m512i folded = _mm512_or_si512(bytes, fold);
    const uint64_t quotes =
        _mm512_cmpeq_epi8_mask(bytes, quote) | _mm512_cmpeq_epi8_mask(bytes, slash);
    out[block] = {quotes, quotes | _mm512_cmpeq_epi8_mask(folded, open) |
                              _mm512_cmpeq_epi8_mask(folded, close)};
  }
}

#endif

struct Levels {
  MarksLevel level[3];
  size_t count = 0;
  Levels() {
    level[count++] = {"generic", find_generic};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) level[count++] = {"avx2", find_avx2};
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"))
      level[count++] = {"avx512", find_avx512};
#endif
  }
};

const Levels& levels() {
  static const Levels all;
  return all;
}

}  // namespace

void find_marks(const char* text, size_t blocks, JsonMarks* out) {
  const Levels& all = levels();
  all.level[all.count - 1].find(text, blocks, out);
}

size_t marks_levels(const MarksLevel** out) {
  *out = levels().level;
  return levels().count;
}

}  // namespace opfuse::trace
