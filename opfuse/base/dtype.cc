#include "opfuse/base/dtype.h"

#include <array>
#include <cmath>

namespace opfuse {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  int size;
  int mantissa_bits;  // stored bits of a floating type, -1 for others
};

constexpr std::array<Row, 13> kRows = {{
    {DType::kU8, "u8", 1, -1},
    {DType::kI8, "i8", 1, -1},
    {DType::kI16, "i16", 2, -1},
    {DType::kI32, "i32", 4, -1},
    {DType::kI64, "i64", 8, -1},
    {DType::kF16, "f16", 2, 10},
    {DType::kF32, "f32", 4, 23},
    {DType::kF64, "f64", 8, 52},
    {DType::kC32, "c32", 4, -1},
    {DType::kC64, "c64", 8, -1},
    {DType::kC128, "c128", 16, -1},
    {DType::kBool, "bool", 1, -1},
    {DType::kBF16, "bf16", 2, 7},
}};

const Row* find(DType dtype) {
  for (const Row& row : kRows)
    if (row.dtype == dtype) return &row;
  return nullptr;
}

}  // namespace

std::string_view dtype_name(DType dtype) {
  const Row* row = find(dtype);
  return row ? row->name : "?";
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const Row& row : kRows)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

int dtype_size(DType dtype) {
  const Row* row = find(dtype);
  return row ? row->size : 0;
}

bool is_floating(DType dtype) {
  const Row* row = find(dtype);
  return row && row->mantissa_bits >= 0;
}

bool is_complex(DType dtype) {
  return dtype == DType::kC32 || dtype == DType::kC64 || dtype == DType::kC128;
}

double unit_roundoff(DType dtype) {
  const Row* row = find(dtype);
  return row && row->mantissa_bits >= 0 ? std::ldexp(1.0, -(row->mantissa_bits + 1)) : 0.0;
}

}  // namespace opfuse
