// One test for each row of docs/legality.md that the graph decides: a graph that is refused for
// that reason, and a twin that differs in nothing else and passes.

#include "opfuse/match/legality.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include <fmt/format.h>

#include "opfuse/match/test_graphs.h"

namespace opfuse::match {
namespace {

using testing::builtin_rules;
using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::parse;
using testing::rules_from;
using ::testing::SizeIs;

// The first match, or the near miss where the values differ, is refused for `row`.
void expect_refused(std::string_view text, int row, const Rulebook& rules = builtin_rules()) {
  MatchReport report = find_matches(parse(text), rules);
  if (report.matches.empty()) {
    ASSERT_THAT(report.near_misses, SizeIs(1)) << text;
    EXPECT_EQ(report.near_misses[0].refusal.row, row) << report.near_misses[0].refusal.reason;
    return;
  }
  EXPECT_THAT(report.matches[0].refusals, Contains(Field(&Refusal::row, row))) << text;
  for (const Refusal& refusal : report.matches[0].refusals) EXPECT_FALSE(refusal.reason.empty());
}

void expect_legal(std::string_view text, const Rulebook& rules = builtin_rules()) {
  MatchReport report = find_matches(parse(text), rules);
  ASSERT_THAT(report.matches, SizeIs(1)) << text;
  EXPECT_THAT(report.matches[0].refusals, IsEmpty())
      << "row " << (report.matches[0].refusals.empty() ? 0 : report.matches[0].refusals[0].row)
      << ": " << (report.matches[0].refusals.empty() ? "" : report.matches[0].refusals[0].reason);
}

// Nothing but what is true of every chain of the rule, where it has several results.
void expect_found(std::string_view text, const Rulebook& rules) {
  MatchReport report = find_matches(parse(text), rules);
  ASSERT_THAT(report.matches, SizeIs(1)) << text;
  for (const Refusal& refusal : report.matches[0].refusals)
    EXPECT_THAT(refusal.reason, HasSubstr("found, not replaced: "));
}

// x * sigmoid(x), with words after the values and after the calls.
std::string swish(std::string_view x = "f32[8]", std::string_view s = "f32[8]",
                  std::string_view y = "f32[8]", std::string_view on_s = "",
                  std::string_view on_y = "") {
  std::string text;
  text.append("%x: ")
      .append(x)
      .append("\n%s: ")
      .append(s)
      .append(" = aten.sigmoid(%x) ")
      .append(on_s);
  text.append("\n%y: ").append(y).append(" = aten.mul.Tensor(%x, %s) ").append(on_y).append("\n");
  return text;
}

TEST(Legality, Row1AnInnerValueHasASecondReader) {
  expect_refused(swish() + "%z: f32[8] = aten.exp(%s)\n", 1);
  expect_refused(swish() + "return %y, %s\n", 1);
  expect_legal(swish() + "%z: f32[8] = aten.exp(%x)\nreturn %y, %x\n");
}

TEST(Legality, Row2AnInnerValueHasAHookOrServesAnotherBackward) {
  expect_refused(swish("f32[8]", "f32[8] hooks"), 2);
  expect_refused(swish("f32[8]", "f32[8] escapes[hook]"), 2);
  expect_refused(swish("f32[8]", "f32[8] escapes[saved]"), 2);
  expect_refused(swish() + "%g: f32[8] = aten.exp(%s) {graph_task}\n", 2);
  expect_legal(swish("f32[8] hooks", "f32[8]", "f32[8] hooks"));
}

TEST(Legality, Row3AnInnerValueIsKeptByPython) {
  expect_refused(swish("f32[8]", "f32[8] escapes[python]"), 3);
  expect_refused(swish("f32[8]", "f32[8] escapes[step]"), 3);
  expect_legal(swish("f32[8] escapes[python]", "f32[8]", "f32[8] escapes[python]"));
}

TEST(Legality, Row4AModuleHookSeesAnInnerValue) {
  expect_refused(swish("f32[8]", "f32[8] escapes[module_hook]"), 4);
  expect_legal(swish("f32[8]", "f32[8]", "f32[8] escapes[module_hook]"));
}

TEST(Legality, Row5TheInputIsWrittenBetweenTwoReads) {
  expect_refused(
      "%x: f32[8]\n%s: f32[8] = aten.sigmoid(%x)\n%w: f32[8] = aten.add_.Tensor(%x, 1)\n"
      "%y: f32[8] = aten.mul.Tensor(%x, %s)\n",
      5);
  expect_legal(
      "%x: f32[8]\n%w: f32[8] = aten.add_.Tensor(%x, 1)\n%s: f32[8] = aten.sigmoid(%x)\n"
      "%y: f32[8] = aten.mul.Tensor(%x, %s)\n");
}

TEST(Legality, Row6TheInputIsWrittenThroughAView) {
  expect_refused(
      "%x: f32[2,8]\n%v: f32[8] = aten.select.int(%x, 0, 1)\n%s: f32[2,8] = aten.sigmoid(%x)\n"
      "%w: f32[8] = aten.add_.Tensor(%v, 1)\n%y: f32[2,8] = aten.mul.Tensor(%x, %s)\n",
      6);
  expect_legal(
      "%x: f32[2,8]\n%v: f32[8] = aten.select.int(%x, 0, 1)\n%s: f32[2,8] = aten.sigmoid(%x)\n"
      "%w: f32[8] = aten.add.Tensor(%v, 1)\n%y: f32[2,8] = aten.mul.Tensor(%x, %s)\n");
}

TEST(Legality, Row6AlsoWhenThePatternReadsTheInputOnce) {
  Rulebook rules = rules_from(
      "op f(x: T) -> T\n  composition\n    return tanh(exp(x))\n  target aten.silu(x)\n");
  std::string head =
      "%x: f32[2,8]\n%v: f32[8] = aten.select.int(%x, 0, 1)\n%e: f32[2,8] = aten.exp(%x)\n";
  std::string tail = "%y: f32[2,8] = aten.tanh(%e)\n";
  expect_refused(head + "%w: f32[8] = aten.add_.Tensor(%v, 1)\n" + tail, 6, rules);
  expect_refused(head + "%w: f32[2,8] = aten.add_.Tensor(%x, 1)\n" + tail, 5, rules);
  expect_legal(head + tail + "%w: f32[8] = aten.add_.Tensor(%v, 1)\n", rules);
}

TEST(Legality, Row7AnInnerValueIsWritten) {
  expect_refused(swish() + "%z: f32[8] = aten.mul_.Tensor(%s, 2)\n", 7);
  expect_refused(
      "%x: f32[8]\n%s: f32[8] = aten.sigmoid(%x)\n%y: f32[8] = aten.mul_.Tensor(%s, %x)\n", 7);
  expect_legal(swish() + "%z: f32[8] = aten.mul_.Tensor(%y, 2)\n");
}

TEST(Legality, Row8TheChainWritesItsInput) {
  expect_refused(
      "%x: f32[8]\n%s: f32[8] = aten.sigmoid(%x)\n%y: f32[8] = aten.mul_.Tensor(%x, %s)\n", 8);
  expect_legal(swish());
}

TEST(Legality, Row9TheResultSharesMemoryWithAnInput) {
  expect_refused(swish("f32[8]", "f32[8]", "f32[8] alias[%x]"), 9);
  expect_legal(swish("f32[8]", "f32[8]", "f32[8] fresh"));
}

constexpr std::string_view kForward =
    "%x: f32[8] requires_grad\n%g: f32[8]\n"
    "%s: f32[8] requires_grad = aten.sigmoid(%x) #7\n%y: f32[8] requires_grad = "
    "aten.mul.Tensor(%x, %s) #8\n";
constexpr std::string_view kBackward =
    "backward MulBackward0 #8 {\n  %a: f32[8] = aten.mul.Tensor(%g, %s)\n"
    "  %b: f32[8] = aten.mul.Tensor(%g, %x)\n}\n"
    "backward SigmoidBackward0 #7 {\n  %c: f32[8] = aten.sigmoid_backward(%b, %s)\n}\n";

std::string joined(std::string_view between) {
  return std::string(kForward) + std::string(between) + std::string(kBackward);
}

TEST(Legality, Row10TheInputIsWrittenBeforeItsBackward) {
  expect_refused(joined("%w: f32[8] = aten.add_.Tensor(%x, 1)\n"), 10);
  expect_legal(joined("%w: f32[8] = aten.add_.Tensor(%y, 1)\n"));
}

TEST(Legality, Row11ABarrierStandsBetweenTheOperators) {
  std::string head = "%x: f32[8]\n%z: f32[8]\n%s: f32[8] = aten.sigmoid(%x)\n";
  std::string tail = "%y: f32[8] = aten.mul.Tensor(%x, %s)\n";
  expect_refused(head + "%o: f32[8] = mine.unknown(%x)\n" + tail, 11);
  expect_legal(head + "%o: f32[8] = mine.unknown(%z)\n" + tail);
}

TEST(Legality, Row14IntegerMixedOrUnknownDtypes) {
  expect_refused(swish("i64[8]", "f32[8]", "f32[8]"), 14);
  expect_refused(swish("bf16[8]", "f32[8]", "f32[8]"), 14);
  expect_refused(swish("?[8]"), 14);
  expect_legal(swish("bf16[8]", "bf16[8]", "bf16[8]"));
}

TEST(Legality, Row14TheRulesOwnDtypes) {
  Rulebook rules = rules_from(
      "op f(x: T) -> T  where T in f32, f64\n  composition\n    return x * sigmoid(x)\n  target "
      "aten.silu(x)\n");
  expect_refused(swish("bf16[8]", "bf16[8]", "bf16[8]"), 14, rules);
  expect_legal(swish("f64[8]", "f64[8]", "f64[8]"), rules);
}

TEST(Legality, Row12RandomNumbersAreDrawnInside) {
  Rulebook rules = rules_from(
      "op f(x: T, p: float) -> T\n  composition\n    y, mask = dropout(x, p, True)\n"
      "    return y * sigmoid(x)\n  target mine.f(x, p)\n");
  std::string tail = "%s: f32[8] = aten.sigmoid(%x)\n%y: f32[8] = aten.mul.Tensor(%d, %s)\n";
  expect_refused(
      "%x: f32[8]\n%d: f32[8], %m: bool[8] = aten.native_dropout(%x, 0.1, True)\n" + tail, 12,
      rules);
  Rulebook given = rules_from(
      "op f(x: T, m: random T) -> T\n  composition\n    return x * m\n  target mine.f(x, m)\n");
  expect_found(
      "%x: f32[8]\n%e: f32[8]\n%m: f32[8] = aten.bernoulli_.float(%e, 0.9)\n"
      "%y: f32[8] = aten.mul.Tensor(%x, %m)\n",
      given);
}

TEST(Legality, Row13AValueThatIsNotRandom) {
  Rulebook rules = rules_from(
      "op f(x: T, m: random T) -> T\n  composition\n    return exp(x) * m\n"
      "  target mine.f(x, m)\n");
  MatchReport report = find_matches(parse("%x: f32[8]\n%m: f32[8]\n%e: f32[8] = aten.exp(%x)\n"
                                          "%y: f32[8] = aten.mul.Tensor(%e, %m)\n"),
                                    rules);
  EXPECT_THAT(report.matches, IsEmpty());
}

TEST(Legality, Row15InputsOfOneVariableAgreeInDtype) {
  Rulebook rules = rules_from(
      "op f(x: T, w: W[...], b: W[...]) -> T\n  composition\n    return exp(x * w + b)\n"
      "  target mine.f(x, w, b)\n");
  const auto text = [](std::string_view b) {
    return "%x: bf16[8]\n%w: f32[8]\n%b: " + std::string(b) +
           "[8]\n%p: bf16[8] = aten.mul.Tensor(%x, %w)\n"
           "%q: bf16[8] = aten.add.Tensor(%p, %b)\n%y: bf16[8] = aten.exp(%q)\n";
  };
  expect_refused(text("bf16"), 15, rules);
  expect_found(text("f32"), rules);
}

TEST(Legality, Row16ACastStandsInsideTheChain) {
  expect_refused(
      "%x: bf16[8]\n%f: f32[8] = aten._to_copy(%x, dtype=f32)\n%s: f32[8] = aten.sigmoid(%f)\n"
      "%y: f32[8] = aten.mul.Tensor(%x, %s)\n",
      16);
  expect_refused(
      "%x: bf16[8]\n%s: bf16[8] = aten.sigmoid(%x)\n%f: f32[8] = aten._to_copy(%s, dtype=f32)\n"
      "%y: f32[8] = aten.mul.Tensor(%x, %f)\n",
      16);
  expect_refused(swish("bf16[8]", "f32[8]", "bf16[8]"), 16);
  expect_legal(
      "%x: bf16[8]\n%f: f32[8] = aten._to_copy(%x, dtype=f32)\n%s: f32[8] = aten.sigmoid(%f)\n"
      "%y: f32[8] = aten.mul.Tensor(%f, %s)\n%o: bf16[8] = aten._to_copy(%y, dtype=bf16)\n");
}

TEST(Legality, Row17AutocastChangesInside) {
  expect_refused(swish("f32[8]", "f32[8]", "f32[8]", "{grad,autocast}", "{grad}"), 17);
  expect_legal(swish("f32[8]", "f32[8]", "f32[8]", "{grad,autocast}", "{grad,autocast}"));
}

TEST(Legality, Row18NoTargetHasAKernel) {
  Rulebook rules = rules_from(
      "op f(x: T) -> T\n  composition\n    return x * sigmoid(x)\n"
      "  target aten.silu(x) on cuda\n  target aten.silu(x) on cpu where T in f32\n");
  expect_refused(swish("f64[8]", "f64[8]", "f64[8]"), 18, rules);
  expect_refused(swish("f32[8] device[?]", "f32[8] device[?]", "f32[8] device[?]"), 18, rules);
  expect_legal(swish(), rules);
}

TEST(Legality, Row19AnInputIsBroadcastOrOfUnknownShape) {
  expect_refused(swish("f32[8]", "f32[8]", "f32[2,8]"), 19);
  expect_refused(swish("f32", "f32", "f32"), 19);
  expect_legal(swish("f32[2,8]", "f32[2,8]", "f32[2,8]"));
}

TEST(Legality, Row20TheResultHasAnotherLayout) {
  expect_refused(swish("f32[2,3,4,4] strides[48,1,12,3]", "f32[2,3,4,4]", "f32[2,3,4,4]"), 20);
  expect_refused(swish("f32[2,8] strides[?]", "f32[2,8]", "f32[2,8]"), 20);
  expect_legal(swish("f32[2,3,4,4] strides[48,1,12,3]", "f32[2,3,4,4] strides[48,1,12,3]",
                     "f32[2,3,4,4] strides[48,1,12,3]"));
  expect_legal(swish("f32[4,3] strides[8,1]", "f32[4,3]", "f32[4,3]"));
}

TEST(Legality, Row22TwoInputsShareTheirMemory) {
  Rulebook rules = rules_from(
      "op f(a: T, b: T) -> T\n  composition\n    return sigmoid(a) * exp(b)\n  target "
      "aten.mul.Tensor(a, b)\n");
  std::string tail =
      "%s: f32[8] = aten.sigmoid(%a)\n%e: f32[8] = aten.exp(%b)\n%y: f32[8] = aten.mul.Tensor(%s, "
      "%e)\n";
  expect_refused("%a: f32[8]\n%b: f32[8] alias[%a] offset[4]\n" + tail, 22, rules);
  expect_found("%a: f32[8]\n%b: f32[8]\n" + tail, rules);
}

TEST(Legality, Row23ADetachStandsInsideTheChain) {
  std::string_view tail =
      "%s: f32[8] requires_grad = aten.sigmoid(%x)\n%y: f32[8] requires_grad = aten.mul.Tensor(%d, "
      "%s)\n";
  expect_refused("%x: f32[8] requires_grad\n%d: f32[8] = aten.detach(%x)\n" + std::string(tail),
                 23);
  expect_refused(swish("f32[8] requires_grad", "f32[8]", "f32[8] requires_grad"), 23);
  expect_legal(
      "%x: f32[8] requires_grad\n%d: f32[8] = aten.detach(%x)\n%s: f32[8] = aten.sigmoid(%d)\n"
      "%y: f32[8] = aten.mul.Tensor(%d, %s)\n");
  expect_legal(swish("f32[8] requires_grad", "f32[8] requires_grad", "f32[8] requires_grad"));
}

TEST(Legality, Row23OfSeveralInputsSomeMayNeedNoGradient) {
  const auto sum = [](std::string_view product, std::string_view result) {
    return fmt::format(
        "%a: f32[8] requires_grad\n%b: f32[8]{}\n%c: f32[8]\n"
        "%m: f32[8] = aten.mul.Tensor(%b, %c)\n%y: f32[8]{} = aten.add.Tensor(%a, %m)\n",
        product, result);
  };
  expect_legal(sum("", " requires_grad"));
  expect_refused(sum(" requires_grad", " requires_grad"), 23);
  expect_refused(sum("", ""), 23);
}

TEST(Legality, ADetachedCopyThatNobodyReadsIsPartOfTheChain) {
  MatchReport report = find_matches(parse("%x: f32[8] requires_grad\n%s: f32[8] requires_grad = "
                                          "aten.sigmoid(%x)\n%d: f32[8] = aten.detach(%s)\n"
                                          "%y: f32[8] requires_grad = aten.mul.Tensor(%x, %s)\n"),
                                    builtin_rules());
  ASSERT_THAT(report.matches, SizeIs(1));
  EXPECT_THAT(report.matches[0].refusals, IsEmpty());
  EXPECT_THAT(report.matches[0].nodes, SizeIs(3));
}

TEST(Legality, Row24GradModeChangesInside) {
  expect_refused(swish("f32[8]", "f32[8]", "f32[8]", "{}", "{grad}"), 24);
  expect_refused(swish("f32[8]", "f32[8]", "f32[8]", "{inference}", "{}"), 24);
  expect_legal(swish("f32[8]", "f32[8]", "f32[8]", "{}", "{}"));
}

TEST(Legality, Row25TheChainCrossesACustomFunction) {
  expect_refused(
      "%x: f32[8]\nfunction F #3 {\n  %s: f32[8] = aten.sigmoid(%x) {grad}\n}\n"
      "%y: f32[8] = aten.mul.Tensor(%x, %s)\n",
      25);
  expect_legal(
      "%x: f32[8]\nfunction F #3 {\n  %s: f32[8] = aten.sigmoid(%x)\n"
      "  %y: f32[8] = aten.mul.Tensor(%x, %s)\n}\n");
}

std::string twice(std::string_view flags, std::string_view forward) {
  std::string text(forward);
  return text + "backward MulBackward0 #8 {\n  %a: f32[8] = aten.mul.Tensor(%g, %s) " +
         std::string(flags) +
         "\n  %b: f32[8] = aten.mul.Tensor(%g, %x)\n}\n"
         "backward SigmoidBackward0 #7 {\n  %c: f32[8] = aten.sigmoid_backward(%b, %s)\n}\n";
}

TEST(Legality, Row27ASecondDerivativeIsTaken) {
  expect_refused(twice("{graph_task,create_graph}", kForward), 27);
  expect_legal(twice("", kForward));
}

constexpr std::string_view kFunction =
    "%x: f32[8] requires_grad\n%g: f32[8]\nfunction Swish #9 {\n  %s: f32[8] = aten.sigmoid(%x)\n"
    "  %y: f32[8] requires_grad = aten.mul.Tensor(%x, %s)\n}\n";

TEST(Legality, Row46ASecondDerivativeOfACustomFunctionIsTaken) {
  std::string head =
      std::string(kFunction) + "backward SwishBackward #9 {\n  %t: f32[8] = aten.sigmoid(%x) ";
  std::string tail = "\n  %a: f32[8] = aten.mul.Tensor(%g, %t)\n}\n";
  expect_refused(head + "{graph_task,create_graph}" + tail, 46);
  expect_legal(head + tail);
}

TEST(Legality, Row32ARecomputationWithoutItsForward) {
  std::string_view x = "%x: f32[8]\n";
  std::string forward =
      "%s: f32[8] = aten.sigmoid(%x) @ a.py:3:4-9\n%y: f32[8] = aten.mul.Tensor(%x, %s) @ "
      "a.py:3:0-9\n";
  std::string again =
      "%t: f32[8] = aten.sigmoid(%x) {grad,recompute} @ a.py:3:4-9\n"
      "%z: f32[8] = aten.mul.Tensor(%x, %t) {grad,recompute} @ a.py:3:0-9\n";
  expect_refused(std::string(x) + again, 32);
  MatchReport both = find_matches(parse(std::string(x) + forward + again), builtin_rules());
  ASSERT_THAT(both.matches, SizeIs(2));
  for (const Match& match : both.matches) EXPECT_THAT(match.refusals, IsEmpty());
}

TEST(Legality, Row34TensorsThatAreNotPlain) {
  expect_refused(swish("f32[8] subclass"), 34);
  expect_refused(swish("f32[8] conj"), 34);
  expect_refused(swish("c64[8]", "c64[8]", "c64[8]"), 34);
  expect_refused(swish("f32[8]", "f32[8]", "f32[8]", "{grad,opaque_arguments}"), 34);
  expect_refused(swish("f32[8]", "f32[8]", "f32[8]", "opaque"), 34);
  expect_legal(swish("f32[8] parameter leaf"));
}

TEST(Legality, Row35AnotherThreadOrDevice) {
  expect_refused(swish("f32[8]", "f32[8]", "f32[8]", "thread[1]", ""), 35);
  expect_refused(swish("f32[8]", "f32[8]", "f32[8] cuda"), 35);
  expect_legal(swish("f32[8] cuda", "f32[8] cuda", "f32[8] cuda", "thread[1]", "thread[1]"));
}

TEST(Legality, Row35AnotherStream) {
  const std::string aside = "{grad,side_stream}";
  expect_refused(swish("f32[8] cuda", "f32[8] cuda", "f32[8] cuda", "{grad}", aside), 35);
  expect_refused(swish("f32[8] cuda", "f32[8] cuda", "f32[8] cuda", aside, aside), 35);
  expect_legal(swish("f32[8] cuda", "f32[8] cuda", "f32[8] cuda", "{grad}", "{grad}"));
}

TEST(Legality, Row39AModeIsActive) {
  expect_refused(swish("f32[8]", "f32[8]", "f32[8]", "{grad,python_mode}", "{grad,python_mode}"),
                 39);
  expect_legal(swish("f32[8]", "f32[8]", "f32[8]", "{grad}", "{grad}"));
}

TEST(Legality, Row39AHandlerIsSeenInTheFrames) {
  auto at = [](std::string_view frames) {
    return std::string("@ a.py:9:4-9 (Mode.").append(frames).append(") < a.py:3:4-9 (f)");
  };
  std::string handled = at("__torch_function__"), called = at("forward");
  expect_refused(swish("f32[8]", "f32[8]", "f32[8]", handled, called), 39);
  expect_refused(swish("f32[8]", "f32[8]", "f32[8]", called, at("__torch_dispatch__")), 39);
  expect_legal(swish("f32[8]", "f32[8]", "f32[8]", called, called));
  std::string device = "@ torch/utils/_device.py:9:4-9 (DeviceContext.__torch_function__)";
  expect_legal(swish("f32[8]", "f32[8]", "f32[8]", device, device));
  std::string subclass = "@ torch/_tensor.py:1700:4-9 (Tensor.__torch_function__) < a.py:3:4-9 (f)";
  expect_refused(swish("f32[8]", "f32[8]", "f32[8]", subclass, subclass), 34);
}

TEST(Legality, WhatSurroundsTheChainIsNamedFirst) {
  std::string text =
      swish("f32[8]", "f32[8]", "f32[8]", "{grad,python_mode}", "{grad,python_mode}") +
      "%z: f32[8] = aten.exp(%s)\n";
  MatchReport report = find_matches(parse(text), builtin_rules());
  ASSERT_THAT(report.matches, SizeIs(1));
  ASSERT_THAT(report.matches[0].refusals, SizeIs(2));
  EXPECT_EQ(report.matches[0].refusals[0].row, 39);
  EXPECT_EQ(report.matches[0].refusals[1].row, 1);
}

TEST(Legality, Row32ACheckpointSumsTheGradientInItsOwnBackward) {
  auto step = [](std::string_view flags, std::string_view sum, std::string_view end) {
    return std::string("%x: f32[8] requires_grad\n%g: f32[8]\n%s: f32[8] requires_grad = ")
        .append("aten.sigmoid(%x) #7 ")
        .append(flags)
        .append("\n%y: f32[8] requires_grad = aten.mul.Tensor(%x, %s) #8 ")
        .append(flags)
        .append(
            "\nbackward MulBackward0 #8 {\n  %a: f32[8] = aten.mul.Tensor(%g, %s)\n"
            "  %b: f32[8] = aten.mul.Tensor(%g, %x)\n}\nbackward SigmoidBackward0 #7 {\n"
            "  %c: f32[8] = aten.sigmoid_backward(%b, %s)\n}\n")
        .append(sum)
        .append("%d: f32[8] = aten.add.Tensor(%a, %c) {graph_task}\n")
        .append(end);
  };
  std::string_view inside = "backward CheckpointFunctionBackward #3 {\n  ";
  expect_refused(step("{grad,recompute}", inside, "}\n"), 32);
  expect_refused(step("{grad}", inside, "}\n"), 27);
  expect_legal(step("{grad}", "", ""));
}

TEST(Legality, Row40SavedTensorHooksAreActive) {
  expect_refused(
      swish("f32[8]", "f32[8]", "f32[8]", "{grad,saved_tensor_hooks}", "{grad,saved_tensor_hooks}"),
      40);
  expect_legal(swish("f32[8]", "f32[8]", "f32[8]", "{grad}", "{grad}"));
}

TEST(Legality, Row41TheResultsAutogradNodeHasAHook) {
  expect_refused(swish("f32[8]", "f32[8]", "f32[8] escapes[hook]"), 41);
  expect_legal(swish("f32[8]", "f32[8]", "f32[8] hooks"));
}

TEST(Legality, Row42MemoryIsExported) {
  expect_refused(swish("f32[8] exported"), 42);
  expect_refused(swish("f32[8]", "f32[8]", "f32[8] escapes[export]"), 42);
  expect_refused(swish("f32[8] opaque_writes"), 42);
  expect_legal(swish("f32[8] \"param:w\"") + "%z: f32[8] exported = aten.exp(%y)\n");
}

TEST(Legality, AChainThatSharesAnOperatorWithAnotherOneIsRefused) {
  MatchReport report =
      find_matches(parse(swish() + "%z: f32[8] = aten.mul.Tensor(%s, %x)\n"), builtin_rules());
  ASSERT_THAT(report.matches, SizeIs(2));
  for (const Match& match : report.matches)
    EXPECT_THAT(match.refusals, Contains(Field(&Refusal::row, 1)));
  EXPECT_THAT(report.matches[1].refusals, Contains(Field(&Refusal::row, 0)));
}

// The names of all tests of this program, as "Suite.Name".
std::set<std::string> test_names() {
  std::set<std::string> names;
  const ::testing::UnitTest& unit = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < unit.total_test_suite_count(); ++i) {
    const ::testing::TestSuite& suite = *unit.GetTestSuite(i);
    for (int k = 0; k < suite.total_test_count(); ++k)
      names.insert(std::string(suite.name()) + "." + suite.GetTestInfo(k)->name());
  }
  return names;
}

TEST(LegalityPage, HasEveryRowInOrderAndNamesTestsThatExist) {
  std::ifstream file(std::string(OPFUSE_SOURCE_DIR) + "/docs/legality.md");
  std::set<std::string> names = test_names();
  int row = 0;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("| ") || !std::isdigit(static_cast<unsigned char>(line[2]))) continue;
    EXPECT_EQ(std::stoi(line.substr(2)), ++row);
    std::string test = line.substr(line.rfind("| ", line.size() - 3) + 2);
    test.erase(std::min(test.find(' '), test.size()));
    if (test.empty() || test == "|") continue;
    EXPECT_THAT(names, Contains(test)) << line;
  }
  EXPECT_EQ(row, 46);
}

}  // namespace
}  // namespace opfuse::match
