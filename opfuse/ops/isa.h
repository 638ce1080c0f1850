#pragma once
// Instruction set levels. Each kernel text is compiled once per level into a table of functions;
// at run time the highest level that the processor has is used, or the one that OPFUSE_ISA names.

#include <array>
#include <string>
#include <string_view>

#include "opfuse/base/result.h"

namespace opfuse::ops {

enum class Isa { kGeneric, kAvx2, kAvx512, kAvx512Bf16 };
inline constexpr std::array kAllIsas = {Isa::kGeneric, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16};

// "generic" (16-byte vectors of the compiler: SSE2, NEON), "avx2" (with FMA and F16C), "avx512"
// (F, BW, DQ, VL) or "avx512bf16".
std::string_view isa_name(Isa isa);
// True when this binary holds the level and this processor and its system run it.
bool isa_supported(Isa isa);
Isa best_isa();
// The level that `name` names; null or empty: the best one. An error when there is no such level or
// the processor lacks it.
Result<Isa> isa_from_name(const char* name);
// The level that OPFUSE_ISA of the environment names, read once.
const Result<Isa>& chosen_isa();

// Bytes of the last level cache; 32 MiB where the system does not tell.
int64_t last_level_cache_bytes();

}  // namespace opfuse::ops

// OPFUSE_KERNEL_TABLE(Type, name) declares the tables opfuse::ops::<level>::name and
// name_kernels(), which picks one. Used in the operator's header, in namespace opfuse::ops.
#if defined(__x86_64__)
#define OPFUSE_KERNEL_TABLE(Type, name)                   \
  namespace generic {                                     \
  extern const Type name;                                 \
  }                                                       \
  namespace avx2 {                                        \
  extern const Type name;                                 \
  }                                                       \
  namespace avx512 {                                      \
  extern const Type name;                                 \
  }                                                       \
  namespace avx512bf16 {                                  \
  extern const Type name;                                 \
  }                                                       \
  inline const Type& name##_kernels(Isa isa) {            \
    if (isa == Isa::kAvx2) return avx2::name;             \
    if (isa == Isa::kAvx512) return avx512::name;         \
    if (isa == Isa::kAvx512Bf16) return avx512bf16::name; \
    return generic::name;                                 \
  }
#else
#define OPFUSE_KERNEL_TABLE(Type, name) \
  namespace generic {                   \
  extern const Type name;               \
  }                                     \
  inline const Type& name##_kernels(Isa) { return generic::name; }
#endif
