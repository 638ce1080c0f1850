#pragma once
// Element types, numbered as c10::ScalarType so that the torch boundary converts by a cast.

#include <cstdint>
#include <optional>
#include <string_view>

namespace opfuse {

enum class DType : int8_t {
  kUnknown = -1,
  kU8 = 0,
  kI8 = 1,
  kI16 = 2,
  kI32 = 3,
  kI64 = 4,
  kF16 = 5,
  kF32 = 6,
  kF64 = 7,
  kC32 = 8,
  kC64 = 9,
  kC128 = 10,
  kBool = 11,
  kBF16 = 15,
};

// "f32", "bf16", "i64", "bool", …; "?" for unknown; "dtype<N>" is never produced: others give "?".
std::string_view dtype_name(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);
// Bytes of one element; 0 when unknown.
int dtype_size(DType dtype);
bool is_floating(DType dtype);
bool is_complex(DType dtype);
// Unit roundoff u (half the spacing at 1): 2^-24 for f32, 2^-53 f64, 2^-11 f16, 2^-8 bf16; 0 for
// others.
double unit_roundoff(DType dtype);

}  // namespace opfuse
