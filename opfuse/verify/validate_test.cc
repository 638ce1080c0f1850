#include "opfuse/verify/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "opfuse/graph/text.h"

namespace opfuse::verify {
namespace {

using ::testing::HasSubstr;

graph::Graph parse(const std::string& text) {
  auto graph = graph::parse_graph(text, graph::SchemaTable::builtin());
  if (!graph.ok()) ADD_FAILURE() << graph.error().message << "\n" << text;
  return graph.ok() ? std::move(graph.value()) : graph::Graph{};
}

ValidationVerdict compare(const std::string& expected, const std::string& observed,
                          bool ignore_shapes = false) {
  return validate(parse(expected), parse(observed), {.ignore_shapes = ignore_shapes});
}

void expect_refused(const std::string& expected, const std::string& observed,
                    const std::string& reason) {
  const ValidationVerdict verdict = compare(expected, observed);
  EXPECT_FALSE(verdict.accepted);
  EXPECT_THAT(verdict.reason, HasSubstr(reason));
}

// A step with two sites, a batch norm, a write to its statistics and an update of a parameter.
const std::string kStep = R"(
%x: f32[2,4]
%w: f32[4] "param:w"
%b: f32[4] "param:b"
%m: f32[4] "buffer:mean"
%v: f32[4] "buffer:var"
%y: f32[2,4] = aten.silu(%x) @ model.py:10:1-5
%n: f32[2,4], %sm: f32[4], %sv: f32[4] = aten.native_batch_norm(%y, %w, %b, %m, %v, True, 0.1, 1e-3) @ model.py:11:1-5
%z: f32[2,4] = aten.silu(%n) @ model.py:12:1-5
%d: f32[2,4] = aten.sub.Tensor(%z, %x) @ model.py:13:1-5
%s: f32[4] = aten.sum.dim_IntList(%d, [0]) @ model.py:14:1-5
%w2: f32[4] alias[%w] = aten.add_.Tensor(%w, %s, alpha=-0.1) @ model.py:15:1-5
)";

std::string with(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(Validate, AcceptsTheSameStep) {
  const ValidationVerdict verdict = compare(kStep, kStep);
  EXPECT_TRUE(verdict.accepted) << verdict.reason;
  EXPECT_EQ(verdict.operators_equal, 6);
}

TEST(Validate, RefusesAnotherOperatorAtOneSiteAndNamesIt) {
  for (const std::string op : {"aten.relu", "aten.hardswish"}) {
    const std::string other = with(kStep, "aten.silu(%n)", op + "(%n)");
    expect_refused(kStep, other, op + " at model.py:12");
    expect_refused(kStep, other, "where aten.silu at model.py:12");
  }
}

TEST(Validate, RefusesAnExtraOperatorBeforeASite) {
  const std::string other = with(
      kStep, "%z: f32[2,4] = aten.silu(%n)",
      "%t: f32[2,4] = aten.mul.Scalar(%n, 1.0) @ model.py:12:1-5\n%z: f32[2,4] = aten.silu(%t)");
  expect_refused(kStep, other, "aten.mul.Scalar at model.py:12");
}

TEST(Validate, RefusesAnEpsThatIsOffByAMillionth) {
  expect_refused(kStep, with(kStep, "1e-3)", "0.001000001)"), "its argument eps is 0.001000001");
}

TEST(Validate, RefusesSwappedOperandsOfADifference) {
  expect_refused(kStep, with(kStep, "(%z, %x)", "(%x, %z)"), "aten.sub.Tensor at model.py:13");
}

TEST(Validate, RefusesAMissingWrite) {
  const std::string line =
      "%w2: f32[4] alias[%w] = aten.add_.Tensor(%w, %s, alpha=-0.1) @ model.py:15:1-5\n";
  expect_refused(kStep, with(kStep, line, ""), "aten.add_.Tensor at model.py:15");
  expect_refused(kStep, with(kStep, line, ""), "did not run");
}

TEST(Validate, RefusesAWriteIntoAnotherParameter) {
  expect_refused(kStep,
                 with(kStep, "alias[%w] = aten.add_.Tensor(%w", "alias[%b] = aten.add_.Tensor(%b"),
                 "aten.add_.Tensor");
}

TEST(Validate, RefusesAReadAfterTheWriteInsteadOfBefore) {
  const std::string before = R"(
%x: f32[4]
%s: f32[4] = aten.sigmoid(%x)
%x2: f32[4] alias[%x] = aten.add_.Tensor(%x, %s)
)";
  const std::string after = R"(
%x: f32[4]
%s: f32[4] = aten.sigmoid(%x)
%x2: f32[4] alias[%x] = aten.add_.Tensor(%x, %s)
%t: f32[4] = aten.sigmoid(%x)
)";
  expect_refused(before + "%t: f32[4] = aten.sigmoid(%s)\n", after, "aten.sigmoid");
}

