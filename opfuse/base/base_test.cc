#include <gtest/gtest.h>

#include <string>

#include "opfuse/base/dtype.h"
#include "opfuse/base/result.h"
#include "opfuse/base/sha256.h"

namespace opfuse {
namespace {

TEST(Sha256, EqualsThePublishedExamples) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(DType, NamesRoundTrip) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kI64, DType::kBool, DType::kC128})
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
  EXPECT_FALSE(dtype_from_name("float"));
}

TEST(DType, UnitRoundoffIsHalfTheSpacingAtOne) {
  EXPECT_EQ(unit_roundoff(DType::kF32), 0x1p-24);
  EXPECT_EQ(unit_roundoff(DType::kBF16), 0x1p-8);
  EXPECT_EQ(unit_roundoff(DType::kI64), 0);
}

Result<int> half(int n) {
  if (n % 2) return Error{"half: expected an even number, found " + std::to_string(n)};
  return n / 2;
}

Result<int> quarter(int n) {
  OPFUSE_TRY(int h, half(n));
  return half(h);
}

TEST(Result, TryPassesTheErrorUp) {
  EXPECT_EQ(*quarter(8), 2);
  EXPECT_EQ(quarter(6).error().message, "half: expected an even number, found 3");
}

}  // namespace
}  // namespace opfuse
