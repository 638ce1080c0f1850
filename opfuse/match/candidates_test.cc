#include "opfuse/match/candidates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "opfuse/match/test_graphs.h"

namespace opfuse::match {
namespace {

using testing::builtin_rules;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::parse;
using ::testing::SizeIs;

std::vector<CandidateChain> candidates(const graph::Graph& g, CandidateOptions options = {}) {
  return find_candidates(g, find_matches(g, builtin_rules()), options);
}

constexpr std::string_view kChain =
    "%x: f32[256]\n"
    "%a: f32[256] = aten.sin(%x) @ m.py:3 (f) 30us\n"
    "%b: f32[256] = aten.cos(%a) @ m.py:3 (f) 30us\n"
    "%c: f32[256] = aten.abs(%b) @ m.py:4 (f) 40us\n";

TEST(Candidates, AChainThatNoRuleKnowsIsToldWithItsBytesAndShare) {
  const graph::Graph g = parse(std::string(kChain) +
                               "%w: f32[256,8]\n%y: f32[1,8] = aten.mm(%c, %w) 300us\nreturn %y\n");
  const std::vector<CandidateChain> found = candidates(g);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].nodes, ElementsAre(0, 1, 2));
  EXPECT_EQ(found[0].operators, "sin, cos, abs");
  // a and b are written and read; c is written for the product.
  EXPECT_EQ(found[0].bytes_saved, 2 * 2 * 256 * 4);
  EXPECT_EQ(found[0].ns, 100'000);
  EXPECT_DOUBLE_EQ(found[0].share, 0.25);
  EXPECT_EQ(candidate_sentence(g, found[0]),
            "m.py:4: sin, cos, abs (1 call, 4.0 KiB written and read between, 25.0 % of the time)");
}

TEST(Candidates, WhatARuleKnowsIsNoCandidate) {
  EXPECT_THAT(candidates(parse("%x: f32[256]\n%s: f32[256] = aten.sigmoid(%x)\n"
                               "%y: f32[256] = aten.mul.Tensor(%x, %s)\nreturn %y\n")),
              IsEmpty());
}

TEST(Candidates, PlacesOfOneLineAreCountedTogether) {
  const graph::Graph g = parse(
      "%x: f32[8]\n%w: f32[8,8]\n"
      "%a: f32[8] = aten.sin(%x) @ m.py:3 (f)\n%b: f32[8] = aten.cos(%a) @ m.py:3 (f)\n"
      "%m: f32[8] = aten.mv(%w, %b)\n"
      "%c: f32[8] = aten.sin(%m) @ m.py:3 (f)\n%d: f32[8] = aten.cos(%c) @ m.py:3 (f)\n"
      "return %d\n");
  const std::vector<CandidateChain> found = candidates(g);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].calls, 2);
  EXPECT_EQ(found[0].share, -1);
}

TEST(Candidates, NoPathLeavesAChainAndComesBack) {
  // abs needs the product of what it would be fused with.
  const graph::Graph g = parse(
      "%x: f32[8,8]\n%a: f32[8,8] = aten.sin(%x)\n%m: f32[8,8] = aten.mm(%a, %a)\n"
      "%b: f32[8,8] = aten.cos(%a)\n%c: f32[8,8] = aten.sub.Tensor(%b, %m)\nreturn %c\n");
  const std::vector<CandidateChain> found = candidates(g);
  for (const CandidateChain& chain : found)
    EXPECT_FALSE(std::ranges::find(chain.nodes, 0) != chain.nodes.end() &&
                 std::ranges::find(chain.nodes, 3) != chain.nodes.end());
  EXPECT_THAT(found, SizeIs(1));
}

TEST(Candidates, AWriteInBetweenEndsAChain) {
  EXPECT_THAT(candidates(parse("%x: f32[8]\n%a: f32[8] = aten.sin(%x)\n"
                               "%w: f32[8] = aten.add_.Tensor(%x, 1)\n"
                               "%b: f32[8] = aten.sub.Tensor(%a, %x)\nreturn %b\n")),
              IsEmpty());
}

TEST(Candidates, AReductionAndWhatReadsItAreOneChain) {
  const std::vector<CandidateChain> found =
      candidates(parse("%x: f32[8,64]\n%a: f32[8,64] = aten.abs(%x)\n"
                       "%s: f32[8,1] = aten.sum.dim_IntList(%a, [-1], keepdim=True)\n"
                       "%y: f32[8,64] = aten.div.Tensor(%a, %s)\nreturn %y\n"));
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].operators, "abs, sum, div");
}

TEST(Candidates, RandomNumbersAndOtherRegionsAreLeftOut) {
  EXPECT_THAT(candidates(parse("%x: f32[8]\n%a: f32[8] = aten.sin(%x)\n"
                               "%b: f32[8] = aten.bernoulli(%a)\nreturn %b\n")),
              IsEmpty());
  EXPECT_THAT(candidates(parse("%x: f32[8]\n%a: f32[8] = aten.sin(%x) {grad}\n"
                               "%b: f32[8] = aten.cos(%a) {}\nreturn %b\n")),
              IsEmpty());
}

}  // namespace
}  // namespace opfuse::match
