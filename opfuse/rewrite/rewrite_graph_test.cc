#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "opfuse/graph/validate.h"
#include "opfuse/rewrite/test_case.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::rewrite {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A planned chain whose backward nodes are those that make `backward`.
struct Rewritten {
  Case c;
  graph::Graph graph;
  std::string text;

  Rewritten(std::string_view before, const std::vector<std::string>& backward,
            std::string_view grad, const std::vector<std::string>& contributions)
      : c(inline_facts(std::string(kInlineText)), before) {
    match::BackwardChain& chain = c.match().backward;
    for (const std::string& name : backward)
      chain.nodes.push_back(c.graph.values[c.value(name)].producer);
    if (!backward.empty()) chain.grad_output = c.value(grad);
    for (const std::string& name : contributions) chain.grad_inputs.push_back(c.value(name));
    Plan plan;
    Replacement replacement;
    replacement.site = 0;
    replacement.target = "aten.silu";
    plan.replacements = {replacement};
    graph = rewrite_graph(c.graph, c.report, c.sites, plan);
    const Status valid = graph::validate_graph(graph);
    EXPECT_TRUE(valid.ok()) << (valid.ok() ? "" : valid.error().message);
    text = graph::print_graph(graph);
  }
};

constexpr std::string_view kInlineStep =
    "%x: f32[4] requires_grad\n"
    "%a: f32[4] requires_grad = aten.neg(%x)\n"
    "%s: f32[4] requires_grad = aten.sigmoid(%x)\n"
    "%y: f32[4] requires_grad = aten.mul.Tensor(%x, %s)\n"
    "%z: f32[4] requires_grad = aten.exp(%y)\n"
    "%g: f32[4]\n"
    "backward ExpBackward0 #4 {\n"
    "  %gy: f32[4] = aten.mul.Tensor(%g, %z)\n"
    "}\n"
    "backward MulBackward0 #3 {\n"
    "  %c1: f32[4] = aten.mul.Tensor(%gy, %s)\n"
    "  %gs: f32[4] = aten.mul.Tensor(%gy, %x)\n"
    "}\n"
    "backward SigmoidBackward0 #2 {\n"
    "  %c2: f32[4] = aten.sigmoid_backward(%gs, %s)\n"
    "}\n";

TEST(RewriteGraph, MakesTheTargetStandWhereTheChainsLastOperatorStood) {
  Rewritten r(std::string(kInlineGraph), {}, "", {});
  EXPECT_EQ(r.graph.nodes.size(), 1u);
  EXPECT_EQ(r.graph.nodes[0].op, "aten.silu");
  EXPECT_EQ(r.graph.nodes[0].event, graph::kNone);
  EXPECT_EQ(r.graph.values.size(), 2u);
  EXPECT_THAT(r.text, HasSubstr("return %y"));
}

TEST(RewriteGraph, MakesTwoContributionsOne) {
  const std::string step = std::string(kInlineStep) +
                           "scope \"engine\" {\n"
                           "  %sum: f32[4] = aten.add.Tensor(%c1, %c2) {graph_task}\n"
                           "}\n"
                           "%last: f32[4] = aten.neg(%sum)\nreturn %last\n";
  Rewritten r(step, {"c1", "gs", "c2"}, "gy", {"c1", "c2"});
  EXPECT_THAT(r.text, HasSubstr("aten.silu_backward("));
  EXPECT_THAT(r.text, HasSubstr("backward SiluBackward0"));
  EXPECT_THAT(r.text, Not(HasSubstr("aten.add.Tensor")));
  EXPECT_THAT(r.text, Not(HasSubstr("sigmoid")));
  const graph::Node& last = r.graph.nodes.back();
  ASSERT_EQ(last.op, "aten.neg");
  EXPECT_EQ(r.graph.nodes[r.graph.values[last.inputs[0].values[0]].producer].op,
            "aten.silu_backward");
}

TEST(RewriteGraph, KeepsTheContributionOfAnotherReader) {
  const std::string step = std::string(kInlineStep) +
                           "%other: f32[4] = aten.neg(%g)\n"
                           "scope \"engine\" {\n"
                           "  %t1: f32[4] = aten.add.Tensor(%other, %c1) {graph_task}\n"
                           "  %t2: f32[4] = aten.add.Tensor(%t1, %c2) {graph_task}\n"
                           "}\nreturn %t2\n";
  Rewritten r(step, {"c1", "gs", "c2"}, "gy", {"c1", "c2"});
  const graph::Node& sum = r.graph.nodes.back();
  ASSERT_EQ(sum.op, "aten.add.Tensor");
  const auto producer = [&](int i) {
    return r.graph.nodes[r.graph.values[sum.inputs[i].values[0]].producer].op;
  };
  EXPECT_EQ(producer(0), "aten.neg");
  EXPECT_EQ(producer(1), "aten.silu_backward");
}

