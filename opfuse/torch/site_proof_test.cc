#include "opfuse/torch/site_proof.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <set>

#include "opfuse/graph/text.h"
#include "opfuse/torch/recorded_step_test.h"
#include "opfuse/torch/site_proof_chain.h"

namespace opfuse::torch_bridge {
namespace {

using graph::Graph;
using graph::kNone;
using graph::NodeId;
using graph::ValueId;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

using Backward = std::function<at::Tensor(const at::Tensor& x, const at::Tensor& grad)>;
Backward* current_backward = nullptr;

// A Function as people write it: x * sigmoid(x) with a backward of their own.
struct HandSwish : torch::autograd::Function<HandSwish> {
  static Variable forward(AutogradContext* ctx, const Variable& x) {
    ctx->save_for_backward({x});
    return x * at::sigmoid(x);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {(*current_backward)(ctx->get_saved_variables()[0], grads[0])};
  }
};

at::Tensor published(const at::Tensor& x, const at::Tensor& grad) {
  const at::Tensor s = at::sigmoid(x);
  return grad * (s * (1 + x * at::rsub(s, 1)));
}

match::Rule silu_rule() {
  match::Rule rule;
  rule.name = "silu";
  rule.parameters = {{.name = "x", .type = "T"}};
  rule.dtypes = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};
  auto graph = graph::parse_graph(
      "%x: f32[4]\n%s: f32[4] = aten.sigmoid(%x)\n%y: f32[4] = aten.mul.Tensor(%x, %s)\nreturn "
      "%y\n",
      graph::SchemaTable::builtin());
  EXPECT_TRUE(graph.ok());
  rule.composition.name = "composition";
  rule.composition.graph = std::move(graph.value());
  rule.composition.line = 1;
  rule.targets.resize(1);
  rule.targets[0].op = "aten.silu";
  rule.targets[0].arguments = {"x"};
  return rule;
}

bool in_backward(const Graph& graph, NodeId id) {
  return graph::enclosing_scope(graph, id, graph::ScopeKind::kAutogradNode) != kNone;
}

std::string backward_name(const Graph& graph, NodeId id) {
  return graph.scopes[graph::enclosing_scope(graph, id, graph::ScopeKind::kAutogradNode)].name;
}

// What the matcher gives for the one site of these steps.
match::Match site_of(const Graph& graph, const match::Rule& rule,
                     const std::set<std::string>& nodes, bool custom) {
  match::Match match;
  match.rule = &rule;
  for (NodeId id = 0; id < static_cast<NodeId>(graph.nodes.size()); ++id) {
    const std::string& op = graph.nodes[id].op;
    if (in_backward(graph, id)) {
      for (const std::string& name : nodes)
        if (backward_name(graph, id).find(name) != std::string::npos && op != "aten.detach")
          match.backward.nodes.push_back(id);
    } else if (op == "aten.sigmoid" || (op == "aten.mul.Tensor" && match.nodes.size() == 1)) {
      match.nodes.push_back(id);
    }
  }
  EXPECT_EQ(match.nodes.size(), 2u);
  match.inputs = {graph.nodes[match.nodes[0]].inputs[0].values[0]};
  match.outputs = {graph.nodes[match.nodes[1]].outputs[0]};
  std::set<ValueId> made, read;
  for (NodeId id : match.nodes)
    made.insert(graph.nodes[id].outputs.begin(), graph.nodes[id].outputs.end());
  for (NodeId id : match.backward.nodes)
    for (const graph::Input& input : graph.nodes[id].inputs)
      read.insert(input.values.begin(), input.values.end());
  for (NodeId id : match.backward.nodes) {
    for (ValueId value : graph.nodes[id].outputs) {
      made.insert(value);
      if (!read.count(value)) match.backward.grad_inputs.push_back(value);
    }
  }
  for (ValueId value : read)
    if (value != kNone && !made.count(value) && value != match.inputs[0] &&
        !graph.values[value].meta.number)
      match.backward.grad_output = value;
  match.backward.complete = true;
  if (custom) match.function_scope = 0;  // these Functions are C++: any scope stands for theirs
  return match;
}

struct Site {
  RecordedStep step;
  match::Rule rule = silu_rule();
  match::Match match;

