#include "opfuse/match/versions.h"

#include <gtest/gtest.h>

namespace opfuse::match {
namespace {

TEST(Versions, AreComparedNumberByNumber) {
  EXPECT_TRUE(version_in("2.13.0", ">=2.9"));
  EXPECT_FALSE(version_in("2.9.1", ">=2.13"));
  EXPECT_TRUE(version_in("2.13", ">=2.13.0"));
  EXPECT_TRUE(version_in("2.13.0", "==2.13"));
  EXPECT_FALSE(version_in("3.0", ">=2.1, <3"));
  EXPECT_TRUE(version_in("2.99.9", ">=2.1, <3"));
}

TEST(Versions, SuffixesSayNothing) {
  EXPECT_TRUE(version_in("2.13.0+cpu", ">=2.13"));
  EXPECT_TRUE(version_in("2.1.0.post17", "<=2.1"));
  EXPECT_TRUE(version_in("2.14.0a0+git1", ">=2.14"));
}

TEST(Versions, WhatIsUnknownIsInNoRangeButTheEmptyOne) {
  EXPECT_FALSE(version_in("", ">=1"));
  EXPECT_FALSE(version_in("unknown", ">=1"));
  EXPECT_TRUE(version_in("", ""));
}

TEST(Versions, ARangeThatIsNoneIsTold) {
  EXPECT_TRUE(parse_versions(">=2.1, <3"));
  for (const char* text : {"", "2.1", ">=", ">=x", "=>2.1", ">=2.1,", ">=2.1 <3", ">=2.1rc"})
    EXPECT_FALSE(parse_versions(text)) << text;
}

}  // namespace
}  // namespace opfuse::match