TEST(RewriteGraph, KeepsAnAccumulationInPlace) {
  const std::string step = std::string(kInlineStep) +
                           "%other: f32[4] = aten.neg(%g)\n"
                           "scope \"engine\" {\n"
                           "  %t1: f32[4] = aten.add_.Tensor(%c1, %c2) {graph_task}\n"
                           "  %t2: f32[4] = aten.add_.Tensor(%t1, %other) {graph_task}\n"
                           "}\nreturn %t2\n";
  Rewritten r(step, {"c1", "gs", "c2"}, "gy", {"c1", "c2"});
  const graph::Node& sum = r.graph.nodes.back();
  ASSERT_EQ(sum.op, "aten.add_.Tensor");
  EXPECT_EQ(r.graph.nodes[r.graph.values[sum.inputs[0].values[0]].producer].op,
            "aten.silu_backward");
  EXPECT_EQ(r.graph.values[sum.written[0]].storage, r.graph.values[sum.writes[0]].storage);
}

TEST(RewriteGraph, DoesNotAddInPlaceIntoAGradientThatOthersRead) {
  // %gy is also the gradient of another reader: %t1 was a buffer of its own, %gy is not.
  const std::string step = std::string(kInlineStep) +
                           "scope \"engine\" {\n"
                           "  %t1: f32[4] = aten.add.Tensor(%gy, %c1) {graph_task}\n"
                           "  %t2: f32[4] = aten.add_.Tensor(%t1, %c2) {graph_task}\n"
                           "}\n"
                           "%v: f32[2,2] = aten.view(%t2, [2,2])\n"
                           "%w: f32[4] = aten.exp(%gy)\nreturn %v, %w\n";
  Rewritten r(step, {"c1", "gs", "c2"}, "gy", {"c1", "c2"});
  EXPECT_THAT(r.text, Not(HasSubstr("aten.add_")));
  const graph::Node& view = r.graph.nodes[r.graph.values[r.graph.results[0]].producer];
  const graph::Value& sum = r.graph.values[view.inputs[0].values[0]];
  EXPECT_EQ(r.graph.nodes[sum.producer].op, "aten.add.Tensor");
  EXPECT_EQ(r.graph.values[view.outputs[0]].storage, sum.storage);
  EXPECT_EQ(r.graph.values[view.outputs[0]].version, sum.version);
}

TEST(RewriteGraph, MovesTheViewsOfAGradientToItsNewBuffer) {
  const std::string step = std::string(kInlineStep) +
                           "scope \"engine\" {\n"
                           "  %sum: f32[4] = aten.add_.Tensor(%c1, %c2) {graph_task}\n"
                           "}\n"
                           "%v: f32[2,2] = aten.view(%sum, [2,2])\nreturn %v\n";
  Rewritten r(step, {"c1", "gs", "c2"}, "gy", {"c1", "c2"});
  const graph::Node& view = r.graph.nodes.back();
  ASSERT_EQ(view.op, "aten.view");
  const graph::Value& gradient = r.graph.values[view.inputs[0].values[0]];
  EXPECT_EQ(r.graph.nodes[gradient.producer].op, "aten.silu_backward");
  EXPECT_EQ(r.graph.values[view.outputs[0]].storage, gradient.storage);
  EXPECT_EQ(r.graph.values[view.outputs[0]].version, gradient.version);
}

TEST(RewriteGraph, TakesTheFunctionAway) {
  const std::string step =
      "%x: f32[4] requires_grad\n"
      "function Swish #1 {\n"
      "  %s: f32[4] = aten.sigmoid(%x) {} @ m.py:9:5-9 (Swish.forward) < m.py:5:15-29 (M.forward)\n"
      "  %y: f32[4] = aten.mul.Tensor(%x, %s) {} @ m.py:9:1-9 (Swish.forward) < m.py:5:15-29 "
      "(M.forward)\n"
      "}\n"
      "%g: f32[4]\n"
      "backward SwishBackward #1 {\n"
      "  %r: f32[4] = aten.sigmoid(%x)\n"
      "  %q: f32[4] = aten.mul.Tensor(%g, %r)\n"
      "}\nreturn %y, %q\n";
  Rewritten r(step, {"r", "q"}, "g", {"q"});
  ASSERT_EQ(r.graph.nodes.size(), 2u);
  const graph::Node& silu = r.graph.nodes[0];
  EXPECT_EQ(silu.scope, graph::kNone);
  EXPECT_TRUE(silu.region.flags & trace::kGradMode);
  ASSERT_EQ(silu.positions.size(), 1u);
  EXPECT_EQ(r.graph.positions[silu.positions[0]].function, "M.forward");
  EXPECT_TRUE(r.graph.values[silu.outputs[0]].meta.flags & trace::kRequiresGrad);
  EXPECT_EQ(r.graph.results[1], r.graph.nodes[1].outputs[0]);
  EXPECT_EQ(r.graph.scopes[r.graph.nodes[1].scope].name, "SiluBackward0");
}

}  // namespace
}  // namespace opfuse::rewrite
