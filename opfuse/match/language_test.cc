// What each part of the rule language matches, and what it does not.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "opfuse/match/test_graphs.h"

namespace opfuse::match {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;
using testing::parse;
using testing::rules_from;
using ::testing::SizeIs;

Rulebook rule(std::string_view signature, std::string_view body, std::string_view more = "") {
  return rules_from("op f" + std::string(signature) + "\n  composition\n" + std::string(body) +
                    std::string(more) + "  target mine.f(x)\n");
}

size_t count(std::string_view text, const Rulebook& rules) {
  return find_matches(parse(text), rules).matches.size();
}

Match only(std::string_view text, const Rulebook& rules) {
  MatchReport report = find_matches(parse(text), rules);
  EXPECT_THAT(report.matches, SizeIs(1)) << text;
  return report.matches.empty() ? Match{} : report.matches[0];
}

std::string why_not(std::string_view text, const Rulebook& rules) {
  MatchReport report = find_matches(parse(text), rules);
  EXPECT_THAT(report.matches, IsEmpty());
  return report.near_misses.empty() ? "nothing" : report.near_misses[0].refusal.reason;
}

TEST(Language, ANumberParameterIsBoundFromTheGraph) {
  Rulebook rules = rule("(x: T, a: float) -> T", "    return exp(x * a) + a\n");
  Match match = only(
      "%x: f32[8]\n%m: f32[8] = aten.mul.Tensor(%x, 0.3)\n%e: f32[8] = aten.exp(%m)\n"
      "%y: f32[8] = aten.add.Tensor(%e, 0.3)\n",
      rules);
  EXPECT_THAT(match.numbers[1], Optional(0.3));
  EXPECT_THAT(
      why_not("%x: f32[8]\n%m: f32[8] = aten.mul.Tensor(%x, 0.3)\n%e: f32[8] = aten.exp(%m)\n"
              "%y: f32[8] = aten.add.Tensor(%e, 0.4)\n",
              rules),
      HasSubstr("expected the number a, found 0."));
}

TEST(Language, ANumberIsSolvedFromWhatItStandsIn) {
  Rulebook rules = rule("(x: T, p: float) -> T", "    return exp(x / (1 - p)) - p\n");
  Match match = only(
      "%x: f32[8]\n%m: f32[8] = aten.div.Tensor(%x, 0.75)\n%e: f32[8] = aten.exp(%m)\n"
      "%y: f32[8] = aten.sub.Tensor(%e, 0.25)\n",
      rules);
  ASSERT_TRUE(match.numbers[1]);
  EXPECT_NEAR(*match.numbers[1], 0.25, 1e-12);
  EXPECT_EQ(count("%x: f32[8]\n%m: f32[8] = aten.div.Tensor(%x, 0.75)\n%e: f32[8] = aten.exp(%m)\n"
                  "%y: f32[8] = aten.sub.Tensor(%e, 0.3)\n",
                  rules),
            0u);
}

TEST(Language, AnArgumentBindsANumberAndDimensionsCountFromTheEnd) {
  Rulebook rules = rule("(x: T[...], dim: int) -> T[...]",
                        "    e = exp(x)\n    return e / sum(e, dim=[dim], keepdim)\n");
  const auto text = [](std::string_view dim) {
    return "%x: f32[4,8]\n%e: f32[4,8] = aten.exp(%x)\n%s: f32[4,1] = aten.sum.dim_IntList(%e, [" +
           std::string(dim) + "], keepdim=True)\n%y: f32[4,8] = aten.div.Tensor(%e, %s)\n";
  };
  EXPECT_THAT(only(text("-1"), rules).numbers[1], Optional(-1.0));
  EXPECT_THAT(only(text("1"), rules).numbers[1], Optional(-1.0));
  Rulebook last = rule("(x: T[...], dim: int) -> T[...] where dim == -1",
                       "    e = exp(x)\n    return e / sum(e, dim=[dim], keepdim)\n");
  EXPECT_EQ(count(text("1"), last), 1u);
  EXPECT_THAT(why_not("%x: f32[8,8]\n%e: f32[8,8] = aten.exp(%x)\n%s: f32[1,8] = "
                      "aten.sum.dim_IntList(%e, [0], keepdim=True)\n"
                      "%y: f32[8,8] = aten.div.Tensor(%e, %s)\n",
                      last),
              HasSubstr("dim == -1 does not hold"));
}

TEST(Language, AnOptionalParameterMayBeThereOrNot) {
  Rulebook rules = rule("(x: T[..., n], w: T[n]?) -> T[..., n]",
                        "    y = exp(x)\n    return y * w if w else y\n");
  std::string_view without = "%x: f32[4,8]\n%y: f32[4,8] = aten.exp(%x)\n";
  EXPECT_THAT(only(without, rules).inputs[1], graph::kNone);
  Match with =
      only(std::string(without) + "%w: f32[8]\n%z: f32[4,8] = aten.mul.Tensor(%w, %y)\n", rules);
  EXPECT_NE(with.inputs[1], graph::kNone);
  EXPECT_THAT(with.nodes, ElementsAre(0, 1));
}

TEST(Language, SizesAgreeWhereverTheyStand) {
  Rulebook rules = rule("(x: T[..., n], w: T[n]) -> T[..., n]", "    return exp(x) * w\n");
  const auto text = [](std::string_view w) {
    return "%x: f32[4,8]\n%w: f32[" + std::string(w) +
           "]\n%e: f32[4,8] = aten.exp(%x)\n%y: f32[4,8] = aten.mul.Tensor(%e, %w)\n";
  };
  Match match = only(text("8"), rules);
  EXPECT_THAT(match.numbers[2], Optional(8.0));
  EXPECT_THAT(why_not(text("1"), rules), HasSubstr("'w' has the shape [1]"));
  EXPECT_THAT(why_not(text("4,8"), rules), HasSubstr("'w' has the shape [4, 8]"));
  Match unknown = only(
      "%x: f32[4,8]\n%w: f32\n%e: f32[4,8] = aten.exp(%x)\n"
      "%y: f32[4,8] = aten.mul.Tensor(%e, %w)\n",
      rules);
  ASSERT_FALSE(unknown.refusals.empty());
  EXPECT_EQ(unknown.refusals[0].row, 19);
}

TEST(Language, ASizeIsANumber) {
  Rulebook rules = rule("(x: T[..., d]) -> T[..., d]", "    return exp(x / sqrt(d))\n");
  EXPECT_EQ(count("%x: f32[4,64]\n%m: f32[4,64] = aten.mul.Tensor(%x, 0.125)\n%y: f32[4,64] = "
                  "aten.exp(%m)\n",
                  rules),
            1u);
  EXPECT_EQ(count("%x: f32[4,32]\n%m: f32[4,32] = aten.mul.Tensor(%x, 0.125)\n%y: f32[4,32] = "
                  "aten.exp(%m)\n",
                  rules),
            0u);
}

TEST(Language, ACastIsNothingWhereTheDtypeIsThatAlready) {
  Rulebook rules = rule("(x: T) -> T", "    h = to(x, f32)\n    return to(exp(h), dtype(x))\n");
  EXPECT_EQ(count("%x: f32[8]\n%y: f32[8] = aten.exp(%x)\n", rules), 1u);
  std::string half =
      "%x: bf16[8]\n%h: f32[8] = aten._to_copy(%x, dtype=f32)\n%e: f32[8] = aten.exp(%h)\n";
  Match match = only(half + "%y: bf16[8] = aten._to_copy(%e, dtype=bf16)\n", rules);
  EXPECT_THAT(match.nodes, ElementsAre(0, 1, 2));
  // Without the cast back the chain is the one in f32.
  EXPECT_THAT(only(half, rules).nodes, ElementsAre(1));
  EXPECT_EQ(count("%x: bf16[8]\n%y: bf16[8] = aten.exp(%x)\n", rules), 0u);
}

TEST(Language, AnExplicitDtypeIsCompared) {
  Rulebook rules = rule("(x: T, m: bool[...]) -> T", "    return where(m, exp(x), x)\n");
  const auto text = [](std::string_view dtype) {
    return "%x: f32[8]\n%m: " + std::string(dtype) +
           "[8]\n%e: f32[8] = aten.exp(%x)\n%y: f32[8] = aten.where.self(%m, %e, %x)\n";
  };
  EXPECT_EQ(count(text("bool"), rules), 1u);
  EXPECT_THAT(why_not(text("i64"), rules), HasSubstr("'m' and the chain differ in dtype: i64"));
}

TEST(Language, SeveralResultsOfOneCall) {
  Rulebook rules = rule("(x: T[*], dim: int) -> T[*]",
                        "    a, b = chunk(x, 2, dim=dim)\n    return a * sigmoid(b)\n");
  const auto text = [](std::string_view first, std::string_view second) {
    return "%x: f32[8,4]\n%a: f32[8,2] strides[4,1], %b: f32[8,2] strides[4,1] offset[2] = "
           "aten.split.Tensor(%x, 2, dim=-1)\n%s: f32[8,2] = aten.sigmoid(%" +
           std::string(first) + ")\n%y: f32[8,2] = aten.mul.Tensor(%s, %" + std::string(second) +
           ")\n";
  };
  EXPECT_EQ(count(text("b", "a"), rules), 1u);
  EXPECT_EQ(count(text("a", "b"), rules), 0u);
  EXPECT_EQ(count(text("b", "b"), rules), 0u);
}

TEST(Language, PartsOfUnequalSizeAreNoChunk) {
  Rulebook rules =
      rule("(x: T[*]) -> T[*]", "    a, b = chunk(x, 2, dim=-1)\n    return a * sigmoid(b)\n");
  EXPECT_EQ(count("%x: f32[8,3]\n%a: f32[8,2] strides[3,1], %b: f32[8,1] strides[3,1] offset[2] = "
                  "aten.split.Tensor(%x, 2, dim=-1)\n%s: f32[8,1] = aten.sigmoid(%b)\n%y: f32[8,2] "
                  "= aten.mul.Tensor(%s, %a)\n",
                  rules),
            0u);
}

TEST(Language, ResultsThatDoNotNeedOneAnother) {
  Rulebook rules = rule("(x: T, c: T) -> (T, T)", "    return sigmoid(x) * c, tanh(x) + c\n");
  Match match = only(
      "%x: f32[8]\n%c: f32[8]\n%t: f32[8] = aten.tanh(%x)\n%b: f32[8] = aten.add.Tensor(%t, %c)\n"
      "%s: f32[8] = aten.sigmoid(%x)\n%a: f32[8] = aten.mul.Tensor(%s, %c)\nreturn %a, %b\n",
      rules);
  EXPECT_THAT(match.nodes, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(match.outputs, SizeIs(2));
  EXPECT_EQ(count("%x: f32[8]\n%c: f32[8]\n%z: f32[8]\n%t: f32[8] = aten.tanh(%z)\n%b: f32[8] = "
                  "aten.add.Tensor(%t, %c)\n%s: f32[8] = aten.sigmoid(%x)\n%a: f32[8] = "
                  "aten.mul.Tensor(%s, %c)\nreturn %a, %b\n",
                  rules),
            0u);
}

// A path that leaves the chain and comes back makes one operator in its place impossible.
TEST(Language, AChainThatIsLeftAndEnteredAgainIsRefused) {
  Rulebook rules = rule("(x: T, c: T) -> (T, T)", "    a = exp(x)\n    return a, a * c\n");
  Match match = only(
      "%x: f32[8]\n%a: f32[8] = aten.exp(%x)\n%c: f32[8] = aten.tanh(%a)\n"
      "%y: f32[8] = aten.mul.Tensor(%a, %c)\nreturn %a, %y\n",
      rules);
  ASSERT_FALSE(match.refusals.empty());
  EXPECT_EQ(match.refusals[0].row, 1);
  EXPECT_THAT(match.refusals[0].reason, HasSubstr("before the chain is complete"));
}

TEST(Language, ANeighbourMayStandForAParameter) {
  Rulebook rules = rule("(x: T[..., n], w: T[n]) -> T[..., n]", "    return exp(x) * w\n",
                        "  near \"weight plus one\" if w is w + 1\n    because \"one is added\"\n");
  EXPECT_THAT(why_not("%x: f32[4,8]\n%v: f32[4,8]\n%e: f32[4,8] = aten.exp(%x)\n%w: f32[4,8] = "
                      "aten.add.Tensor(%v, 1)\n%y: f32[4,8] = aten.mul.Tensor(%e, %w)\n",
                      rules),
              HasSubstr("is a weight plus one: one is added"));
}

TEST(Language, ReshapeIsAnyChangeOfShapeOrNone) {
  Rulebook rules = rule("(x: T[*]) -> T[*]", "    return exp(reshape(tanh(x)))\n");
  EXPECT_EQ(
      count("%x: f32[4,8]\n%t: f32[4,8] = aten.tanh(%x)\n%y: f32[4,8] = aten.exp(%t)\n", rules),
      1u);
  Match match = only(
      "%x: f32[4,8]\n%t: f32[4,8] = aten.tanh(%x)\n%v: f32[32] = aten.view(%t, [32])\n"
      "%u: f32[32,1] = aten.unsqueeze(%v, 1)\n%y: f32[32,1] = aten.exp(%u)\n",
      rules);
  EXPECT_THAT(match.nodes, ElementsAre(0, 1, 2, 3));
}

TEST(Language, ARuleForOneModeIsFoundButNotReplaced) {
  Rulebook rules = rule("(x: T) -> T", "    return tanh(exp(x))\n", "  requires eval\n");
  Match match = only("%x: f32[8]\n%e: f32[8] = aten.exp(%x)\n%y: f32[8] = aten.tanh(%e)\n", rules);
  ASSERT_THAT(match.refusals, SizeIs(1));
  EXPECT_THAT(match.refusals[0].reason, HasSubstr("it is for evaluation alone"));
}

TEST(Language, AProductMatchesInEveryOrder) {
  Rulebook rules = rule("(x: T) -> T", "    return 0.5 * x * exp(x)\n");
  std::string x = "%x: f32[8]\n%e: f32[8] = aten.exp(%x)\n";
  for (std::string_view text : {
           "%a: f32[8] = aten.mul.Tensor(%x, 0.5)\n%y: f32[8] = aten.mul.Tensor(%e, %a)\n",
           "%a: f32[8] = aten.mul.Tensor(%e, 0.5)\n%y: f32[8] = aten.mul.Tensor(%x, %a)\n",
           "%a: f32[8] = aten.mul.Tensor(%x, %e)\n%y: f32[8] = aten.div.Tensor(%a, 2)\n",
       }) {
    EXPECT_EQ(count(x + std::string(text), rules), 1u) << text;
  }
}

}  // namespace
}  // namespace opfuse::match
