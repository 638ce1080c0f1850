// Sites of the rulebook as the matcher finds them: several inputs, each with its gradient, chains
// that reduce, and what looks like the target and is not.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>

#include "opfuse/graph/text.h"
#include "opfuse/graph/validate.h"
#include "opfuse/rewrite/plan.h"
#include "opfuse/torch/recorded_step_test.h"
#include "opfuse/torch/site_gradients.h"
#include "opfuse/torch/site_proof.h"
#include "opfuse/torch/target_trace.h"
#include "opfuse/verify/validate.h"

namespace opfuse::torch_bridge {
namespace {

using graph::kNone;
using ::testing::HasSubstr;
using Inputs = std::vector<at::Tensor>;
using Chain1 = std::function<at::Tensor(const Inputs&)>;

const match::Rulebook& rules() {
  static const match::Rulebook book = [] {
    auto loaded = match::load_rulebook({}, graph::SchemaTable::builtin());
    EXPECT_TRUE(loaded.ok()) << loaded.error().message;
    return std::move(loaded.value());
  }();
  return book;
}

// One step that runs a chain, with its backward, and what the matcher finds of one rule there.
struct Found {
  RecordedStep step;
  match::MatchReport report;
  int index = -1;

  Found(const std::string& rule, const Inputs& leaves, const Chain1& chain, bool backward = true) {
    step = record_step([&] {
      Inputs inputs;
      for (const at::Tensor& leaf : leaves)
        inputs.push_back(leaf.is_floating_point() ? leaf.mul(1.5) : leaf);
      const at::Tensor y = chain(inputs);
      if (backward) torch::autograd::backward({y.exp().sum()}, {});
    });
    report = match::find_matches(step.graph, rules());
    for (size_t i = 0; i < report.matches.size(); ++i)
      if (report.matches[i].rule->name == rule) index = static_cast<int>(i);
    EXPECT_GE(index, 0) << graph::print_graph(step.graph);
  }

  const match::Match& match() const { return report.matches[index]; }
  const match::Target& target() const { return match().rule->targets[0]; }

  verify::SiteVerdict prove(const match::Target& with) const {
    return prove_site(*step.record, step.graph, SiteCalls{0, {&match()}, &with});
  }
};

at::Tensor leaf(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  return at::randn(shape).to(dtype).requires_grad_();
}

at::Tensor layer_norm(const Inputs& in) {
  const at::Tensor d = in[0] - in[0].mean(-1, true);
  return d / at::sqrt((d * d).mean(-1, true) + 1e-5) * in[1] + in[2];
}

TEST(SiteRules, EveryInputHasItsGradientProved) {
  const Found found("layer_norm", {leaf({6, 8}), leaf({8}), leaf({8})}, layer_norm);
  const verify::SiteVerdict verdict = found.prove(found.target());
  EXPECT_TRUE(verdict.accepted) << verdict.reason;
  ASSERT_EQ(verdict.captured.size(), 4u);
  EXPECT_EQ(verdict.captured[1].what, "d/dx");
  EXPECT_EQ(verdict.captured[2].what, "d/dweight");
  EXPECT_EQ(verdict.captured[3].what, "d/dbias");
  EXPECT_GT(verdict.captured[2].error_old, 0);
}

TEST(SiteRules, AnInputThatNeedsNoGradientHasNone) {
  const at::Tensor fixed = at::randn({8});
  const Found found("layer_norm", {leaf({6, 8}), fixed, leaf({8})}, layer_norm);
  const verify::SiteVerdict verdict = found.prove(found.target());
  EXPECT_TRUE(verdict.accepted) << verdict.reason;
  ASSERT_EQ(verdict.captured.size(), 3u);
  EXPECT_EQ(verdict.captured[2].what, "d/dbias");
}

TEST(SiteRules, AnotherEpsIsAnotherFunction) {
  const Found found("layer_norm", {leaf({6, 8}), leaf({8}), leaf({8})}, layer_norm);
  match::Target other = found.target();
  other.arguments.back() = "0.00002";
  const verify::SiteVerdict verdict = found.prove(other);
  EXPECT_FALSE(verdict.accepted);
  EXPECT_THAT(verdict.reason, HasSubstr("less accurate"));
}

TEST(SiteRules, ExchangedInputsAreAnotherFunction) {
  const Found found("lerp", {leaf({4, 5}), leaf({4, 5})},
                    [](const Inputs& in) { return in[0] + 0.25 * (in[1] - in[0]); });
  EXPECT_TRUE(found.prove(found.target()).accepted) << found.prove(found.target()).reason;
  match::Target other = found.target();
  std::swap(other.arguments[0], other.arguments[1]);
  EXPECT_FALSE(found.prove(other).accepted);
}

// Rules, what looks like them, and the dtypes in which the proof must tell them apart.
struct Lookalike {
  std::string rule, op;
  std::vector<std::string> arguments;
  Chain1 chain;
};

at::Tensor gelu_by_erf(const Inputs& in) {
  return 0.5 * in[0] * (1 + at::erf(in[0] / std::sqrt(2.0)));
}
at::Tensor gelu_by_tanh(const Inputs& in) {
  return 0.5 * in[0] * (1 + at::tanh(std::sqrt(2 / M_PI) * (in[0] + 0.044715 * at::pow(in[0], 3))));
}
at::Tensor quick_gelu(const Inputs& in) { return in[0] * at::sigmoid(1.702 * in[0]); }
at::Tensor silu(const Inputs& in) { return in[0] * at::sigmoid(in[0]); }

TEST(SiteRules, WhatOnlyLooksLikeTheTargetIsRefusedInEveryDtype) {
  const std::vector<Lookalike> all = {
      {"gelu", "aten.gelu", {"x", "\"tanh\""}, gelu_by_erf},
      {"gelu_tanh", "aten.gelu", {"x"}, gelu_by_tanh},
      {"quick_gelu", "aten.gelu", {"x"}, quick_gelu},
      {"quick_gelu", "aten.silu", {"x"}, quick_gelu},
      {"silu", "aten.gelu", {"x"}, silu},
      {"silu", "aten.hardswish", {"x"}, silu},
  };
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const Lookalike& one : all) {
      const Found found(one.rule, {leaf({64}, dtype)}, one.chain);
      match::Target target;
      target.op = one.op;
      target.arguments = one.arguments;
      const verify::SiteVerdict verdict = found.prove(target);
      EXPECT_FALSE(verdict.accepted) << one.rule << " as " << one.op << " in " << dtype;
    }
}

TEST(SiteRules, TheNativeFunctionsAreProvedInEveryDtype) {
  const std::vector<std::pair<std::string, Chain1>> all = {
      {"gelu", gelu_by_erf},
      {"gelu_tanh", gelu_by_tanh},
      {"silu", silu},
  };
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const auto& [rule, chain] : all) {
      const Found found(rule, {leaf({64}, dtype)}, chain);
      const verify::SiteVerdict verdict = found.prove(found.target());
      EXPECT_TRUE(verdict.accepted) << rule << " in " << dtype << ": " << verdict.reason;
    }
}

