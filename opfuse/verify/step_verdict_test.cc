#include "opfuse/verify/step_verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "opfuse/graph/text.h"

namespace opfuse::verify {
namespace {

using graph::Graph;
using graph::ValueId;
using ::testing::HasSubstr;

Graph parse(const std::string& text) {
  auto graph = graph::parse_graph(text, graph::SchemaTable::builtin());
  if (!graph.ok()) ADD_FAILURE() << graph.error().message;
  return graph.ok() ? std::move(graph.value()) : Graph{};
}

class ReferenceEvaluation : public Evaluation {
 public:
  Result<TensorView> value(ValueId id) const override {
    const auto found = values.find(id);
    if (found == values.end()) return Error{"not kept"};
    return TensorView{
        found->second.data(), DType::kF64, {static_cast<int64_t>(found->second.size())}};
  }
  std::map<ValueId, std::vector<double>> values;
};

// Elementwise operators on lists of doubles, rounded to float outside of fp64.
class ReferenceEvaluator : public Evaluator {
 public:
  int replays = 0;
  int wrong = 0;             // hashes that differ in an exact replay
  double rounding = 1;       // a kernel of the target that rounds this much more than the chain
  bool rounds_moved = true;  // does so too when its externals are moved

  Result<std::unique_ptr<Evaluation>> replay(const Graph& graph,
                                             const ReplayOptions& options) override {
    ++replays;
    auto out = std::make_unique<ReferenceEvaluation>();
    auto& v = out->values;
    for (size_t id = 0; id < graph.values.size(); ++id) {
      if (graph.values[id].producer != graph::kNone) continue;
      std::vector<double> data(4);
      for (int i = 0; i < 4; ++i) {
        data[i] = static_cast<float>(0.37 * (i + 1) * (i % 2 ? 1 : -1) + 0.01 * id);
        if (options.perturb_seed) data[i] = moved(data[i], options, i);
      }
      v[id] = data;
    }
    for (const graph::Node& node : graph.nodes) {
      const bool rounds = !options.f64 && (rounds_moved || options.perturb_seed == 0);
      const std::vector<double> result = apply(node, v, options.f64, rounds ? rounding : 1);
      for (ValueId id : node.outputs) v[id] = result;
      for (ValueId id : node.written) v[id] = result;
    }
    if (options.check_hashes) {
      out->values_checked = static_cast<int64_t>(graph.nodes.size());
      out->values_wrong = wrong;
      if (wrong) out->first_wrong = "aten.mul.Tensor at model.py:3";
    }
    return std::unique_ptr<Evaluation>(std::move(out));
  }

 private:
  static double moved(double x, const ReplayOptions& options, int i) {
    const double to = (options.perturb_seed + i) % 2 ? 1e300 : -1e300;
    return options.f64
               ? std::nextafter(x, to)
               : std::nextafter(static_cast<float>(x), static_cast<float>(to > 0 ? 1e30 : -1e30));
  }

