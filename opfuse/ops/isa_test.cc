#include "opfuse/ops/isa.h"

#include <gtest/gtest.h>

namespace opfuse::ops {
namespace {

TEST(Isa, TheEmptyNameIsTheBestLevel) {
  EXPECT_EQ(*isa_from_name(""), best_isa());
  EXPECT_EQ(*isa_from_name(nullptr), best_isa());
}

TEST(Isa, EverySupportedLevelIsFoundByItsName) {
  for (Isa isa : kAllIsas) {
    if (!isa_supported(isa)) continue;
    EXPECT_EQ(*isa_from_name(std::string(isa_name(isa)).c_str()), isa);
  }
}

TEST(Isa, GenericRunsEverywhere) { EXPECT_TRUE(isa_supported(Isa::kGeneric)); }

TEST(Isa, AnUnknownNameIsAnErrorThatListsTheLevels) {
  const Result<Isa> found = isa_from_name("sse9");
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().message,
            "OPFUSE_ISA: expected generic, avx2, avx512 or avx512bf16, found 'sse9'");
}

}  // namespace
}  // namespace opfuse::ops