TEST(Validate, TellsTheHalvesOfAChunkApart) {
  const std::string glu = R"(
%x: f32[2,8]
%a: f32[2,4] strides[8,1] alias[%x] = aten.slice.Tensor(%x, 1, 0, 4)
%b: f32[2,4] strides[8,1] offset[4] alias[%x] = aten.slice.Tensor(%x, 1, 4, 8)
%s: f32[2,4] = aten.sigmoid(%a)
%y: f32[2,4] = aten.mul.Tensor(%s, %b)
)";
  const std::string swish = with(glu, "(%s, %b)", "(%s, %a)");
  expect_refused(glu, swish, "aten.mul.Tensor");
  const ValidationVerdict ignoring = compare(glu, swish, true);
  EXPECT_FALSE(ignoring.accepted);
}

TEST(Validate, AcceptsAnotherBatchSizeOnlyWhenShapesAreIgnored) {
  const auto step = [](const std::string& n) {
    return "%x: f32[" + n + ",4]\n%w: f32[3,4] \"param:w\"\n" +
           "%t: f32[4,3] strides[1,4] alias[%w] = aten.t(%w)\n" + "%y: f32[" + n +
           ",3] = aten.mm(%x, %t)\n%v: f32[" + n + ",3,1] alias[%y] = aten.view(%y, [" + n +
           ",3,1])\n%z: f32[" + n + ",3,1] = aten.relu(%v)\n";
  };
  EXPECT_FALSE(compare(step("8"), step("5")).accepted);
  const ValidationVerdict verdict = compare(step("8"), step("5"), true);
  EXPECT_TRUE(verdict.accepted) << verdict.reason;
}

TEST(Validate, DropsADetachThatIsOnlyAnotherName) {
  const std::string with_detach = with(kStep, "%z: f32[2,4] = aten.silu(%n)",
                                       "%k: f32[2,4] alias[%n] = aten.detach(%n)\n"
                                       "%z: f32[2,4] = aten.silu(%k)");
  const ValidationVerdict verdict = compare(kStep, with_detach);
  EXPECT_TRUE(verdict.accepted) << verdict.reason;
}

// Three gradients of one tensor that meet in the engine in any order, in place or not.
const std::string kSum = R"(
%a: f32[4] "param:a"
%b: f32[4] "param:b"
%c: f32[4] "param:c"
backward SumBackward0 #1 {
%p: f32[4] = aten.neg(%a)
%q: f32[4] = aten.neg(%b)
%r: f32[4] = aten.neg(%c)
}
)";

TEST(Validate, TheEngineMayAddGradientsInAnyOrder) {
  const std::string left = kSum + R"(
%s: f32[4] = aten.add.Tensor(%p, %q) {graph_task}
%t: f32[4] = aten.add.Tensor(%s, %r) {graph_task}
backward TanhBackward0 #0 {
%u: f32[4] = aten.neg(%t)
}
)";
  const std::string right = kSum + R"(
%s: f32[4] = aten.add.Tensor(%r, %p) {graph_task}
%t: f32[4] alias[%s] = aten.add_.Tensor(%s, %q) {graph_task}
backward TanhBackward0 #0 {
%u: f32[4] = aten.neg(%t)
}
)";
  const ValidationVerdict verdict = compare(left, right);
  EXPECT_TRUE(verdict.accepted) << verdict.reason;
  EXPECT_FALSE(compare(left, with(left, "(%s, %r)", "(%s, %q)")).accepted);
  EXPECT_FALSE(compare(left, with(left, "(%s, %r)", "(%s, %s)")).accepted);
}