// Why these rules have no Python name: the reason is told, and a newer kernel would show.
TEST(SiteRules, KernelsThatAreWorseThanTheirChainAreRefused) {
  const Found mish("mish", {leaf({64})},
                   [](const Inputs& in) { return in[0] * at::tanh(at::softplus(in[0])); });
  EXPECT_THAT(mish.prove(mish.target()).reason, HasSubstr("less accurate"));
  const Found hard("hardsigmoid", {leaf({64})},
                   [](const Inputs& in) { return at::hardtanh(in[0] + 3, 0, 6) / 6; });
  EXPECT_THAT(hard.prove(hard.target()).reason, HasSubstr("f64"));
  const Found log("log_sigmoid", {leaf({64})},
                  [](const Inputs& in) { return -at::softplus(-in[0]); });
  EXPECT_THAT(log.prove(log.target()).reason, HasSubstr("strides"));
}

TEST(SiteRules, TheTraceOfATargetStandsInItsPlace) {
  const Inputs leaves = {leaf({6, 8}), leaf({8}), leaf({8})};
  const Found old_step("layer_norm", leaves, layer_norm);
  TargetTracer tracer;
  auto trace =
      tracer.trace(*old_step.step.record, old_step.step.graph, old_step.match(), old_step.target());
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  EXPECT_EQ(trace->target->forward.size(), 1u);
  EXPECT_EQ(trace->target->backward.size(), 1u);
  match::Site site;
  site.rule = old_step.match().rule;
  site.matches = {old_step.index};
  rewrite::Plan plan;
  plan.replacements.resize(1);
  plan.replacements[0].site = 0;
  plan.replacements[0].target = "aten.layer_norm";
  const graph::Graph expected = rewrite::rewrite_graph(old_step.step.graph, old_step.report, {site},
                                                       plan, {{old_step.index, *trace}});
  const Status valid = graph::validate_graph(expected);
  EXPECT_TRUE(valid.ok()) << (valid.ok() ? "" : valid.error().message);
  const auto step_of = [&](double eps) {
    for (at::Tensor one : leaves) one.mutable_grad().reset();
    return record_step([&] {
      Inputs in;
      for (const at::Tensor& one : leaves) in.push_back(one.mul(1.5));
      const at::Tensor y = at::layer_norm(in[0], {8}, in[1], in[2], eps);
      torch::autograd::backward({y.exp().sum()}, {});
    });
  };
  const verify::ValidationVerdict same = verify::validate(expected, step_of(1e-5).graph, {});
  EXPECT_TRUE(same.accepted) << same.reason;
  EXPECT_EQ(same.sites_replaced, 1);
  EXPECT_EQ(same.backward_replaced, 1);
  const verify::ValidationVerdict other = verify::validate(expected, step_of(2e-5).graph, {});
  EXPECT_FALSE(other.accepted);
  EXPECT_THAT(other.reason, HasSubstr("eps"));
}

TEST(SiteRules, TheCotangentMayBeAGradientItself) {
  const Found found("addcmul", {leaf({4, 5}), leaf({4, 5}), leaf({4, 5})},
                    [](const Inputs& in) { return in[0] + in[1] * in[2]; });
  auto chain = recorded_chain(*found.step.record, found.step.graph, found.match());
  ASSERT_TRUE(chain.ok()) << chain.error().message;
  auto gradients = site_gradients(found.step.graph, found.match(), *chain);
  ASSERT_TRUE(gradients.ok()) << gradients.error().message;
  EXPECT_TRUE(gradients->parts[0].empty());
  EXPECT_EQ(gradients->parts[1].size(), 1u);
  EXPECT_EQ(gradients->parts[2].size(), 1u);
  EXPECT_NE(gradients->parts[1], gradients->parts[2]);
}

}  // namespace
}  // namespace opfuse::torch_bridge
