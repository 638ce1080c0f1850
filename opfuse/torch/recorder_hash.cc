#include "opfuse/torch/recorder_hash.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace opfuse::torch_bridge {
namespace {

// The accumulation of XXH3 (public algorithm by Yann Collet): per lane, add the neighbour's word
// and the product of the halves of the keyed word. The key moves by one lane a stripe; after
// kStripes stripes the lanes are scrambled.
constexpr size_t kLanes = 8;
constexpr size_t kStripeBytes = kLanes * 8;
constexpr size_t kStripes = 16;
constexpr uint64_t kPrime = 0x9E3779B97F4A7C15ull;
constexpr uint64_t kPrime32 = 0x9E3779B1u;

constexpr std::array<uint64_t, kLanes + kStripes> make_keys() {
  std::array<uint64_t, kLanes + kStripes> keys{};
  uint64_t state = 0x243F6A8885A308D3ull;
  for (uint64_t& key : keys) {  // splitmix64
    uint64_t z = state += kPrime;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    key = z ^ (z >> 31);
  }
  return keys;
}
alignas(64) constexpr auto kKeys = make_keys();

using Lanes = std::array<uint64_t, kLanes>;

inline void accumulate(Lanes* lanes, const uint8_t* stripe, const uint64_t* keys) {
  for (size_t i = 0; i < kLanes; ++i) {
    uint64_t word;
    std::memcpy(&word, stripe + 8 * i, 8);
    uint64_t keyed = word ^ keys[i];
    (*lanes)[i ^ 1] += word;
    (*lanes)[i] += (keyed & 0xFFFFFFFFull) * (keyed >> 32);
  }
}

inline void scramble(Lanes* lanes) {
  for (size_t i = 0; i < kLanes; ++i) {
    uint64_t x = (*lanes)[i];
    (*lanes)[i] = (x ^ (x >> 47) ^ kKeys[kStripes + i]) * kPrime32;
  }
}

void accumulate_blocks_portable(Lanes* lanes, const uint8_t* data, size_t blocks) {
  for (size_t block = 0; block < blocks; ++block) {
    for (size_t stripe = 0; stripe < kStripes; ++stripe, data += kStripeBytes)
      accumulate(lanes, data, &kKeys[stripe]);
    scramble(lanes);
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void accumulate_blocks_avx2(Lanes* lanes, const uint8_t* data,
                                                            size_t blocks) {
  const __m256i* keys = reinterpret_cast<const __m256i*>(kKeys.data());
  __m256i* state = reinterpret_cast<__m256i*>(lanes->data());
  __m256i sums[2] = {_mm256_loadu_si256(state), _mm256_loadu_si256(state + 1)};
  const __m256i prime = _mm256_set1_epi64x(kPrime32);
  for (size_t block = 0; block < blocks; ++block) {
    for (size_t stripe = 0; stripe < kStripes; ++stripe, data += kStripeBytes) {
      for (int half = 0; half < 2; ++half) {
        __m256i word = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data) + half);
        __m256i key =
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kKeys.data() + stripe) + half);
        __m256i keyed = _mm256_xor_si256(word, key);
        __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
        __m256i neighbours = _mm256_shuffle_epi32(word, _MM_SHUFFLE(1, 0, 3, 2));
        sums[half] = _mm256_add_epi64(sums[half], _mm256_add_epi64(product, neighbours));
      }
    }
    for (int half = 0; half < 2; ++half) {
      __m256i key = _mm256_loadu_si256(keys + kStripes / 4 + half);
      __m256i x = _mm256_xor_si256(sums[half], _mm256_srli_epi64(sums[half], 47));
      x = _mm256_xor_si256(x, key);
      __m256i low = _mm256_mul_epu32(x, prime);
      __m256i high = _mm256_slli_epi64(_mm256_mul_epu32(_mm256_srli_epi64(x, 32), prime), 32);
      sums[half] = _mm256_add_epi64(low, high);
    }
  }
  _mm256_storeu_si256(state, sums[0]);
  _mm256_storeu_si256(state + 1, sums[1]);
}
#endif

using Blocks = void (*)(Lanes*, const uint8_t*, size_t);

Blocks pick_blocks() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return accumulate_blocks_avx2;
#endif
  return accumulate_blocks_portable;
}

uint64_t hash_with(Blocks accumulate_blocks, const void* data, size_t bytes) {
  Lanes lanes;
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = kKeys[i] ^ (kPrime * (i + 1));
  const uint8_t* p = static_cast<const uint8_t*>(data);
  const size_t blocks = bytes / (kStripeBytes * kStripes);
  accumulate_blocks(&lanes, p, blocks);
  p += blocks * kStripeBytes * kStripes;
  size_t rest = bytes - blocks * kStripeBytes * kStripes;
  size_t stripe = 0;
  for (; rest >= kStripeBytes; rest -= kStripeBytes, p += kStripeBytes, ++stripe)
    accumulate(&lanes, p, &kKeys[stripe]);
  if (rest > 0) {
    uint8_t padded[kStripeBytes] = {};
    std::memcpy(padded, p, rest);
    accumulate(&lanes, padded, &kKeys[stripe]);
  }
  scramble(&lanes);
  uint64_t hash = bytes * kPrime;
  for (uint64_t lane : lanes) {
    hash = (hash ^ lane) * kPrime;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace

uint64_t hash_bytes(const void* data, size_t bytes) {
  static const Blocks blocks = pick_blocks();
  return hash_with(blocks, data, bytes);
}

uint64_t hash_bytes_portable(const void* data, size_t bytes) {
  return hash_with(accumulate_blocks_portable, data, bytes);
}

}  // namespace opfuse::torch_bridge
