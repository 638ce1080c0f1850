// Steps of optimizers: one operator after the other, over one parameter or over lists.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "opfuse/graph/canonical.h"
#include "opfuse/match/test_graphs.h"

namespace opfuse::match {
namespace {

using testing::builtin_rules;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::parse;
using testing::rules_in;
using ::testing::SizeIs;

struct Adam {
  std::string decay = "%p0: f32[8] = aten.mul_.Tensor(%p, 0.999)\n";
  std::string first = "%m0: f32[8] = aten.lerp_.Scalar(%m, %g, 0.1)\n";
  std::string second = "0.001";
  std::string seen = "%g, %g";
  std::string step = "-0.01";

  std::string text() const {
    return "%p: f32[8]\n%g: f32[8]\n%m: f32[8]\n%v: f32[8]\n" + decay + first +
           "%v0: f32[8] = aten.mul_.Tensor(%v, 0.999)\n"
           "%v1: f32[8] = aten.addcmul_(%v, " +
           seen + ", value=" + second +
           ")\n"
           "%r: f32[8] = aten.sqrt(%v)\n"
           "%d: f32[8] = aten.div.Tensor(%r, 0.0316)\n"
           "%e: f32[8] = aten.add_.Tensor(%d, 1e-08)\n"
           "%p1: f32[8] = aten.addcdiv_(%p, %m, %d, value=" +
           step + ")\n";
  }
};

TEST(Optimizers, AdamWIsOneChainWithTheFusedOperatorAsItsTarget) {
  const MatchReport report = find_matches(parse(Adam().text()), builtin_rules());
  ASSERT_THAT(report.matches, SizeIs(1));
  const Match& match = report.matches[0];
  EXPECT_EQ(match.rule->name, "adamw_step");
  EXPECT_THAT(match.nodes, SizeIs(8));
  EXPECT_EQ(match.rule->targets[0].op, "aten._fused_adamw");
  ASSERT_FALSE(match.refusals.empty());  // found, never replaced
  EXPECT_THAT(match.refusals.back().reason, HasSubstr("torch.optim.AdamW"));
}

TEST(Optimizers, AdamHasNoDecayAndTheOldAverageIsTheSame) {
  Adam adam;
  adam.decay = "";
  EXPECT_THAT(rules_in(adam.text()), ElementsAre("adam_step"));
  adam.first =
      "%m0: f32[8] = aten.mul_.Tensor(%m, 0.9)\n"
      "%m1: f32[8] = aten.add_.Tensor(%m, %g, alpha=0.1)\n";
  EXPECT_THAT(rules_in(adam.text()), ElementsAre("adam_step"));
}

TEST(Optimizers, WhatAdamWDoesNotDoIsNoStepOfIt) {
  Adam other_weight;
  other_weight.second = "0.01";  // not 1 - 0.999
  Adam other_square;
  other_square.seen = "%g, %m";
  Adam ascent;
  ascent.step = "0.01";
  for (const Adam& adam : {other_weight, other_square, ascent})
    EXPECT_THAT(rules_in(adam.text()), IsEmpty()) << adam.text();
}

constexpr std::string_view kTwoOfEach =
    "%p: f32[8]\n%q: f32[4]\n%g: f32[8]\n%h: f32[4]\n%m: f32[8]\n%n: f32[4]\n"
    "%v: f32[8]\n%w: f32[4]\n";

std::string foreach_adamw(std::string_view steps) {
  return std::string(kTwoOfEach) +
         "aten._foreach_mul_.Scalar([%p, %q], 0.999)\n"
         "aten._foreach_lerp_.Scalar([%m, %n], [%g, %h], 0.1)\n"
         "aten._foreach_mul_.Scalar([%v, %w], 0.999)\n"
         "aten._foreach_addcmul_.Scalar([%v, %w], [%g, %h], [%g, %h], 0.001)\n"
         "%r: f32[8], %s: f32[4] = aten._foreach_sqrt([%v, %w])\n"
         "aten._foreach_div_.ScalarList([%r, %s], [0.0316, 0.0316])\n"
         "aten._foreach_add_.Scalar([%r, %s], 1e-08)\n" +
         fmt::format("aten._foreach_addcdiv_.ScalarList([%p, %q], [%m, %n], [%r, %s], {})\n",
                     steps);
}

TEST(Optimizers, ListsAreOneChainForAllParameters) {
  const MatchReport report = find_matches(parse(foreach_adamw("[-0.01, -0.01]")), builtin_rules());
  ASSERT_THAT(report.matches, SizeIs(1));
  EXPECT_EQ(report.matches[0].rule->name, "adamw_step");
  EXPECT_THAT(report.matches[0].nodes, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(rules_in(foreach_adamw("[0.01, 0.01]")), IsEmpty());
}

TEST(Optimizers, AListThatIsShorterThanTheOthersIsLeftAlone) {
  const graph::CanonicalForm form = graph::canonicalize(parse(foreach_adamw("[-0.01]")));
  EXPECT_EQ(form.graph.nodes.back().op, "aten._foreach_addcdiv_.ScalarList");
  EXPECT_EQ(form.graph.nodes.size(), 2u * 7 + 1);
  EXPECT_THAT(rules_in(foreach_adamw("[-0.01]")), IsEmpty());
}

std::string sgd(std::string_view sum, std::string_view used, std::string_view step) {
  return fmt::format(
      "%p: f32[8]\n%g: f32[8]\n%b: f32[8]\n"
      "%b0: f32[8] = aten.mul_.Tensor(%b, 0.9)\n"
      "%b1: f32[8] = aten.add_.Tensor(%b, %g{})\n{}"
      "%p1: f32[8] = aten.add_.Tensor(%p, {}, alpha={})\n",
      sum, used.empty() ? "" : "%u: f32[8] = aten.add.Tensor(%g, %b, alpha=0.9)\n",
      used.empty() ? "%b" : used, step);
}

TEST(Optimizers, SgdWithMomentum) {
  EXPECT_THAT(rules_in(sgd("", "", "-0.1")), ElementsAre("sgd_step"));
  EXPECT_THAT(rules_in(sgd(", alpha=0.5", "", "-0.1")), ElementsAre("sgd_step"));
  EXPECT_THAT(rules_in(sgd("", "%u", "-0.1")), ElementsAre("sgd_nesterov_step"));
  EXPECT_THAT(rules_in(sgd("", "", "0.1")), IsEmpty());
  EXPECT_THAT(rules_in(std::string(kTwoOfEach) +
                       "aten._foreach_mul_.Scalar([%m, %n], 0.9)\n"
                       "aten._foreach_add_.List([%m, %n], [%g, %h], alpha=1)\n"
                       "aten._foreach_add_.List([%p, %q], [%m, %n], alpha=-0.1)\n"),
              ElementsAre("sgd_step"));
}

}  // namespace
}  // namespace opfuse::match