  static std::vector<double> apply(const graph::Node& node,
                                   std::map<ValueId, std::vector<double>>& v, bool f64,
                                   double rounding) {
    const auto& a = v.at(node.inputs[0].values[0]);
    const auto& b = node.inputs.size() > 1 && !node.inputs[1].values.empty()
                        ? v.at(node.inputs[1].values[0])
                        : a;
    std::vector<double> result;
    for (size_t i = 0; i < a.size(); ++i) {
      const double s = 1 / (1 + std::exp(-a[i]));
      double r = node.op == "aten.sigmoid"      ? s
                 : node.op == "aten.mul.Tensor" ? a[i] * b[i]
                 : node.op == "aten.silu"       ? a[i] * s
                 : node.op == "aten.relu"       ? std::max(a[i], 0.0)
                 : node.op == "aten.neg"        ? -a[i]
                 : node.op == "aten.ones_like"  ? 1.0
                                                : a[i] + b[i];
      if (node.op == "aten.silu") r *= 1 + (rounding - 1) * 0x1p-24;
      result.push_back(f64 ? r : static_cast<float>(r));
    }
    return result;
  }
};

const std::string kHead =
    "%x: f32[4]\n%w: f32[4] \"param:w\"\n%h: f32[4] = aten.mul.Tensor(%x, %w)\n";
const std::string kTail = "%w2: f32[4] alias[%w] = aten.add_.Tensor(%w, %y) @ model.py:9:1-5\n";
const std::string kChain =
    kHead + "%s: f32[4] = aten.sigmoid(%h)\n%y: f32[4] = aten.mul.Tensor(%h, %s)\n" + kTail;
const std::string kFused = kHead + "%y: f32[4] = aten.silu(%h)\n" + kTail;

TEST(StepVerdict, AcceptsTheFusedStep) {
  ReferenceEvaluator evaluator;
  const StepVerdict verdict = prove_step(evaluator, parse(kChain), parse(kFused));
  EXPECT_TRUE(verdict.accepted) << verdict.reason;
  EXPECT_TRUE(verdict.replayed_exactly);
  EXPECT_LT(verdict.fp64_floors, 2);
  EXPECT_EQ(evaluator.replays, 1 + 2 + 1 + 1);
  EXPECT_EQ(verdict.floor_replays, 1);
}

TEST(StepVerdict, RefusesAnotherFunctionInFp64AndNamesTheTensor) {
  ReferenceEvaluator evaluator;
  const StepVerdict verdict =
      prove_step(evaluator, parse(kChain), parse(kHead + "%y: f32[4] = aten.relu(%h)\n" + kTail));
  EXPECT_FALSE(verdict.accepted);
  EXPECT_GT(verdict.fp64_floors, 1e6);
  EXPECT_THAT(verdict.reason, HasSubstr("param:w"));
  EXPECT_THAT(verdict.reason, HasSubstr("not the same function"));
  EXPECT_EQ(evaluator.replays, 1 + 2 + 3);
}

TEST(StepVerdict, RefusesATargetThatRoundsManyTimesMore) {
  ReferenceEvaluator evaluator;
  evaluator.rounding = 400;
  const StepVerdict verdict = prove_step(evaluator, parse(kChain), parse(kFused));
  EXPECT_FALSE(verdict.accepted);
  EXPECT_LT(verdict.fp64_floors, 2);
  EXPECT_THAT(verdict.reason, HasSubstr("run's own dtype"));
  EXPECT_EQ(evaluator.replays, 1 + 2 + 1 + 1 + 3);
}

TEST(StepVerdict, AMeanThatCancelsIsMeasuredByTheSpreadBesideIt) {
  const auto step = [](const std::string& y, const std::string& label) {
    return parse(kHead + "%m: f32[4] \"buffer:bn.running_mean\"\n%v: f32[4] \"" + label + "\"\n" +
                 y +
                 R"(%s2: f32[4] = aten.sigmoid(%h)
%y2: f32[4] = aten.mul.Tensor(%h, %s2)
%n: f32[4] = aten.neg(%m)
%zero: f32[4] alias[%m] = aten.add_.Tensor(%m, %n)
%minus: f32[4] = aten.neg(%y2)
%nothing: f32[4] = aten.add.Tensor(%y, %minus)
%mean: f32[4] alias[%m] = aten.add_.Tensor(%zero, %nothing)
%variance: f32[4] alias[%v] = aten.add_.Tensor(%v, %v)
%loss: f32[] = aten.neg(%x)
%one: f32[] = aten.ones_like(%loss)
)" + kTail);
  };
  const std::string chain = "%s: f32[4] = aten.sigmoid(%h)\n%y: f32[4] = aten.mul.Tensor(%h, %s)\n";
  const std::string fused = "%y: f32[4] = aten.silu(%h)\n";
  ReferenceEvaluator evaluator;
  evaluator.rounding = 4;
  const std::string beside = "buffer:bn.running_var";
  const StepVerdict verdict = prove_step(evaluator, step(chain, beside), step(fused, beside));
  EXPECT_TRUE(verdict.accepted) << verdict.reason;
  const std::string other = "buffer:other";
  const StepVerdict alone = prove_step(evaluator, step(chain, other), step(fused, other));
  EXPECT_FALSE(alone.accepted);
  EXPECT_THAT(alone.reason, HasSubstr("running_mean"));
}

// %g is a gradient; the chain or the target makes it.
std::string with_gradient(const std::string& made) {
  return kHead + "backward MulBackward0 #0 {\n" + made +
         "}\nbackward \"torch::autograd::AccumulateGrad\" #1 {\n"
         "%d: f32[4] alias[%g] = aten.detach(%g)\n}\n";
}
const std::string kGradientByChain =
    with_gradient("%s: f32[4] = aten.sigmoid(%h)\n%g: f32[4] = aten.mul.Tensor(%h, %s)\n");
const std::string kGradientByTarget = with_gradient("%g: f32[4] = aten.silu(%h)\n");

TEST(StepVerdict, RefusesGradientsThatAreFurtherAwayInEveryReplay) {
  ReferenceEvaluator evaluator;
  evaluator.rounding = 20;
  const StepVerdict verdict =
      prove_step(evaluator, parse(kGradientByChain), parse(kGradientByTarget));
  EXPECT_FALSE(verdict.accepted);
  EXPECT_LE(verdict.run_floors, 8);
  EXPECT_THAT(verdict.reason, HasSubstr("gradients are further from fp64 than the original's"));
  EXPECT_THAT(verdict.reason, HasSubstr("of their norm; rounding moves the original's by at most"));
  EXPECT_EQ(evaluator.replays, 1 + 2 + 1 + 1 + 3 + 3);
}

TEST(StepVerdict, AcceptsGradientsThatAreFurtherAwayInOneReplayOnly) {
  ReferenceEvaluator evaluator;
  evaluator.rounding = 20;
  evaluator.rounds_moved = false;
  const StepVerdict verdict =
      prove_step(evaluator, parse(kGradientByChain), parse(kGradientByTarget));
  EXPECT_TRUE(verdict.accepted) << verdict.reason;
  EXPECT_EQ(evaluator.replays, 1 + 2 + 1 + 1 + 3 + 2);
}

TEST(StepVerdict, ClaimsNothingOfAStepThatDoesNotReplay) {
  ReferenceEvaluator evaluator;
  evaluator.wrong = 1;
  const StepVerdict verdict = prove_step(evaluator, parse(kChain), parse(kFused));
  EXPECT_FALSE(verdict.accepted);
  EXPECT_FALSE(verdict.replayed_exactly);
  EXPECT_THAT(verdict.reason, HasSubstr("aten.mul.Tensor at model.py:3"));
  EXPECT_EQ(evaluator.replays, 1);
}

TEST(StepVerdict, OutOfTimeItMakesOneFloorOfEachKind) {
  ReferenceEvaluator evaluator;
  evaluator.rounding = 400;
  const StepVerdict verdict = prove_step(evaluator, parse(kChain), parse(kFused), {.seconds = 0});
  EXPECT_FALSE(verdict.accepted);
  EXPECT_EQ(evaluator.replays, 1 + 2 + 1 + 1 + 1);
}

TEST(StepVerdict, TakesAnExactReplayThatIsThere) {
  ReferenceEvaluator evaluator;
  const graph::Graph chain = parse(kChain);
  auto exact = evaluator.replay(chain, exact_replay_options(chain));
  ASSERT_TRUE(exact.ok());
  EXPECT_TRUE(prove_step(evaluator, chain, parse(kFused), {}, std::move(exact.value())).accepted);
  EXPECT_EQ(evaluator.replays, 1 + 2 + 1 + 1);
  evaluator.wrong = 1;
  exact = evaluator.replay(chain, exact_replay_options(chain));
  EXPECT_FALSE(
      prove_step(evaluator, chain, parse(kFused), {}, std::move(exact.value())).replayed_exactly);
}

TEST(StepVerdict, RefusesARewritingThatLosesAResult) {
  ReferenceEvaluator evaluator;
  const StepVerdict verdict =
      prove_step(evaluator, parse(kChain), parse(kHead + "%y: f32[4] = aten.silu(%h)\n"));
  EXPECT_FALSE(verdict.accepted);
}

TEST(StepOutputs, AreTheLossTheGradientsAndTheState) {
  Graph graph = parse(R"(
%w: f32[1] "param:w"
%l: f32[1] = aten.neg(%w)
%o: f32[1] = aten.ones_like(%l)
backward NegBackward0 #0 {
%g: f32[1] = aten.neg(%o)
}
backward "torch::autograd::AccumulateGrad" #1 {
%d: f32[1] alias[%g] = aten.detach(%g)
}
%w2: f32[1] alias[%w] = aten.add_.Tensor(%w, %d)
)");
  const std::vector<StepOutput> outputs = step_outputs(graph);
  ASSERT_EQ(outputs.size(), 3u);
  EXPECT_EQ(outputs[0].kind, OutputKind::kLoss);
  EXPECT_EQ(outputs[1].kind, OutputKind::kGradient);
  EXPECT_EQ(outputs[1].name, "gradient 1");
  EXPECT_EQ(outputs[2].kind, OutputKind::kState);
  EXPECT_EQ(outputs[2].name, "param:w");
  graph.storages[graph.values[outputs[1].value].storage].label = "grad:w";
  EXPECT_EQ(step_outputs(graph)[1].name, "grad of w");
}

TEST(StepOutputs, AreNotWhatATargetGivesBesideItsResult) {
  Graph graph = parse(R"(
%x: f32[4]
%y: f32[4], %root: f32[1] = npu.norm(%x)
%z: f32[4] = aten.neg(%y)
)");
  ASSERT_EQ(step_outputs(graph).size(), 1u);
  graph.nodes[0].event = 0;  // recorded: the script itself made it
  EXPECT_EQ(step_outputs(graph).size(), 2u);
}

}  // namespace
}  // namespace opfuse::verify
