// Which of several chains that share operators is told, and shapes of masks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "opfuse/match/test_graphs.h"

namespace opfuse::match {
namespace {

using testing::builtin_rules;
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::parse;
using testing::rules_in;
using ::testing::UnorderedElementsAre;

// What `more` says reads the weights; `escape` is a flag of them.
std::string attention(std::string_view escape, std::string_view more) {
  return fmt::format(
      "%q: f32[4,6,8]\n%k: f32[4,6,8]\n%v: f32[4,6,8]\n%m: f32[6,6]\n"
      "%t: f32[4,8,6] strides[48,1,8] = aten.transpose.int(%k, 1, 2)\n"
      "%s: f32[4,6,6] = aten.bmm(%q, %t)\n"
      "%c: f32[4,6,6] = aten.mul.Tensor(%s, 0.35)\n"
      "%a: f32[4,6,6] = aten.add.Tensor(%c, %m)\n"
      "%p: f32[4,6,6] = aten._softmax(%a, -1, False){}\n"
      "%y: f32[4,6,8] = aten.bmm(%p, %v)\n{}",
      escape, more);
}

TEST(Overlap, TheWholeAttentionIsToldBesideItsSoftmax) {
  EXPECT_THAT(rules_in(attention("", "return %y\n")), Contains("attention"));
}

TEST(Overlap, WeightsThatAreReturnedAreTheAttentionsReason) {
  const MatchReport report = find_matches(parse(attention("", "return %y, %p\n")), builtin_rules());
  ASSERT_THAT(rules_in(report), Contains("attention"));
  for (const Match& match : report.matches)
    if (match.rule->name == "attention") {
      EXPECT_EQ(match.refusals[0].row, 1);
    }
}

TEST(Overlap, AViewOfTheWholeInARunOfViewsBelongsToTheChain) {
  const MatchReport report =
      find_matches(parse("%q: f32[2,2,6,8]\n%k: f32[2,2,6,8]\n%v: f32[2,2,6,8]\n"
                         "%t: f32[2,2,8,6] strides[96,48,1,8] = aten.transpose.int(%k, 2, 3)\n"
                         "%a: f32[4,6,8] = aten.view(%q, [4, 6, 8])\n"
                         "%b: f32[4,8,6] strides[48,1,8] = aten.view(%t, [4, 8, 6])\n"
                         "%s: f32[4,6,6] = aten.bmm(%a, %b)\n"
                         "%u: f32[2,2,6,6] = aten._unsafe_view(%s, [2, 2, 6, 6])\n"
                         "%c: f32[2,2,6,6] = aten.mul.Tensor(%u, 0.35)\n"
                         "%p: f32[2,2,6,6] = aten._softmax(%c, -1, False)\n"
                         "%e: f32[2,2,6,6] = aten.expand(%p, [2, 2, 6, 6])\n"
                         "%w: f32[2,12,6] = aten.view(%e, [2, 12, 6])\n"
                         "%x: f32[2,12,6] = aten.expand(%w, [2, 12, 6])\n"
                         "%f: f32[4,6,6] = aten.view(%x, [4, 6, 6])\n"
                         "%g: f32[4,6,8] = aten.view(%v, [4, 6, 8])\n"
                         "%y: f32[4,6,8] = aten.bmm(%f, %g)\nreturn %y\n"),
                   builtin_rules());
  ASSERT_THAT(rules_in(report), ElementsAre("attention"));
  for (const Refusal& refusal : report.matches[0].refusals)
    EXPECT_EQ(refusal.row, 0) << refusal.reason;
}

TEST(Overlap, WhatIsReplacedComesBeforeALargerChainThatIsOnlyFound) {
  // batch_norm_silu is found only; the silu by hand inside of it is replaced.
  const MatchReport report = find_matches(
      parse("%x: f32[4,8,2,2]\n%w: f32[8]\n%b: f32[8]\n%rm: f32[8]\n%rv: f32[8]\n"
            "%n: f32[4,8,2,2], %sm: f32[8], %si: f32[8] = aten.native_batch_norm(%x, %w, %b, %rm, "
            "%rv, True, 0.1, 1e-05)\n"
            "%s: f32[4,8,2,2] = aten.sigmoid(%n)\n"
            "%y: f32[4,8,2,2] = aten.mul.Tensor(%n, %s)\nreturn %y\n"),
      builtin_rules());
  ASSERT_THAT(rules_in(report), UnorderedElementsAre("silu", "batch_norm_silu"));
  for (const Match& match : report.matches)
    EXPECT_EQ(match.refusals.empty(), match.rule->name == "silu");
}

// A mask of the shape `mask`, drawn and scaled, beside a sum that a norm reads.
std::string drop_path(std::string_view shape, std::string_view mask) {
  return fmt::format(
      "%x: f32[{0}]\n%r: f32[{0}]\n%e: f32[{1}] = aten.new_empty(%x, [{1}])\n"
      "%b: f32[{1}] = aten.bernoulli_.float(%e, 0.8)\n"
      "%d: f32[{1}] = aten.div_.Tensor(%e, 0.8)\n"
      "%m: f32[{0}] = aten.mul.Tensor(%x, %e)\n"
      "%y: f32[{0}] = aten.add.Tensor(%r, %m)\nreturn %y\n",
      shape, mask);
}

TEST(Overlap, TheMaskOfAPathIsOneNumberASample) {
  for (const auto& [shape, mask] :
       {std::pair("2,6", "2,1"), std::pair("2,6,8", "2,1,1"), std::pair("2,6,8,8", "2,1,1,1"),
        std::pair("2,6,8,8,8", "2,1,1,1,1")})
    EXPECT_THAT(rules_in(drop_path(shape, mask)), ElementsAre("drop_connect_add")) << shape;
  // Elementwise, a number a channel, and a shorter mask that is not of samples.
  for (const auto& [shape, mask] :
       {std::pair("2,6,8", "2,6,8"), std::pair("2,6,8", "2,6,1"), std::pair("2,2,2", "2,1")})
    for (const std::string& rule : rules_in(drop_path(shape, mask)))
      EXPECT_FALSE(rule.starts_with("drop_")) << rule << " " << mask;
}

}  // namespace
}  // namespace opfuse::match
