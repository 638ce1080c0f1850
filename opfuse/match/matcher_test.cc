#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "opfuse/match/test_graphs.h"

namespace opfuse::match {
namespace {

using graph::Graph;
using testing::builtin_rules;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::parse;
using ::testing::SizeIs;

// Without the other rules, whose own finds would explain a place better.
const Rulebook& silu_alone() {
  static const Rulebook book = {{*builtin_rules().find("silu")}};
  return book;
}

MatchReport find(std::string_view text) { return find_matches(parse(text), silu_alone()); }

// The chain is found, legal, and its class is `equivalence`.
void expect_silu(std::string_view text, Equivalence equivalence = Equivalence::kE1) {
  MatchReport report = find(text);
  ASSERT_THAT(report.matches, SizeIs(1)) << text;
  EXPECT_THAT(report.matches[0].refusals, IsEmpty())
      << (report.matches[0].refusals.empty() ? "" : report.matches[0].refusals[0].reason);
  EXPECT_EQ(report.matches[0].equivalence, equivalence);
  EXPECT_THAT(report.near_misses, IsEmpty());
}

// Nothing is found; the near miss at the place says why.
void expect_miss(std::string_view text, int row, std::string_view reason) {
  MatchReport report = find(text);
  EXPECT_THAT(report.matches, IsEmpty()) << text;
  ASSERT_THAT(report.near_misses, SizeIs(1)) << text;
  EXPECT_EQ(report.near_misses[0].refusal.row, row);
  EXPECT_THAT(report.near_misses[0].refusal.reason, HasSubstr(std::string(reason)));
}

TEST(Matcher, FindsSwish) {
  Graph g = parse(
      "%x: f32[8]\n"
      "%s: f32[8] = aten.sigmoid(%x)\n"
      "%y: f32[8] = aten.mul.Tensor(%x, %s)\n"
      "return %y\n");
  MatchReport report = find_matches(g, builtin_rules());
  ASSERT_THAT(report.matches, SizeIs(1));
  const Match& match = report.matches[0];
  EXPECT_EQ(match.rule->name, "silu");
  EXPECT_THAT(match.nodes, ElementsAre(0, 1));
  EXPECT_THAT(match.inputs, ElementsAre(g.nodes[0].inputs[0].values[0]));
  EXPECT_THAT(match.outputs, ElementsAre(g.nodes[1].outputs[0]));
  EXPECT_THAT(match.refusals, IsEmpty());
  EXPECT_EQ(match.equivalence, Equivalence::kE1);
}

TEST(Matcher, FindsSwishWithItsOperandsInEitherOrder) {
  expect_silu("%x: f32[8]\n%s: f32[8] = aten.sigmoid(%x)\n%y: f32[8] = aten.mul.Tensor(%s, %x)\n");
}

TEST(Matcher, FindsTheQuotient) {
  expect_silu(
      "%x: f32[8]\n%n: f32[8] = aten.neg(%x)\n%e: f32[8] = aten.exp(%n)\n"
      "%d: f32[8] = aten.add.Tensor(%e, 1)\n%y: f32[8] = aten.div.Tensor(%x, %d)\n");
}

TEST(Matcher, FindsTheProductWithAReciprocalAsPythonRecordsIt) {
  expect_silu(
      "%x: f32[8]\n%n: f32[8] = aten.neg(%x)\n%e: f32[8] = aten.exp(%n)\n"
      "%d: f32[8] = aten.add.Tensor(%e, 1)\n%r: f32[8] = aten.reciprocal(%d)\n"
      "%q: f32[8] = aten.mul.Tensor(%r, 1)\n%y: f32[8] = aten.mul.Tensor(%x, %q)\n");
}

TEST(Matcher, GivesTheTanhFormItsOwnClass) {
  expect_silu(
      "%x: f32[8]\n%h: f32[8] = aten.mul.Tensor(%x, 0.5)\n%a: f32[8] = aten.div.Tensor(%x, 2)\n"
      "%t: f32[8] = aten.tanh(%a)\n%p: f32[8] = aten.add.Tensor(%t, 1.0)\n"
      "%y: f32[8] = aten.mul.Tensor(%h, %p)\n",
      Equivalence::kE2);
}

TEST(Matcher, FindsEachOfThreeChainsThatFollowOneAnother) {
  MatchReport report = find(
      "%x: f32[8]\n%s: f32[8] = aten.sigmoid(%x)\n%y: f32[8] = aten.mul.Tensor(%x, %s)\n"
      "%t: f32[8] = aten.sigmoid(%y)\n%z: f32[8] = aten.mul.Tensor(%y, %t)\n"
      "%u: f32[8] = aten.sigmoid(%z)\n%w: f32[8] = aten.mul.Tensor(%u, %z)\nreturn %w\n");
  ASSERT_THAT(report.matches, SizeIs(3));
  for (const Match& match : report.matches) EXPECT_THAT(match.refusals, IsEmpty());
}

TEST(Matcher, HalvesOfOneTensorAreAGate) {
  expect_miss(
      "%x: f32[8,4]\n%a: f32[8,2] strides[4,1], %b: f32[8,2] strides[4,1] offset[2] = "
      "aten.split.Tensor(%x, 2, dim=-1)\n"
      "%s: f32[8,2] = aten.sigmoid(%a)\n%y: f32[8,2] = aten.mul.Tensor(%s, %b)\n",
      0, "is a gate (GLU), not Swish: the multiplied value is another tensor");
}

TEST(Matcher, AnotherShapeIsASqueezeAndExcitationGate) {
  expect_miss(
      "%x: f32[2,8,4,4]\n%c: f32[2,8,1,1]\n%s: f32[2,8,1,1] = aten.sigmoid(%c)\n"
      "%y: f32[2,8,4,4] = aten.mul.Tensor(%s, %x)\n",
      0, "squeeze-and-excitation gate");
}

TEST(Matcher, NamesTheConstantOfQuickGelu) {
  expect_miss(
      "%x: f32[8]\n%a: f32[8] = aten.mul.Tensor(%x, 1.702)\n%s: f32[8] = aten.sigmoid(%a)\n"
      "%y: f32[8] = aten.mul.Tensor(%x, %s)\n",
      0, "is a QuickGELU: the constant 1.702");
}

TEST(Matcher, NamesAnotherSlope) {
  expect_miss(
      "%x: f32[8]\n%a: f32[8] = aten.mul.Tensor(%x, 1.7)\n%s: f32[8] = aten.sigmoid(%a)\n"
      "%y: f32[8] = aten.mul.Tensor(%x, %s)\n",
      0, "argument is multiplied by 1.7:");
  expect_miss(
      "%x: f32[8]\n%b: f32[1] parameter\n%a: f32[8] = aten.mul.Tensor(%b, %x)\n"
      "%s: f32[8] = aten.sigmoid(%a)\n%y: f32[8] = aten.mul.Tensor(%x, %s)\n",
      0, "argument is multiplied by a tensor:");
}

TEST(Matcher, AConstantMustAgreeToOneUlp) {
  expect_miss(
      "%x: f32[8]\n%n: f32[8] = aten.neg(%x)\n%e: f32[8] = aten.exp(%n)\n"
      "%d: f32[8] = aten.add.Tensor(%e, 1.5)\n%y: f32[8] = aten.div.Tensor(%x, %d)\n",
      29, "expected the constant 1, found 1.5");
  expect_silu(
      "%x: f32[8]\n%n: f32[8] = aten.neg(%x)\n%e: f32[8] = aten.exp(%n)\n"
      "%d: f32[8] = aten.add.Tensor(%e, 1.0000001)\n%y: f32[8] = aten.div.Tensor(%x, %d)\n");
  expect_miss(
      "%x: f64[8]\n%n: f64[8] = aten.neg(%x)\n%e: f64[8] = aten.exp(%n)\n"
      "%d: f64[8] = aten.add.Tensor(%e, 1.0000001)\n%y: f64[8] = aten.div.Tensor(%x, %d)\n",
      29, "expected the constant 1, found 1.0000001");
}

TEST(Matcher, AnAttributeThatIsNotItsDefaultIsNoMatch) {
  expect_miss(
      "%x: f32[8]\n%n: f32[8] = aten.neg(%x)\n%e: f32[8] = aten.exp(%n)\n"
      "%d: f32[8] = aten.add.Tensor(%e, 1, alpha=2)\n%y: f32[8] = aten.div.Tensor(%x, %d)\n",
      29, "argument 'alpha' of aten.add.Tensor is 2, expected 1");
}

TEST(Matcher, AnUnknownAttributeIsNoMatch) {
  expect_miss(
      "%x: f32[8]\n%n: f32[8] = aten.neg(%x)\n%e: f32[8] = aten.exp(%n)\n"
      "%d: f32[8] = aten.add.Tensor(%e, 1, alpha=?)\n%y: f32[8] = aten.div.Tensor(%x, %d)\n",
      29, "argument 'alpha' of aten.add.Tensor is not known");
}

TEST(Matcher, AClampInPlaceOfTheSigmoidIsHardswish) {
  std::string_view text =
      "%x: f32[8]\n%a: f32[8] = aten.add.Tensor(%x, 3)\n%c: f32[8] = aten.hardtanh(%a, 0, 6)\n"
      "%m: f32[8] = aten.mul.Tensor(%x, %c)\n%y: f32[8] = aten.div.Tensor(%m, 6)\n";
  expect_miss(text, 0, "is a Hardswish");
  MatchReport report = find_matches(parse(text), builtin_rules());
  ASSERT_THAT(report.matches, SizeIs(1));
  EXPECT_EQ(report.matches[0].rule->name, "hardswish");
  EXPECT_THAT(report.matches[0].refusals, IsEmpty());
  EXPECT_THAT(report.near_misses, IsEmpty());
}

TEST(Matcher, AGateAfterSwishIsTheGate) {
  MatchReport report =
      find_matches(parse("%b: f32[2,8,4,4]\n%c: f32[2,8,1,1]\n%s: f32[2,8,4,4] = aten.sigmoid(%b)\n"
                         "%x: f32[2,8,4,4] = aten.mul.Tensor(%b, %s)\n"
                         "%m: f32[2,8,1,1] = aten.mean.dim(%x, [2, 3], keepdim=True)\n"
                         "%g: f32[2,8,1,1] = aten.sigmoid(%c)\n"
                         "%y: f32[2,8,4,4] = aten.mul.Tensor(%g, %x)\n"),
                   builtin_rules());
  ASSERT_THAT(report.matches, SizeIs(2));
  EXPECT_EQ(report.matches[0].rule->name, "silu");
  EXPECT_EQ(report.matches[1].rule->name, "sigmoid_gate");
  for (const Match& match : report.matches) EXPECT_THAT(match.refusals, IsEmpty());
}

TEST(Matcher, SwishBeforeAProductIsReplacedAsSwish) {
  MatchReport report = find_matches(
      parse("%x: f32[8]\n%u: f32[8]\n%s: f32[8] = aten.sigmoid(%x)\n"
            "%y: f32[8] = aten.mul.Tensor(%x, %s)\n%z: f32[8] = aten.mul.Tensor(%y, %u)\n"),
      builtin_rules());
  ASSERT_THAT(report.matches, SizeIs(1));
  EXPECT_EQ(report.matches[0].rule->name, "silu");
  EXPECT_THAT(report.matches[0].refusals, IsEmpty());
}

TEST(Matcher, LeavesTheBackwardPassAlone) {
  MatchReport report = find(
      "%g: f32[8]\n%s: f32[8]\n"
      "backward MulBackward0 #8 {\n"
      "  %t: f32[8] = aten.sigmoid(%s)\n  %a: f32[8] = aten.mul.Tensor(%g, %t)\n"
      "}\n");
  EXPECT_THAT(report.matches, IsEmpty());
  EXPECT_THAT(report.near_misses, IsEmpty());
}

TEST(Matcher, AnAutogradNodeThatRepeatsAnOperatorIsNoSecondChain) {
  MatchReport report = find(
      "%x: f32[8]\n%n: f32[8] = aten.neg(%x)\n%e: f32[8] = aten.exp(%n) #5\n"
      "%d: f32[8] = aten.add.Tensor(%e, 1) #6\n%y: f32[8] = aten.div.Tensor(%x, %d) #7\n"
      "backward DivBackward0 #7 {\n  %q: f32[8] = aten.div.Tensor(%x, %d)\n}\n");
  ASSERT_THAT(report.matches, SizeIs(1));
  EXPECT_THAT(report.matches[0].nodes, ElementsAre(0, 1, 2, 3));
}

TEST(Matcher, NothingIsFoundInAnEmptyGraph) {
  MatchReport report = find("");
  EXPECT_THAT(report.matches, IsEmpty());
  EXPECT_THAT(report.near_misses, IsEmpty());
}

}  // namespace
}  // namespace opfuse::match