  verify::SiteVerdict prove(SiteProofOptions options = {}) const {
    SiteCalls calls{7, {&match}, &rule.targets[0]};
    return prove_site(*step.record, step.graph, calls, options);
  }
};

Site custom_site(Backward backward) {
  Site site;
  const at::Tensor leaf = at::randn({4, 3, 8, 8}).mul_(6).requires_grad_();
  site.step = record_step([&] {
    current_backward = &backward;
    const at::Tensor y = HandSwish::apply(leaf.mul(1.5));
    torch::autograd::backward({(y * y).sum()}, {});
    current_backward = nullptr;
  });
  site.match = site_of(site.step.graph, site.rule, {"HandSwish"}, true);
  return site;
}

TEST(SiteProof, AcceptsThePublishedFunction) {
  const Site site = custom_site(published);
  const verify::SiteVerdict verdict = site.prove();
  EXPECT_TRUE(verdict.accepted) << verdict.reason;
  EXPECT_EQ(verdict.site, 7);
  EXPECT_EQ(verdict.captured_calls, 1);
  EXPECT_GT(verdict.generated_cases, 40);
  ASSERT_EQ(verdict.captured.size(), 2u);
  EXPECT_EQ(verdict.captured[1].what, "d/dx");
  EXPECT_EQ(verdict.captured[1].elements, 768);
  EXPECT_GT(verdict.captured[1].error_old, 0);
  EXPECT_EQ(verdict.generated.size(), 8u);  // output and d/dx of four dtypes
}

TEST(SiteProof, AcceptsTheInlineChainUnderAutograd) {
  Site site;
  const at::Tensor leaf = at::randn({4, 3, 8, 8}).mul_(6).requires_grad_();
  site.step = record_step([&] {
    const at::Tensor x = leaf.add(1.5);
    const at::Tensor y = x * at::sigmoid(x);
    torch::autograd::backward({y.exp().sum()}, {});
  });
  site.match = site_of(site.step.graph, site.rule, {"MulBackward", "SigmoidBackward"}, false);
  EXPECT_EQ(site.match.backward.grad_inputs.size(), 2u);
  const verify::SiteVerdict verdict = site.prove();
  EXPECT_TRUE(verdict.accepted) << verdict.reason;
}

TEST(SiteProof, AcceptsAChainWithoutABackward) {
  Site site;
  const at::Tensor x = at::randn({5, 7});
  site.step = record_step([&] { (x * at::sigmoid(x)).add(1); });
  site.match = site_of(site.step.graph, site.rule, {}, false);
  const verify::SiteVerdict verdict = site.prove();
  EXPECT_TRUE(verdict.accepted) << verdict.reason;
  EXPECT_EQ(verdict.captured.size(), 1u);
}

void expect_refused(Backward backward, const std::string& reason) {
  const verify::SiteVerdict verdict = custom_site(std::move(backward)).prove();
  EXPECT_FALSE(verdict.accepted);
  EXPECT_THAT(verdict.reason, HasSubstr(reason));
}

TEST(SiteProof, RefusesAHalvedBackwardAndNamesItsLastOperator) {
  expect_refused([](const at::Tensor& x, const at::Tensor& g) { return published(x, g) * 0.5; },
                 "d/dx at x = ");
  expect_refused([](const at::Tensor& x, const at::Tensor& g) { return published(x, g) * 0.5; },
                 "up to aten.mul.Scalar");
}

TEST(SiteProof, RefusesAClampedCotangentThatNoCapturedCallWouldShow) {
  expect_refused(
      [](const at::Tensor& x, const at::Tensor& g) { return published(x, g.clamp(-8, 8)); },
      "aten.clamp");
}

TEST(SiteProof, RefusesABackwardThatChoosesByValue) {
  expect_refused([](const at::Tensor& x,
                    const at::Tensor& g) { return at::where(x > 1e30, g, published(x, g)); },
                 "chooses by value");
}

TEST(SiteProof, RefusesABackwardThatIsNotLinear) {
  expect_refused(
      [](const at::Tensor& x, const at::Tensor& g) { return published(x, g) + 1e-30 * g * g; },
      "is not linear in the incoming gradient");
}

TEST(SiteProof, RefusesAStraightThroughBackward) {
  const verify::SiteVerdict verdict =
      custom_site([](const at::Tensor&, const at::Tensor& g) { return g; }).prove();
  EXPECT_FALSE(verdict.accepted);
  EXPECT_THAT(verdict.reason, HasSubstr("hands the gradient through"));
}

TEST(SiteProof, RefusesATargetThatIsAnotherFunction) {
  Site site = custom_site(published);
  site.rule.targets[0].op = "aten.hardswish";
  const verify::SiteVerdict verdict = site.prove();
  EXPECT_FALSE(verdict.accepted);
  EXPECT_THAT(verdict.reason,
              AnyOf(HasSubstr("less accurate"), HasSubstr("d/dx"), HasSubstr("output")));
}

TEST(SiteProof, RefusesAChainThatIsNotTheComposition) {
  Site site;
  const at::Tensor x = at::randn({64});
  site.step = record_step([&] { x.mul(x.sigmoid()); });
  site.match = site_of(site.step.graph, site.rule, {}, false);
  auto other = graph::parse_graph(
      "%x: f32[4]\n%z: f32[4] = aten.mul.Scalar(%x, 1.000001)\n%s: f32[4] = aten.sigmoid(%z)\n"
      "%y: f32[4] = aten.mul.Tensor(%x, %s)\nreturn %y\n",
      graph::SchemaTable::builtin());
  ASSERT_TRUE(other.ok());
  site.rule.composition.graph = std::move(other.value());
  const verify::SiteVerdict verdict = site.prove();
  EXPECT_FALSE(verdict.accepted);
  EXPECT_THAT(verdict.reason, HasSubstr("the recorded operators"));
}

TEST(SiteProof, AnUnreplayableStepProvesNothing) {
  Site site = custom_site(published);
  site.step.record->declined.push_back("a sparse tensor");
  const verify::SiteVerdict verdict = site.prove();
  EXPECT_FALSE(verdict.accepted);
  EXPECT_THAT(verdict.reason, HasSubstr("a sparse tensor"));
}

TEST(Chain, MasksHaveAMagnitude) {
  const auto graph = graph::parse_graph(
      "%x: f32[3]\n%c: bool[3] = aten.gt.Scalar(%x, 0)\n"
      "%y: f32[3] = aten.mul.Tensor(%x, %c)\nreturn %y\n",
      graph::SchemaTable::builtin());
  ASSERT_TRUE(graph.ok()) << graph.error().message;
  const auto chain = Chain::make(*graph, std::vector<NodeId>{0, 1}, std::vector<ValueId>{0},
                                 graph->results, nullptr);
  ASSERT_TRUE(chain.ok()) << chain.error().message;
  const at::Tensor x = at::tensor({-2.0, 0.0, 3.0}, at::kDouble);
  const Chain::Double out = chain->run_double(std::vector<at::Tensor>{x});
  EXPECT_TRUE(at::equal(out.values[0], at::tensor({-0.0, 0.0, 3.0}, at::kDouble)));
  EXPECT_DOUBLE_EQ(out.magnitudes[0][2].item<double>(), 3);
}

}  // namespace
}  // namespace opfuse::torch_bridge
