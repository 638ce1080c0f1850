#include "opfuse/ops/isa.h"

#include <unistd.h>

#include <cstdlib>

namespace opfuse::ops {

std::string_view isa_name(Isa isa) {
  constexpr std::array<std::string_view, 4> kNames = {"generic", "avx2", "avx512", "avx512bf16"};
  return kNames[static_cast<size_t>(isa)];
}

bool isa_supported(Isa isa) {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (isa == Isa::kAvx2) return avx2;
  if (isa == Isa::kAvx512) return avx512;
  if (isa == Isa::kAvx512Bf16) return avx512 && __builtin_cpu_supports("avx512bf16");
#endif
  return isa == Isa::kGeneric;
}

Isa best_isa() {
  Isa best = Isa::kGeneric;
  for (Isa isa : kAllIsas)
    if (isa_supported(isa)) best = isa;
  return best;
}

Result<Isa> isa_from_name(const char* name) {
  if (!name || !*name) return best_isa();
  for (Isa isa : kAllIsas) {
    if (isa_name(isa) != name) continue;
    if (!isa_supported(isa))
      return Error{"OPFUSE_ISA: this processor lacks " + std::string(name) +
                   ", the best it has is " + std::string(isa_name(best_isa()))};
    return isa;
  }
  return Error{"OPFUSE_ISA: expected generic, avx2, avx512 or avx512bf16, found '" +
               std::string(name) + "'"};
}

const Result<Isa>& chosen_isa() {
  static const Result<Isa> chosen = isa_from_name(std::getenv("OPFUSE_ISA"));
  return chosen;
}

int64_t last_level_cache_bytes() {
#if defined(_SC_LEVEL3_CACHE_SIZE)
  const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (bytes > 0) return bytes;
#endif
  return int64_t{32} << 20;
}

}  // namespace opfuse::ops
