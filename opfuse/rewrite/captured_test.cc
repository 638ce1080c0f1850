#include "opfuse/rewrite/captured.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "opfuse/graph/schema.h"
#include "opfuse/graph/text.h"
#include "opfuse/match/match.h"

namespace opfuse::rewrite {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The chain of `rule` in a graph; all rules are looked for.
CapturedChain chain_of(std::string_view text, std::string_view rule, const PlanOptions& options,
                       bool captured = true) {
  const graph::SchemaTable& schemas = graph::SchemaTable::builtin();
  const auto graph = graph::parse_graph(text, schemas);
  EXPECT_TRUE(graph.ok()) << (graph.ok() ? "" : graph.error().message);
  auto rulebook = match::load_rulebook({}, schemas);
  EXPECT_TRUE(rulebook.ok());
  if (!graph.ok() || !rulebook.ok()) return {};
  if (captured) *rulebook = captured_rulebook(std::move(*rulebook));
  const match::MatchReport report = match::find_matches(*graph, *rulebook);
  for (CapturedChain& chain : captured_chains(*graph, report, options))
    if (chain.rule == rule) return chain;
  ADD_FAILURE() << "no chain of " << rule;
  return {};
}

PlanOptions with_own_operators() {
  PlanOptions options;
  options.own_operators = true;
  return options;
}

constexpr std::string_view kDepthwise =
    "%x: f32[2,8,9,9] requires_grad\n"
    "%w: f32[8,1,3,3] requires_grad leaf parameter\n"
    "%p: f32[2,8,10,10] requires_grad = aten.constant_pad_nd(%x, [0, 1, 0, 1], 0.0)\n"
    "%y: f32[2,8,4,4] requires_grad = aten.convolution(%p, %w, None, [2, 2], [0, 0], [1, 1], "
    "False, [0, 0], 8) @ net.py:7:1-9 (f)\n"
    "return %y\n";

TEST(Captured, ACallTakesValuesAndArgumentsOfTheChain) {
  const CapturedChain chain = chain_of(kDepthwise, "depthwise_conv2d_padded", with_own_operators());
  EXPECT_EQ(chain.refusal, "");
  EXPECT_EQ(chain.python, "opfuse.chains.depthwise_conv2d");
  EXPECT_THAT(chain.arguments, ElementsAre("%x", "%w", "None", "[2, 2]", "[0, 0]", "[0, 1, 0, 1]"));
  EXPECT_THAT(chain.nodes, ElementsAre("p", "y"));
  EXPECT_THAT(chain.inputs, ElementsAre("x", "w", ""));
  EXPECT_THAT(chain.outputs, ElementsAre("y"));
  EXPECT_EQ(chain.place, "net.py:7");
}

TEST(Captured, AnOperatorThatTheChainLacksIsNone) {
  std::string text(kDepthwise);
  text.replace(text.find("%p: "), text.find("%y: ") - text.find("%p: "), "");
  text.replace(text.find("(%p, "), 4, "(%x,");
  const CapturedChain chain = chain_of(text, "depthwise_conv2d", with_own_operators());
  EXPECT_THAT(chain.arguments, ElementsAre("%x", "%w", "None", "[2, 2]", "[0, 0]", "None"));
}

TEST(Captured, ADilatedConvolutionIsNoChain) {
  std::string text(kDepthwise);
  text.replace(text.find("[1, 1]"), 6, "[2, 2]");
  const auto graph = graph::parse_graph(text, graph::SchemaTable::builtin());
  const auto rulebook = match::load_rulebook({}, graph::SchemaTable::builtin());
  ASSERT_TRUE(graph.ok() && rulebook.ok());
  EXPECT_TRUE(match::find_matches(*graph, *rulebook).matches.empty());
}

TEST(Captured, WithoutACallForItTheReasonIsTold) {
  PlanOptions options = with_own_operators();
  EXPECT_THAT(chain_of(kDepthwise, "depthwise_conv2d_padded", options, false).refusal,
              HasSubstr("has no Python name"));
  options.device = "cuda";
  EXPECT_THAT(chain_of(kDepthwise, "depthwise_conv2d_padded", options).refusal,
              HasSubstr("no target for cuda"));
}

TEST(Captured, SizesAreToldApart) {
  constexpr std::string_view kNorm =
      "%x: f32[4,8] requires_grad\n"
      "%s: f32[4,1] requires_grad = aten.mean.dim(%x, [-1], True)\n"
      "%c: f32[4,8] requires_grad = aten.sub.Tensor(%x, %s)\n"
      "%q: f32[4,8] requires_grad = aten.pow.Tensor_Scalar(%c, 2)\n"
      "%v: f32[4,1] requires_grad = aten.mean.dim(%q, [-1], True)\n"
      "%e: f32[4,1] requires_grad = aten.add.Tensor(%v, 1e-05)\n"
      "%r: f32[4,1] requires_grad = aten.rsqrt(%e)\n"
      "%y: f32[4,8] requires_grad = aten.mul.Tensor(%c, %r)\n"
      "return %y\n";
  const CapturedChain chain = chain_of(kNorm, "layer_norm", with_own_operators());
  EXPECT_EQ(chain.refusal, "");
  EXPECT_THAT(chain.arguments, ElementsAre("%x", "[8]", "None", "None", "1e-05"));
  EXPECT_TRUE(chain.uses_sizes);
}

}  // namespace
}  // namespace opfuse::rewrite
