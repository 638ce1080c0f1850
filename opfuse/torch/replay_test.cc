#include "opfuse/torch/replay.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "opfuse/torch/recorded_step_test.h"
#include "opfuse/torch/replay_run.h"
#include "opfuse/verify/metrics.h"
#include "opfuse/verify/step_verdict.h"

namespace opfuse::torch_bridge {
namespace {

using graph::Graph;
using graph::NodeId;
using graph::ValueId;
using ::testing::HasSubstr;

std::unique_ptr<ReplayEvaluation> replay(const RecordedStep& step,
                                         const verify::ReplayOptions& options,
                                         const ReplayLimits& limits = {}) {
  auto run = run_replay(*step.record, step.graph, options, limits);
  if (!run.ok()) {
    ADD_FAILURE() << run.error().message;
    return nullptr;
  }
  return std::move(run.value());
}

void expect_exact(const RecordedStep& step) {
  for (bool recorded : {false, true}) {
    const auto run = replay(step, {.check_hashes = true, .recorded_random = recorded});
    ASSERT_NE(run, nullptr);
    EXPECT_GT(run->values_checked, 0);
    EXPECT_EQ(run->values_wrong, 0) << run->first_wrong;
    EXPECT_TRUE(run->cut_points.empty()) << run->cut_points.front();
  }
}

// The last value of the storage of `tensor` in the step.
ValueId last_value(const RecordedStep& step, const at::Tensor& tensor) {
  const std::pair<const void*, std::string> label{tensor.storage().unsafeGetStorageImpl(),
                                                  "wanted"};
  EXPECT_EQ(set_storage_labels(step.record.get(), {&label, 1}), 1);
  ValueId last = graph::kNone;
  for (const graph::Node& node : step.graph.nodes) {
    for (const auto* list : {&node.outputs, &node.written})
      for (ValueId value : *list) {
        if (value == graph::kNone || step.graph.values[value].storage == graph::kNone) continue;
        const int32_t storage = step.graph.values[value].storage;
        const trace::EventTable& table = step.record->table;
        if (table.strings.get(table.storages[storage].label) == "wanted" &&
            step.graph.values[value].meta.shape == tensor.sizes().vec())
          last = value;
      }
  }
  EXPECT_NE(last, graph::kNone);
  return last;
}

// A small network with everything a CNN's training step has.
struct Network {
  at::Tensor w1, gamma, beta, w2, b2, mean, var, x, target;

  explicit Network(c10::ScalarType dtype = c10::kFloat) {
    at::manual_seed(3);
    const auto make = [&](std::vector<int64_t> shape) {
      return at::randn(shape).mul_(0.5).to(dtype);
    };
    w1 = make({8, 3, 3, 3}).requires_grad_();
    gamma = make({8}).requires_grad_();
    beta = make({8}).requires_grad_();
    w2 = make({5, 8}).requires_grad_();
    b2 = make({5}).requires_grad_();
    mean = at::zeros({8}, dtype);
    var = at::ones({8}, dtype);
    x = make({4, 3, 9, 9});
    target = at::randint(0, 5, {4});
  }

  std::vector<at::Tensor> parameters() const { return {w1, gamma, beta, w2, b2}; }

  at::Tensor loss(double dropout) {
    at::Tensor h = at::conv2d(x, w1, {}, 1, 1);
    h = at::batch_norm(h, gamma, beta, mean, var, true, 0.1, 1e-5, true);
    h = h * at::sigmoid(h);
    h = at::max_pool2d(h, 2).add(0.1);
    at::silu_(h);
    h = at::adaptive_avg_pool2d(h, {1, 1}).flatten(1);
    h = at::dropout(h, dropout, dropout > 0);
    return at::cross_entropy_loss(at::linear(h, w2, b2), target);
  }

