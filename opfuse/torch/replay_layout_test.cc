#include "opfuse/torch/replay_layout.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "opfuse/torch/recorded_step_test.h"

namespace opfuse::torch_bridge {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Head = std::function<at::Tensor(const at::Tensor&)>;

// A convolution, a norm and an activation, then `head` to (N, features).
struct Network {
  at::Tensor weight, gamma, beta, fc, mean, var, x;

  Network() {
    at::manual_seed(5);
    weight = at::randn({8, 3, 3, 3}).requires_grad_();
    gamma = at::ones({8}).requires_grad_();
    beta = at::zeros({8}).requires_grad_();
    fc = at::randn({5, 8 * 16}).requires_grad_();
    mean = at::zeros({8}), var = at::ones({8});
    x = at::randn({4, 3, 8, 8});
  }

  void step(const Head& head) {
    at::Tensor h = at::conv2d(x, weight, {}, 1, 1);
    h = at::batch_norm(h, gamma, beta, mean, var, true, 0.1, 1e-5, true);
    h = at::adaptive_avg_pool2d(at::silu(h), {4, 4});
    const std::vector<at::Tensor> parameters = {weight, gamma, beta, fc};
    const auto grads = torch::autograd::grad({at::linear(head(h), fc).square().mean()}, parameters);
    c10::AutoGradMode no_grad(false);
    for (size_t i = 0; i < grads.size(); ++i) parameters[i].add_(grads[i], -0.1);
  }
};

verify::StepVerdict verdict_with(const Head& head) {
  Network network;
  RecordedStep step = record_step([&] { network.step(head); });
  const std::pair<const void*, std::string> label{network.weight.storage().unsafeGetStorageImpl(),
                                                  "param:weight"};
  EXPECT_EQ(set_storage_labels(step.record.get(), {&label, 1}), 1);
  auto graph = graph::build_graph(step.record->table, graph::SchemaTable::builtin(),
                                  &step.record->extra_schemas);
  EXPECT_TRUE(graph.ok());
  return prove_layout(*step.record, graph.value(), {}, 1e9);
}

TEST(ReplayLayout, AcceptsWhatCopiesWhereItMust) {
  const verify::StepVerdict verdict =
      verdict_with([](const at::Tensor& h) { return h.flatten(1); });
  EXPECT_TRUE(verdict.accepted) << verdict.reason;
  EXPECT_GT(verdict.gradient_error_old + verdict.run_floors, 0);
}

TEST(ReplayLayout, FindsAViewThatTheLayoutDoesNotHave) {
  const verify::StepVerdict verdict =
      verdict_with([](const at::Tensor& h) { return h.view({4, -1}); });
  EXPECT_FALSE(verdict.accepted);
  EXPECT_THAT(verdict.reason, HasSubstr("aten.view"));
  EXPECT_THAT(verdict.reason, HasSubstr("view size is not compatible"));
}

TEST(ReplayLayout, RefusesWhatGoesByStrides) {
  const verify::StepVerdict verdict =
      verdict_with([](const at::Tensor& h) { return h.as_strided({4, 128}, {128, 1}); });
  EXPECT_FALSE(verdict.accepted);
  EXPECT_THAT(verdict.reason, StartsWith("aten.as_strided"));
  EXPECT_THAT(verdict.reason, HasSubstr("depends on how its input lies in memory"));
}

}  // namespace
}  // namespace opfuse::torch_bridge
