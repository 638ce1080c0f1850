#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "opfuse/match/test_graphs.h"

namespace opfuse::match {
namespace {

using graph::Graph;
using graph::kNone;
using testing::builtin_rules;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::parse;
using ::testing::SizeIs;

graph::ValueId value(const Graph& g, std::string_view name) {
  for (size_t i = 0; i < g.values.size(); ++i)
    if (g.values[i].name == name) return static_cast<graph::ValueId>(i);
  ADD_FAILURE() << name;
  return kNone;
}

TEST(Backward, JoinsTheAutogradNodesOfAnInlineChain) {
  Graph g = parse(
      "%x: f32[8] requires_grad\n%g: f32[8]\n%h: f32[8]\n"
      "%s: f32[8] requires_grad = aten.sigmoid(%x) #7\n"
      "%y: f32[8] requires_grad = aten.mul.Tensor(%x, %s) #8\n"
      "backward ExpBackward0 #9 {\n  %e: f32[8] = aten.mul.Tensor(%g, %h)\n}\n"
      "backward MulBackward0 #8 {\n"
      "  %a: f32[8] = aten.mul.Tensor(%e, %s)\n  %b: f32[8] = aten.mul.Tensor(%e, %x)\n"
      "}\n"
      "backward SigmoidBackward0 #7 {\n  %c: f32[8] = aten.sigmoid_backward(%b, %s)\n}\n"
      "%d: f32[8] = aten.add.Tensor(%a, %c) {graph_task}\n");
  MatchReport report = find_matches(g, builtin_rules());
  ASSERT_THAT(report.matches, SizeIs(1));
  const Match& match = report.matches[0];
  EXPECT_THAT(match.refusals, IsEmpty());
  EXPECT_EQ(match.function_scope, kNone);
  EXPECT_THAT(match.backward.nodes, ElementsAre(3, 4, 5));
  EXPECT_EQ(match.backward.grad_output, value(g, "e"));
  EXPECT_THAT(match.backward.grad_inputs, ElementsAre(value(g, "a"), value(g, "c")));
  EXPECT_TRUE(match.backward.complete);
}

std::string quotient_backward(std::string_view entering) {
  return std::string(
             "%x: f32[8] requires_grad\n%g: f32[8]\n%q: f32[8]\n"
             "%n: f32[8] requires_grad = aten.neg(%x) #5\n"
             "%e: f32[8] requires_grad = aten.exp(%n) #6\n"
             "%p: f32[8] requires_grad = aten.add.Tensor(%e, 1) #7\n"
             "%y: f32[8] requires_grad = aten.div.Tensor(%x, %p) #8\n"
             "backward DivBackward0 #8 {\n  %a: f32[8] = aten.div.Tensor(%g, %p)\n"
             "  %b: f32[8] = aten.mul.Tensor(%g, %y)\n}\n"
             "backward ExpBackward0 #6 {\n  %c: f32[8] = aten.mul.Tensor(%")
      .append(entering)
      .append(
          ", %e)\n}\n"
          "backward NegBackward0 #5 {\n  %d: f32[8] = aten.neg(%c)\n}\n"
          "%t: f32[8] = aten.add.Tensor(%a, %d) {graph_task}\n");
}

TEST(Backward, ASumHandsItsGradientOnWithoutAnOperator) {
  MatchReport report = find_matches(parse(quotient_backward("b")), builtin_rules());
  ASSERT_THAT(report.matches, SizeIs(1));
  EXPECT_TRUE(report.matches[0].backward.complete);
  EXPECT_THAT(report.matches[0].backward.nodes, SizeIs(4));
  // Another gradient comes in where the sum's should: something is not accounted for.
  MatchReport other = find_matches(parse(quotient_backward("q")), builtin_rules());
  ASSERT_THAT(other.matches, SizeIs(1));
  EXPECT_FALSE(other.matches[0].backward.complete);
}

constexpr std::string_view kFunctionStep =
    "%i: f32[8] requires_grad\n%g: f32[8]\n"
    "function SwishImplementation #12 {\n"
    "  %s: f32[8] = aten.sigmoid(%i) @ utils.py:67:21-37 (SwishImplementation.forward) < "
    "torch/autograd/function.py:596 (apply) < utils.py:80:15-43 (MemoryEfficientSwish.forward)  "
    "2ms\n"
    "  %y: f32[8] requires_grad = aten.mul.Tensor(%i, %s) @ utils.py:67:17-37 "
    "(SwishImplementation.forward) < torch/autograd/function.py:596 (apply) < utils.py:80:15-43 "
    "(MemoryEfficientSwish.forward)  1ms\n"
    "}\n"
    "backward SwishImplementationBackward #12 {\n"
    "  %t: f32[8] = aten.sigmoid(%i)  1ms\n  %u: f32[8] = aten.rsub.Scalar(%t, 1)  1ms\n"
    "  %v: f32[8] = aten.mul.Tensor(%i, %u)  1ms\n  %w: f32[8] = aten.add.Tensor(%v, 1)  1ms\n"
    "  %m: f32[8] = aten.mul.Tensor(%t, %w)  1ms\n  %d: f32[8] = aten.mul.Tensor(%g, %m)  1ms\n"
    "}\n";

TEST(Backward, JoinsACustomFunctionBySequence) {
  Graph g = parse(kFunctionStep);
  MatchReport report = find_matches(g, builtin_rules());
  ASSERT_THAT(report.matches, SizeIs(1));
  const Match& match = report.matches[0];
  EXPECT_THAT(match.refusals, IsEmpty());
  ASSERT_NE(match.function_scope, kNone);
  EXPECT_EQ(g.scopes[match.function_scope].name, "SwishImplementation");
  EXPECT_THAT(match.backward.nodes, ElementsAre(2, 3, 4, 5, 6, 7));
  EXPECT_EQ(match.backward.grad_output, value(g, "g"));
  EXPECT_THAT(match.backward.grad_inputs, ElementsAre(value(g, "d")));
  EXPECT_TRUE(match.backward.complete);
}

TEST(Backward, AFunctionWithFurtherOperatorsIsNotAChain) {
  MatchReport report = find_matches(
      parse("%i: f32[8]\nfunction F #12 {\n  %s: f32[8] = aten.sigmoid(%i)\n"
            "  %y: f32[8] = aten.mul.Tensor(%i, %s)\n  %z: f32[8] = aten.mul.Tensor(%y, 2)\n}\n"),
      builtin_rules());
  ASSERT_THAT(report.matches, SizeIs(1));
  EXPECT_EQ(report.matches[0].function_scope, kNone);
  EXPECT_THAT(report.matches[0].backward.nodes, IsEmpty());
}

TEST(Backward, TwoCotangentsAreNotComplete) {
  MatchReport report = find_matches(
      parse(
          "%i: f32[8]\n%g: f32[8]\n%h: f32[8]\nfunction F #12 {\n  %s: f32[8] = aten.sigmoid(%i)\n"
          "  %y: f32[8] = aten.mul.Tensor(%i, %s)\n}\n"
          "backward FBackward #12 {\n  %a: f32[8] = aten.mul.Tensor(%g, %i)\n}\n"
          "backward FBackward #12 {\n  %b: f32[8] = aten.mul.Tensor(%h, %i)\n}\n"),
      builtin_rules());
  ASSERT_THAT(report.matches, SizeIs(1));
  EXPECT_THAT(report.matches[0].backward.nodes, SizeIs(2));
  EXPECT_FALSE(report.matches[0].backward.complete);
}

TEST(Sites, CallsOfOneExpressionAreOneSite) {
  std::string text = "%x: f32[8]\n";
  for (int call = 0; call < 3; ++call) {
    std::string n = std::to_string(call), caller = " < m.py:" + std::to_string(10 + call) + "\n";
    text += "%s" + n + ": f32[8] = aten.sigmoid(%x) @ a.py:3:4-9" + caller;
    text += "%y" + n + ": f32[8] = aten.mul.Tensor(%x, %s" + n + ") @ a.py:3:0-9" + caller;
  }
  text +=
      "%s9: f32[8] = aten.sigmoid(%x) @ a.py:5:4-9\n%y9: f32[8] = aten.mul.Tensor(%x, %s9) @ "
      "a.py:5:0-9\n";
  Graph g = parse(text);
  std::vector<Site> sites = group_sites(g, find_matches(g, builtin_rules()));
  ASSERT_THAT(sites, SizeIs(2));
  EXPECT_THAT(sites[0].matches, ElementsAre(0, 1, 2));
  EXPECT_THAT(sites[0].positions, SizeIs(1));  // the callers differ
  EXPECT_THAT(sites[1].matches, ElementsAre(3));
}

TEST(Sites, AFunctionIsTimedWithItsBackward) {
  Graph g = parse(kFunctionStep);
  std::vector<Site> sites = group_sites(g, find_matches(g, builtin_rules()));
  ASSERT_THAT(sites, SizeIs(1));
  EXPECT_EQ(sites[0].function_class, "SwishImplementation");
  EXPECT_EQ(sites[0].forward_ns, 3'000'000);
  EXPECT_EQ(sites[0].backward_ns, 6'000'000);
  ASSERT_THAT(sites[0].positions, SizeIs(3));
  EXPECT_EQ(g.positions[sites[0].positions[2]].line, 80);
}

TEST(Sites, CallersOfAFunctionAreSitesOfTheirOwn) {
  std::string text = "%i: f32[8]\n";
  for (int line : {80, 95, 80}) {
    std::string n = std::to_string(text.size());
    std::string stack =
        " < torch/autograd/function.py:596 (apply) < m.py:" + std::to_string(line) + "\n";
    text +=
        "function F #" + n + " {\n  %s" + n + ": f32[8] = aten.sigmoid(%i) @ f.py:3:4-9" + stack;
    text += "  %y" + n + ": f32[8] = aten.mul.Tensor(%i, %s" + n + ") @ f.py:3:0-9" + stack + "}\n";
  }
  Graph g = parse(text);
  std::vector<Site> sites = group_sites(g, find_matches(g, builtin_rules()));
  ASSERT_THAT(sites, SizeIs(2));
  EXPECT_THAT(sites[0].matches, ElementsAre(0, 2));
  EXPECT_THAT(sites[1].matches, ElementsAre(1));
}

TEST(Sites, AreToldInSentences) {
  Graph g = parse(
      "%x: f32[8]\n%z: f32[8]\n%s: f32[8] = aten.sigmoid(%x) @ lib/a.py:3:4-9\n"
      "%y: f32[8] = aten.mul.Tensor(%x, %s) @ lib/a.py:3:0-9\n"
      "%t: f32[8] = aten.sigmoid(%y) @ lib/b.py:7:4-9\n%u: f32[8] = aten.mul.Tensor(%z, %t) @ "
      "lib/b.py:7:0-9\n");
  MatchReport report = find_matches(g, builtin_rules());
  EXPECT_THAT(
      explain_rule(g, report, "silu"),
      ElementsAre(
          "lib/a.py:3: silu (composition): can be replaced as far as the graph shows",
          "lib/b.py:7: not silu: is a gate (GLU), not Swish: the multiplied value is another "
          "tensor than the sigmoid's argument"));
  EXPECT_THAT(explain_place(g, report, "a.py", 3), SizeIs(1));
  EXPECT_THAT(explain_place(g, report, "b.py", 7), SizeIs(1));
  EXPECT_THAT(explain_place(g, report, "b.py", 8), IsEmpty());
  EXPECT_THAT(explain_place(g, report, "ib/b.py", 7), IsEmpty());
}

}  // namespace
}  // namespace opfuse::match