  std::vector<at::Tensor> step(double dropout = 0) {
    const std::vector<at::Tensor> grads = torch::autograd::grad({loss(dropout)}, parameters());
    c10::AutoGradMode no_grad(false);
    for (size_t i = 0; i < grads.size(); ++i) parameters()[i].add_(grads[i], -0.1);
    return grads;
  }
};

TEST(Replay, RepeatsViewsAndWritesBitForBit) {
  const at::Tensor x = at::randn({6, 8}), y = at::randn({6, 4}), rows = at::tensor({0, 2});
  const RecordedStep step = record_step([&] {
    auto halves = x.chunk(2, 1);
    at::Tensor z = at::zeros({6, 8});
    z.slice(1, 0, 4).copy_(halves[1]);
    z.slice(1, 4, 8).add_(y, 2.0);
    z.select(1, 3).mul_(3);
    z.t().index_put_({rows}, at::ones({6}));
    x.add_(z.sum(), 1e-3);
    at::silu(z.t()).cumsum(0).masked_fill_(z.t() > 0, 0.5);
  });
  expect_exact(step);
}

TEST(Replay, RepeatsATrainingStepBitForBit) {
  Network network;
  network.step();
  const RecordedStep step = record_step([&] { network.step(0.3); });
  expect_exact(step);
  const ValueId weight = last_value(step, network.w1), mean = last_value(step, network.mean);
  const auto run = replay(step, {.keep = {weight, mean}});
  ASSERT_NE(run, nullptr);
  EXPECT_TRUE(at::equal(*run->tensor(weight), network.w1));
  EXPECT_TRUE(at::equal(*run->tensor(mean), network.mean));
}

TEST(Replay, InFp64EqualsTheSameStepInDouble) {
  Network network, twin(c10::kDouble);
  const RecordedStep step = record_step([&] { network.step(); });
  twin.step();
  const ValueId weight = last_value(step, network.w1), mean = last_value(step, network.mean);
  const auto run = replay(step, {.f64 = true, .keep = {weight, mean}});
  ASSERT_NE(run, nullptr);
  EXPECT_EQ(run->tensor(weight)->scalar_type(), c10::kDouble);
  EXPECT_LT((*run->tensor(weight) - twin.w1).abs().max().item<double>(), 1e-14);
  EXPECT_LT((*run->tensor(mean) - twin.mean).abs().max().item<double>(), 1e-14);
}

TEST(Replay, InFp64RaisesCastsAndFactories) {
  const at::Tensor x = at::randn({4, 4});
  const RecordedStep step = record_step([&] {
    at::Tensor y = x.to(at::kBFloat16).to(at::kFloat) * 3.7 + at::full({4}, 0.1);
    at::softmax(y, -1, at::kFloat).add_(at::ones({4, 4}));
  });
  expect_exact(step);
  const ValueId last = step.graph.nodes.back().written.at(0);
  const auto run = replay(step, {.f64 = true, .keep = {last}});
  ASSERT_NE(run, nullptr);
  const at::Tensor exact =
      at::softmax(x.to(at::kDouble) * 3.7 + at::full({4}, 0.1, at::kDouble), -1) + 1;
  EXPECT_LT((*run->tensor(last) - exact).abs().max().item<double>(), 1e-14);
}

TEST(Replay, TakesRandomResultsFromTheRecordAndLeavesTheGeneratorAlone) {
  at::manual_seed(11);
  const at::Tensor x = at::randn({64});
  const RecordedStep step = record_step([&] {
    at::Tensor noise = at::rand({64});
    (x * at::bernoulli(noise)).add_(at::empty({64}).normal_());
  });
  const at::Tensor before = at::detail::getDefaultCPUGenerator().get_state();
  expect_exact(step);
  EXPECT_TRUE(at::equal(before, at::detail::getDefaultCPUGenerator().get_state()));
}

TEST(Replay, AWriteFromOutsideIsACutPoint) {
  at::Tensor x = at::randn({8});
  const RecordedStep step = record_step([&] {
    at::Tensor y = x.mul(2);
    static_cast<float*>(y.mutable_data_ptr())[3] = 42;
    y.add(1);
  });
  const auto run = replay(step, {.check_hashes = true});
  ASSERT_NE(run, nullptr);
  EXPECT_EQ(run->values_wrong, 0) << run->first_wrong;
  ASSERT_EQ(run->cut_points.size(), 1u);
  EXPECT_THAT(run->cut_points[0], HasSubstr("written from outside before aten.add.Scalar"));
}

TEST(Replay, APerturbedReplayMovesExternalsByOneUlp) {
  const at::Tensor x = at::randn({1000});
  const RecordedStep step = record_step([&] { x.clone(); });
  const ValueId copy = step.graph.nodes[0].outputs[0];
  const auto run = replay(step, {.perturb_seed = 1, .keep = {copy}});
  const auto again = replay(step, {.perturb_seed = 1, .keep = {copy}});
  const auto other = replay(step, {.perturb_seed = 2, .keep = {copy}});
  EXPECT_TRUE(at::equal(*run->tensor(copy), *again->tensor(copy)));
  EXPECT_FALSE(at::equal(*run->tensor(copy), *other->tensor(copy)));
  const at::Tensor bits = run->tensor(copy)->view(at::kInt) - x.view(at::kInt);
  EXPECT_TRUE((bits.abs() == 1).all().item<bool>());
  const auto exact = replay(step, {.check_hashes = true});  // the record itself stays as it was
  EXPECT_EQ(exact->values_wrong, 0);
}

TEST(Replay, BeyondItsMemoryItFailsWithASentence) {
  const at::Tensor x = at::randn({1 << 16});
  const RecordedStep step = record_step([&] { x.add(1).mul(x); });
  const auto run = run_replay(*step.record, step.graph, {}, {.max_bytes = 100 << 10});
  ASSERT_FALSE(run.ok());
  EXPECT_THAT(run.error().message, HasSubstr("expected at most 102400 bytes"));
  EXPECT_NE(replay(step, {}, {.max_bytes = 2 << 20}), nullptr);
}

TEST(Replay, PutsTheAllocatorBackAndItsTensorsLiveOn) {
  c10::Allocator* const before = c10::GetCPUAllocator();
  const at::Tensor x = at::randn({1 << 16});
  const RecordedStep step = record_step([&] { x.add(1); });
  const ValueId sum = step.graph.nodes[0].outputs[0];
  auto run = replay(step, {.keep = {sum}});
  EXPECT_EQ(c10::GetCPUAllocator(), before);
  const at::Tensor kept = *run->tensor(sum);
  run.reset();
  EXPECT_TRUE(at::equal(kept, x.add(1)));
}

TEST(Replay, AChangedHashIsFoundAndTheOperatorNamed) {
  const at::Tensor x = at::randn({8});
  RecordedStep step = record_step([&] { x.sigmoid().mul(x); });
  step.record->calls[step.graph.nodes[1].event].hashes.at(0).second ^= 1;
  const auto run = replay(step, {.check_hashes = true});
  EXPECT_EQ(run->values_wrong, 1);
  EXPECT_THAT(run->first_wrong, HasSubstr("aten.mul.Tensor"));
}

TEST(Replay, DeclinesAnIncompleteRecord) {
  const at::Tensor x = at::randn({8});
  RecordedStep step = record_step([&] { x.sigmoid(); });
  step.record->declined.push_back("a sparse tensor");
  const auto run = run_replay(*step.record, step.graph, {}, {});
  ASSERT_FALSE(run.ok());
  EXPECT_THAT(run.error().message, HasSubstr("a sparse tensor"));
}

// ---- whole-step verdicts over ATen

// The graph with x * sigmoid(x) in the forward replaced by `op`.
Graph with_target(Graph graph, const std::string& op) {
  const NodeId sigmoid = nodes_of(graph, "aten.sigmoid").at(0);
  graph::Node& mul = graph.nodes[sigmoid + 1];
  EXPECT_EQ(mul.op, "aten.mul.Tensor");
  graph::Node node = graph.nodes[sigmoid];
  node.op = op;
  node.schema = graph::SchemaTable::builtin().find(op);
  node.outputs = mul.outputs;
  node.event = graph::kNone;
  mul = node;
  return graph;  // sigmoid itself stays: the recorded backward reads it
}

verify::StepVerdict prove(const RecordedStep& step, const Graph& rewritten) {
  const auto evaluator = make_evaluator(*step.record);
  return verify::prove_step(*evaluator, step.graph, rewritten);
}

TEST(StepProof, AcceptsSiluAndRefusesItsNeighbours) {
  Network network;
  const RecordedStep step = record_step([&] { network.step(); });
  const verify::StepVerdict silu = prove(step, with_target(step.graph, "aten.silu"));
  EXPECT_TRUE(silu.accepted) << silu.reason;
  EXPECT_LT(silu.fp64_floors, 4);
  for (const std::string op : {"aten.relu", "aten.hardswish"}) {
    const verify::StepVerdict other = prove(step, with_target(step.graph, op));
    EXPECT_FALSE(other.accepted) << op;
    EXPECT_GT(other.fp64_floors, 1e6) << op;
  }
}

TEST(StepProof, RefusesAnEpsThatIsOffByAMillionth) {
  Network network;
  const RecordedStep step = record_step([&] { network.step(); });
  Graph off = step.graph;
  for (NodeId id : nodes_of(off, "aten.native_batch_norm"))
    off.nodes[id].inputs[7].attr = 1e-5 * (1 + 1e-6);
  ASSERT_FALSE(nodes_of(off, "aten.native_batch_norm").empty());
  const verify::StepVerdict verdict = prove(step, off);
  EXPECT_TRUE(verdict.replayed_exactly) << verdict.first_wrong;
  EXPECT_FALSE(verdict.accepted);
  EXPECT_GT(verdict.fp64_floors, 100);
}

}  // namespace
}  // namespace opfuse::torch_bridge