TEST(Validate, AccumulateGradMayTakeOrCopyTheGradient) {
  const std::string taken = kSum + R"(
backward "torch::autograd::AccumulateGrad" #2 {
%g: f32[4] alias[%p] = aten.detach(%p)
}
%a2: f32[4] alias[%a] = aten.add_.Tensor(%a, %g, alpha=-0.1)
)";
  const std::string cloned =
      with(taken, "%g: f32[4] alias[%p] = aten.detach(%p)", "%g: f32[4] = aten.clone(%p)");
  const std::string copied = with(taken, "%g: f32[4] alias[%p] = aten.detach(%p)",
                                  "%e: f32[4] = aten.new_empty_strided(%p, [4], [1])\n%g: f32[4] "
                                  "alias[%e] = aten.copy_(%e, %p)");
  EXPECT_TRUE(compare(taken, cloned).accepted) << compare(taken, cloned).reason;
  EXPECT_TRUE(compare(taken, copied).accepted) << compare(taken, copied).reason;
  EXPECT_FALSE(compare(taken, with(cloned, "clone(%p)", "clone(%q)")).accepted);
}

TEST(Validate, RefusesAnotherRegion) {
  expect_refused(kStep, with(kStep, "aten.silu(%n)", "aten.silu(%n) {}"), "region");
}

TEST(Validate, RefusesATensorMadeByNothingRecorded) {
  graph::Graph observed = parse(kStep);
  observed.storages[observed.values[observed.nodes[0].inputs[0].values[0]].storage].external =
      false;
  const ValidationVerdict verdict = validate(parse(kStep), observed, {});
  EXPECT_FALSE(verdict.accepted);
  EXPECT_THAT(verdict.reason, HasSubstr("made inside the step by no recorded operator"));
}

TEST(Validate, ABatchMadeAheadMayBeReadInTheNextStep) {
  // %next is what Python fills for the step after; there it is %now, and the same storage.
  const auto step = [](int64_t now, int64_t next) {
    graph::Graph graph = parse(R"(
%now: i64[4]
%next: i64[4]
%f: i64[4] alias[%next] = aten.lift_fresh.default(%next) @ loader.py:1:1-5
%y: i64[4] = aten.add.Tensor(%now, %now) @ model.py:1:1-5
)");
    graph.storages[graph.values[graph.nodes[1].inputs[0].values[0]].storage].session_id = now;
    graph.storages[graph.values[graph.nodes[0].inputs[0].values[0]].storage].session_id = next;
    return graph;
  };
  const ValidationVerdict verdict = validate(step(3, 4), step(4, 5), {});
  EXPECT_TRUE(verdict.accepted) << verdict.reason;
}

TEST(Validate, AnOptimizersRealNumbersMayChangeFromStepToStep) {
  const auto step = [](const std::string& scope, const std::string& rate) {
    return "%w: f32[4] \"param:w\"\n%g: f32[4] \"grad:w\"\nscope \"" + scope +
           "\" {\n%w2: f32[4] alias[%w] = aten.add_.Tensor(%w, %g, alpha=" + rate + ")\n}\n";
  };
  const std::string sgd = "Optimizer.step#SGD.step";
  EXPECT_TRUE(compare(step(sgd, "-0.1"), step(sgd, "-0.05")).accepted);
  EXPECT_FALSE(compare(step(sgd, "-0.1"), step(sgd, "1")).accepted);
  EXPECT_FALSE(compare(step("my scope", "-0.1"), step("my scope", "-0.05")).accepted);
}

TEST(Validate, RandomDrawsKeepTheirOrder) {
  const std::string step = R"(
%x: f32[4]
%a: f32[4] = aten.bernoulli.p(%x, 0.5)
%b: f32[4] = aten.bernoulli.p(%x, 0.5)
%y: f32[4] = aten.mul.Tensor(%x, %a)
)";
  EXPECT_TRUE(compare(step, step).accepted);
  expect_refused(step, with(step, "(%x, %a)", "(%x, %b)"), "aten.mul.Tensor");
}

TEST(Validate, WalksAStepOfTwoThousandOperators) {
  std::string text = "%v0: f32[2,4]\n";
  for (int i = 0; i < 2000; ++i)
    text += "%v" + std::to_string(i + 1) + ": f32[2,4] = aten.add.Tensor(%v" + std::to_string(i) +
            ", %v" + std::to_string(i / 2) + ")\n";
  const graph::Graph graph = parse(text);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(validate(graph, graph, {}).accepted);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  RecordProperty("milliseconds", std::to_string(took.count() * 1e3));
}

}  // namespace
}  // namespace opfuse::verify
