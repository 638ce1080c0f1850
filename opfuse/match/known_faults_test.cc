// Faults of other rewriting tools, each in its smallest form: docs/known-faults.md maps the public
// reports to these tests and to others.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "opfuse/match/test_graphs.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::match {
namespace {

using testing::builtin_rules;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::parse;
using ::testing::SizeIs;

Rulebook alone(const std::string& name) {
  const Rule* rule = builtin_rules().find(name);
  EXPECT_NE(rule, nullptr) << name;
  return rule ? Rulebook{{*rule}} : Rulebook{};
}

// What one rule finds; owns what the matches point into.
struct Found {
  Found(const std::string& rule, std::string_view text)
      : book(alone(rule)), graph(parse(text)), report(find_matches(graph, book)) {}

  std::vector<std::string> rules() const { return testing::rules_in(report); }
  bool refused_for(int row) const {
    const auto has = [&](const Match& m) {
      return std::ranges::any_of(m.refusals, [&](const Refusal& r) { return r.row == row; });
    };
    return std::ranges::any_of(report.matches, has) ||
           std::ranges::any_of(report.near_misses,
                               [&](const NearMiss& m) { return m.refusal.row == row; });
  }
  // Legal apart from being of a kind that is only reported.
  bool any_legal() const {
    return std::ranges::any_of(report.matches, [](const Match& m) {
      return std::ranges::all_of(m.refusals, [](const Refusal& r) { return r.row == 0; });
    });
  }
  double number(const std::string& name) const {
    const std::vector<std::string> names = book.rules[0].number_names();
    const size_t at = std::ranges::find(names, name) - names.begin();
    return report.matches.at(0).numbers.at(at).value_or(-1);
  }
  graph::ValueId value(std::string_view name) const {
    for (size_t v = 0; v < graph.values.size(); ++v)
      if (graph.values[v].name == name && graph.values[v].version == 0)
        return static_cast<graph::ValueId>(v);
    return graph::kNone;
  }

  Rulebook book;
  graph::Graph graph;
  MatchReport report;
};

// Attention over [2,4,6,8] with `keys` as the line that makes %t of %k, `scale` and more lines that
// turn %c into %m.
std::string attention(std::string_view keys, std::string_view scale, std::string_view masked) {
  return fmt::format(
      "%q: f32[8,6,8]\n%k: f32[8,6,8]\n%v: f32[8,6,8]\n%mask: f32[8,6,6]\n"
      "{}%s: f32[8,6,6] = aten.bmm(%q, %t)\n%c: f32[8,6,6] = aten.mul.Tensor(%s, {})\n{}"
      "%p: f32[8,6,6] = aten._softmax(%m, -1, False)\n%y: f32[8,6,8] = aten.bmm(%p, %v)\n"
      "return %y\n",
      keys, scale, masked);
}
constexpr std::string_view kTransposed =
    "%t: f32[8,8,6] strides[48,1,8] = aten.transpose.int(%k, 1, 2)\n";
constexpr std::string_view kMasked = "%m: f32[8,6,6] = aten.add.Tensor(%c, %mask)\n";

TEST(KnownFaults, T02AnotherPermutationOfTheKeysIsNoTranspose) {
  EXPECT_THAT(Found("attention", attention(kTransposed, "0.5", kMasked)).rules(),
              ElementsAre("attention"));
  // A view of the same shape, in another order.
  EXPECT_THAT(
      Found("attention", attention("%t: f32[8,8,6] = aten.view(%k, [8, 8, 6])\n", "0.5", kMasked))
          .rules(),
      IsEmpty());
  EXPECT_THAT(
      Found("attention", attention("%u: f32[6,8,8] = aten.permute(%k, [1, 0, 2])\n"
                                   "%t: f32[8,8,6] strides[8,1,64] = aten.permute(%u, [1, 2, 0])\n",
                                   "0.5", kMasked))
          .rules(),
      IsEmpty());
}

TEST(KnownFaults, T03AlphaOfASumIsNotDropped) {
  const std::string_view text =
      "%x: f32[4,6]\n%w: f32[6,8]\n%b: f32[8]\n%p: f32[4,8] = aten.mm(%x, %w)\n"
      "%y: f32[4,8] = aten.add.Tensor(%p, %b{})\nreturn %y\n";
  const auto with = [&](std::string_view alpha) {
    std::string all(text);
    return Found("addmm", all.replace(all.find("{}"), 2, alpha)).rules();
  };
  EXPECT_THAT(with(""), ElementsAre("addmm"));
  EXPECT_THAT(with(", alpha=2"), IsEmpty());
}

std::string layer_norm(std::string_view minus, std::string_view mean, std::string_view root) {
  return fmt::format(
      "%x: f32[4,6,8]\n%m: f32[4,6,1] = aten.mean.dim(%x, {1}, keepdim=True)\n"
      "%d: f32[4,6,8] = aten.sub.Tensor(%x, %m{0})\n%s: f32[4,6,8] = aten.mul.Tensor(%d, %d)\n"
      "%v: f32[4,6,1] = aten.mean.dim(%s, {1}, keepdim=True)\n{2}"
      "%y: f32[4,6,8] = aten.div.Tensor(%d, %r)\nreturn %y\n",
      minus, mean, root);
}
constexpr std::string_view kRoot =
    "%e: f32[4,6,1] = aten.add.Tensor(%v, 1e-05)\n%r: f32[4,6,1] = aten.sqrt(%e)\n";

TEST(KnownFaults, T04AlphaOfADifferenceIsNotDropped) {
  EXPECT_THAT(Found("layer_norm", layer_norm("", "[-1]", kRoot)).rules(),
              ElementsAre("layer_norm"));
  EXPECT_THAT(Found("layer_norm", layer_norm(", alpha=2", "[-1]", kRoot)).rules(), IsEmpty());
}

TEST(KnownFaults, T05AndC98TheScaleOfAttentionIsCarried) {
  const Found found("attention", attention(kTransposed, "0.35355339059327373", kMasked));
  ASSERT_THAT(found.report.matches, SizeIs(1));
  EXPECT_NEAR(found.number("scale"), 0.35355339059327373, 1e-12);
}

TEST(KnownFaults, T06ADtypeArgumentIsNoDefault) {
  const std::string_view kWide = "[-1], dtype=f64";
  std::string text = layer_norm("", "[-1]", kRoot);
  text.replace(text.find("[-1]"), 4, kWide);
  EXPECT_THAT(Found("layer_norm", text).rules(), IsEmpty());
}

TEST(KnownFaults, T07AScaledSoftmaxIsNotTheSoftmaxOfItsDifference) {
  // exp(a * x - max(x)): not the maximum of what is exponentiated, so a softmax without one.
  const Found scaled("softmax",
                     "%x: f32[4,8]\n%a: f32[4,8] = aten.mul.Tensor(%x, 3.0)\n"
                     "%m: f32[4,1] = aten.amax(%x, [-1], keepdim=True)\n"
                     "%d: f32[4,8] = aten.sub.Tensor(%a, %m)\n%e: f32[4,8] = aten.exp(%d)\n"
                     "%s: f32[4,1] = aten.sum.dim_IntList(%e, [-1], keepdim=True)\n"
                     "%y: f32[4,8] = aten.div.Tensor(%e, %s)\nreturn %y\n");
  ASSERT_THAT(scaled.report.matches, SizeIs(1));
  EXPECT_EQ(scaled.report.matches[0].equivalence, Equivalence::kE3);
  // Without the maximum it is infinite elsewhere: E3, which is never the default.
  const Found naive("softmax",
                    "%x: f32[4,8]\n%e: f32[4,8] = aten.exp(%x)\n"
                    "%s: f32[4,1] = aten.sum.dim_IntList(%e, [-1], keepdim=True)\n"
                    "%y: f32[4,8] = aten.div.Tensor(%e, %s)\nreturn %y\n");
  ASSERT_THAT(naive.report.matches, SizeIs(1));
  EXPECT_EQ(naive.report.matches[0].equivalence, Equivalence::kE3);
}

TEST(KnownFaults, T08AnExplicitCastInAttentionIsNoPartOfIt) {
  EXPECT_THAT(Found("attention", attention(kTransposed, "0.5",
                                           "%l: f16[8,6,6] = aten._to_copy(%c, dtype=f16)\n"
                                           "%n: f32[8,6,6] = aten._to_copy(%l, dtype=f32)\n"
                                           "%m: f32[8,6,6] = aten.add.Tensor(%n, %mask)\n"))
                  .rules(),
              IsEmpty());
}

constexpr std::string_view kSilu = "%y: f32[8] = aten.mul.Tensor(%x, %s)\nreturn %y\n";

TEST(KnownFaults, T09AMatchDoesNotReachAcrossACopy) {
  const Found found("silu",
                    "%x: f32[8]\n%z: f32[8]\n%s: f32[8] = aten.sigmoid(%x)\n"
                    "%c: f32[8] = aten.copy_(%x, %z)\n" +
                        std::string(kSilu));
  EXPECT_FALSE(found.any_legal());
  EXPECT_TRUE(found.refused_for(5));
}

TEST(KnownFaults, T10ACopyIsReadWhereItsSourceIsWritten) {
  const Found found("silu",
                    "%x: f32[8]\n%c: f32[8] = aten.clone(%x)\n"
                    "%w: f32[8] = aten.add_.Tensor(%x, 1)\n%s: f32[8] = aten.sigmoid(%c)\n"
                    "%y: f32[8] = aten.mul.Tensor(%c, %s)\nreturn %y\n");
  ASSERT_THAT(found.report.matches, SizeIs(1));
  EXPECT_THAT(found.report.matches[0].inputs, ElementsAre(found.value("c")));
}

TEST(KnownFaults, T11AProductWithOneIsATensorOfItsOwn) {
  // z = x * 1 is written: x stays what it was, and z is read after the write.
  const Found found("silu",
                    "%x: f32[8]\n%z: f32[8] = aten.mul.Tensor(%x, 1)\n"
                    "%w: f32[8] = aten.add_.Tensor(%z, 1)\n%s: f32[8] = aten.sigmoid(%x)\n"
                    "%y: f32[8] = aten.mul.Tensor(%z, %s)\nreturn %y\n");
  EXPECT_FALSE(found.any_legal());
}

TEST(KnownFaults, T12ACastThatIsNothingIsKeptWhereItsOperandIsWritten) {
  const Found found("silu",
                    "%x: f32[8]\n%c: f32[8] = aten._to_copy(%x, dtype=f32)\n"
                    "%w: f32[8] = aten.add_.Tensor(%x, 1)\n%s: f32[8] = aten.sigmoid(%c)\n"
                    "%y: f32[8] = aten.mul.Tensor(%w, %s)\nreturn %y\n");
  EXPECT_FALSE(found.any_legal());
}

TEST(KnownFaults, T13EqualOperatorsBeforeAndAfterAWriteAreTwoValues) {
  const Found found("silu",
                    "%x: f32[8]\n%a: f32[8] = aten.relu(%x)\n"
                    "%w: f32[8] = aten.add_.Tensor(%x, 1)\n%b: f32[8] = aten.relu(%x)\n"
                    "%s: f32[8] = aten.sigmoid(%a)\n%y: f32[8] = aten.mul.Tensor(%b, %s)\n"
                    "return %y\n");
  EXPECT_THAT(found.rules(), IsEmpty());
}

TEST(KnownFaults, T14ASumThatWritesTheResidualIsRefused) {
  const Found found("drop_path_add",
                    "%x: f32[4,8,2,2]\n%r: f32[4,8,2,2]\n%e: f32[4,1,1,1]\n"
                    "%m: f32[4,1,1,1] = aten.bernoulli(%e)\n"
                    "%p: f32[4,8,2,2] = aten.mul.Tensor(%x, %m)\n"
                    "%y: f32[4,8,2,2] = aten.add_.Tensor(%r, %p)\nreturn %y\n");
  ASSERT_THAT(found.report.matches, SizeIs(1));
  EXPECT_TRUE(found.refused_for(8));
}

std::string conv_batch_norm(std::string_view more, std::string_view grad) {
  return fmt::format(
      "%x: f32[2,8,4,4]\n%w: f32[4,8,1,1]{1}\n%a: f32[4]\n%b: f32[4]\n%c: f32[4]\n%d: f32[4]\n"
      "%h: f32[2,4,4,4]{1} = aten.convolution(%x, %w, None, [1, 1], [0, 0], [1, 1], False, "
      "[0, 0], 1)\n"
      "%y: f32[2,4,4,4], %e: f32[0], %f: f32[0] = aten.native_batch_norm(%h, %a, %b, %c, %d, "
      "False, 0.1, 1e-05)\n{0}return %y\n",
      more, grad);
}

TEST(KnownFaults, T15AWeightThatIsUsedWithoutItsBatchNormIsNotFolded) {
  EXPECT_FALSE(Found("conv_batch_norm", conv_batch_norm("", "")).refused_for(30));
  const Found twice(
      "conv_batch_norm",
      conv_batch_norm("%z: f32[2,4,4,4] = aten.convolution(%x, %w, None, [1, 1], [0, 0], [1, 1], "
                      "False, [0, 0], 1)\n",
                      ""));
  EXPECT_TRUE(twice.refused_for(30));
  EXPECT_TRUE(Found("conv_batch_norm", conv_batch_norm("", " requires_grad")).refused_for(30));
}

TEST(KnownFaults, T15NothingIsFoldedInTraining) {
  std::string text = conv_batch_norm("", "");
  text.replace(text.find("False, 0.1"), 5, "True");
  EXPECT_THAT(Found("conv_batch_norm", text).rules(), IsEmpty());
}

TEST(KnownFaults, T18AnInPlaceOperatorInsideAFunctionIsRefused) {
  const Found found("silu",
                    "%x: f32[8] requires_grad\nfunction Swish #3 {\n"
                    "  %s: f32[8] = aten.sigmoid(%x)\n  %y: f32[8] = aten.mul_.Tensor(%x, %s)\n}\n"
                    "return %y\n");
  EXPECT_FALSE(found.any_legal());
  EXPECT_TRUE(found.refused_for(8));
}

TEST(KnownFaults, T30ACubeThatTwoChainsShareIsNotFusedAway) {
  const auto chain = [](std::string_view name) {
    return fmt::format(
        "%a{0}: f32[8] = aten.mul.Tensor(%c, 0.044715)\n%b{0}: f32[8] = aten.add.Tensor(%x, "
        "%a{0})\n"
        "%d{0}: f32[8] = aten.mul.Tensor(%b{0}, 0.7978845608028654)\n"
        "%e{0}: f32[8] = aten.tanh(%d{0})\n%f{0}: f32[8] = aten.add.Tensor(%e{0}, 1)\n"
        "%g{0}: f32[8] = aten.mul.Tensor(%x, 0.5)\n"
        "%h{0}: f32[8] = aten.mul.Tensor(%g{0}, %f{0})\n",
        name);
  };
  const Found found("gelu_tanh", "%x: f32[8]\n%c: f32[8] = aten.pow.Tensor_Scalar(%x, 3)\n" +
                                     chain("1") + chain("2") + "return %h1, %h2\n");
  ASSERT_THAT(found.report.matches, SizeIs(2));
  EXPECT_FALSE(found.any_legal());
  EXPECT_TRUE(found.refused_for(1));
}

TEST(KnownFaults, T31NoTargetWritesAnInput) {
  for (const Rule& rule : builtin_rules().rules)
    for (const Target& target : rule.targets) {
      const graph::Schema* schema = graph::SchemaTable::builtin().find(target.op);
      EXPECT_FALSE(target.op.ends_with("_")) << rule.name;
      if (!schema) continue;
      for (const graph::SchemaArgument& argument : schema->arguments)
        EXPECT_FALSE(argument.is_write) << rule.name << ": " << target.op;
    }
}

TEST(KnownFaults, T34AMaskIsAnInputOfTheMatch) {
  const Found found("attention", attention(kTransposed, "0.5", kMasked));
  ASSERT_THAT(found.report.matches, SizeIs(1));
  EXPECT_EQ(found.report.matches[0].inputs[3], found.value("mask"));
  // A row that is masked whole is NaN by the chain and 0 by the operator.
  EXPECT_THAT(found.report.matches[0].refusals.back().reason, HasSubstr("excludes whole"));
  const Found without("attention",
                      attention(kTransposed, "0.5", "%m: f32[8,6,6] = aten.alias(%c)\n"));
  ASSERT_THAT(without.report.matches, SizeIs(1));
  EXPECT_EQ(without.report.matches[0].inputs[3], graph::kNone);
}

TEST(KnownFaults, T36ACopyIntoAnInnerValueIsNotReordered) {
  const Found found("silu",
                    "%x: f32[8]\n%z: f32[8]\n%s: f32[8] = aten.sigmoid(%x)\n"
                    "%c: f32[8] = aten.copy_(%s, %z)\n"
                    "%y: f32[8] = aten.mul.Tensor(%x, %s)\nreturn %y\n");
  EXPECT_FALSE(found.any_legal());
}

TEST(KnownFaults, T37TheBranchWithTheMaskIsTheFirstInput) {
  for (const std::string_view sum : {"%p, %r", "%r, %p"}) {
    const Found found("drop_path_add",
                      fmt::format("%x: f32[4,8]\n%r: f32[4,8]\n%e: f32[4,1]\n"
                                  "%m: f32[4,1] = aten.bernoulli(%e)\n"
                                  "%p: f32[4,8] = aten.mul.Tensor(%x, %m)\n"
                                  "%y: f32[4,8] = aten.add.Tensor({})\nreturn %y\n",
                                  sum));
    ASSERT_THAT(found.report.matches, SizeIs(1));
    EXPECT_THAT(found.report.matches[0].inputs,
                ElementsAre(found.value("x"), found.value("r"), found.value("m")));
  }
}

// ---- group C of the collected cases ----

std::string rms_norm(int width, std::string_view eps, std::string_view weight) {
  return fmt::format(
      "%x: f32[4,{0}]\n%w: f32[{0}]\n%q: f32[4,{0}] = aten.pow.Tensor_Scalar(%x, 2)\n"
      "%m: f32[4,1] = aten.mean.dim(%q, [-1], keepdim=True)\n"
      "%e: f32[4,1] = aten.add.Tensor(%m, {1})\n%r: f32[4,1] = aten.rsqrt(%e)\n"
      "%h: f32[4,{0}] = aten.mul.Tensor(%x, %r)\n{2}"
      "%y: f32[4,{0}] = aten.mul.Tensor(%h, %v)\nreturn %y\n",
      width, eps, weight);
}

TEST(KnownFaults, C9AWeightOfOnePlusWIsARuleOfItsOwn) {
  const std::string text = rms_norm(8, "1e-06", "%v: f32[8] = aten.add.Tensor(%w, 1)\n");
  const Found offset("rms_norm_offset", text);
  ASSERT_THAT(offset.report.matches, SizeIs(1));
  EXPECT_EQ(offset.report.matches[0].inputs[1], offset.value("w"));
  // The rule without an offset takes the sum, never w.
  for (const Match& match : Found("rms_norm", text).report.matches)
    EXPECT_NE(match.inputs[1], offset.value("w"));
}

TEST(KnownFaults, C10AndC117EachNormHasItsOwnEpsAndWidth) {
  for (const auto& [width, eps, value] :
       {std::tuple(64, "1e-05", 1e-5), std::tuple(128, "1e-06", 1e-6),
        std::tuple(8, "0.01", 1e-2)}) {
    const Found found(
        "rms_norm",
        rms_norm(width, eps, "%v: f32[" + std::to_string(width) + "] = aten.alias(%w)\n"));
    ASSERT_THAT(found.report.matches, SizeIs(1)) << eps;
    EXPECT_DOUBLE_EQ(found.number("eps"), value);
    EXPECT_EQ(found.number("n"), width);
  }
}

TEST(KnownFaults, C10EpsOutsideOfTheRootIsNoMatch) {
  EXPECT_THAT(Found("layer_norm", layer_norm("", "[-1]",
                                             "%e: f32[4,6,1] = aten.sqrt(%v)\n"
                                             "%r: f32[4,6,1] = aten.add.Tensor(%e, 1e-05)\n"))
                  .rules(),
              IsEmpty());
}

TEST(KnownFaults, C11AProducersOtherReaderKeepsItsValue) {
  const Found found("silu",
                    "%x: f32[8]\n%h: f32[8] = aten.relu(%x)\n%s: f32[8] = aten.sigmoid(%h)\n"
                    "%y: f32[8] = aten.mul.Tensor(%h, %s)\n%z: f32[8] = aten.add.Tensor(%y, %h)\n"
                    "return %z\n");
  ASSERT_THAT(found.report.matches, SizeIs(1));
  EXPECT_THAT(found.report.matches[0].nodes, ElementsAre(1, 2));  // relu stays outside
}

TEST(KnownFaults, C100AttentionOnImagesIsNeverReplaced) {
  for (const Rule& rule : builtin_rules().rules)
    if (rule.name.starts_with("attention")) {
      EXPECT_NE(rule.only_found, "") << rule.name;
    }
}

TEST(KnownFaults, C102ANormOverSeveralAxesIsNotThatOfTheLast) {
  EXPECT_THAT(Found("layer_norm", layer_norm("", "[-2, -1]", kRoot)).rules(), IsEmpty());
}

TEST(KnownFaults, C104AShortConstantOfGeluIsNoMatch) {
  const auto with = [](std::string_view root) {
    return Found("gelu", fmt::format("%x: f32[8]\n%d: f32[8] = aten.div.Tensor(%x, {})\n"
                                     "%e: f32[8] = aten.erf(%d)\n"
                                     "%p: f32[8] = aten.add.Tensor(%e, 1)\n"
                                     "%h: f32[8] = aten.mul.Tensor(%x, 0.5)\n"
                                     "%y: f32[8] = aten.mul.Tensor(%h, %p)\nreturn %y\n",
                                     root))
        .rules();
  };
  EXPECT_THAT(with("1.4142135623730951"), ElementsAre("gelu"));
  EXPECT_THAT(with("1.41421"), IsEmpty());
  EXPECT_THAT(with("1.4"), IsEmpty());
}

std::string rope(std::string_view a, std::string_view b, std::string_view join) {
  return fmt::format(
      "%x: f32[2,6,8]\n%c: f32[6,8]\n%s: f32[6,8]\n"
      "%a: f32[2,6,4] strides[48,8,{3}] = aten.slice.Tensor(%x, 2, {0})\n"
      "%b: f32[2,6,4] strides[48,8,{3}] offset[{4}] = aten.slice.Tensor(%x, 2, {1})\n"
      "%n: f32[2,6,4] = aten.neg(%b)\n{2}"
      "%u: f32[2,6,8] = aten.mul.Tensor(%x, %c)\n%v: f32[2,6,8] = aten.mul.Tensor(%t, %s)\n"
      "%y: f32[2,6,8] = aten.add.Tensor(%u, %v)\nreturn %y\n",
      a, b, join, a.find(", 2") != a.npos ? 2 : 1, b.starts_with("1") ? 1 : 4);
}
constexpr std::string_view kJoined = "%t: f32[2,6,8] = aten.cat([%n, %a], -1)\n";
constexpr std::string_view kInterleaved =
    "%o: f32[2,6,4,2] = aten.stack([%n, %a], -1)\n%t: f32[2,6,8] = aten.view(%o, [2, 6, 8])\n";
constexpr std::string_view kEnd = "9223372036854775807";

TEST(KnownFaults, C107TheTwoRotaryLayoutsAreToldApart) {
  const std::string halves = rope("0, 4", fmt::format("4, {}", kEnd), kJoined);
  const std::string pairs =
      rope(fmt::format("0, {}, 2", kEnd), fmt::format("1, {}, 2", kEnd), kInterleaved);
  const std::string mixed =
      rope(fmt::format("0, {}, 2", kEnd), fmt::format("1, {}, 2", kEnd), kJoined);
  EXPECT_THAT(Found("rope", halves).rules(), ElementsAre("rope"));
  EXPECT_THAT(Found("rope", pairs).rules(), IsEmpty());
  EXPECT_THAT(Found("rope", mixed).rules(), IsEmpty());
  EXPECT_THAT(Found("rope_interleaved", pairs).rules(), ElementsAre("rope_interleaved"));
  EXPECT_THAT(Found("rope_interleaved", halves).rules(), IsEmpty());
  EXPECT_THAT(Found("rope_interleaved", mixed).rules(), IsEmpty());
  // Another split than the middle.
  EXPECT_THAT(Found("rope", rope("0, 4", fmt::format("3, {}", kEnd), kJoined)).rules(), IsEmpty());
}

TEST(KnownFaults, C108OneTensorIsTurnedAlone) {
  const Found found("rope", rope("0, 4", fmt::format("4, {}", kEnd), kJoined));
  ASSERT_THAT(found.report.matches, SizeIs(1));
  EXPECT_THAT(found.report.matches[0].inputs,
              ElementsAre(found.value("x"), found.value("c"), found.value("s")));
}

TEST(KnownFaults, C116TheOrderOfTheRulesDoesNotMatter) {
  const graph::Graph g = parse(
      "%x: f32[2,8,4,4]\n%c: f32[2,8,1,1]\n%a: f32[2,8,1,1] = aten.sigmoid(%c)\n"
      "%b: f32[2,8,1,1] = aten.mul.Tensor(%c, %a)\n%s: f32[2,8,1,1] = aten.sigmoid(%b)\n"
      "%y: f32[2,8,4,4] = aten.mul.Tensor(%x, %s)\n%p: f32[2,8,4,4] = aten.mul.Tensor(%y, 0.5)\n"
      "%t: f32[2,8,4,4] = aten.tanh(%y)\n%z: f32[2,8,4,4] = aten.mul.Tensor(%p, %t)\nreturn %z\n");
  const auto told = [&](const Rulebook& book) {
    std::vector<std::string> all;
    const MatchReport report = find_matches(g, book);
    for (const Match& match : report.matches)
      all.push_back(fmt::format("{} {} {}", match.rule->name, match.nodes.back(),
                                match.refusals.empty() ? "" : match.refusals[0].reason));
    std::ranges::sort(all);
    return all;
  };
  Rulebook reversed = builtin_rules();
  std::ranges::reverse(reversed.rules);
  EXPECT_EQ(told(builtin_rules()), told(reversed));
  EXPECT_THAT(told(reversed), SizeIs(2));
}

TEST(KnownFaults, C121IntegersAreNotTheFloatingChain) {
  EXPECT_FALSE(Found("silu",
                     "%x: i64[8]\n%s: f32[8] = aten.sigmoid(%x)\n"
                     "%y: f32[8] = aten.mul.Tensor(%x, %s)\nreturn %y\n")
                   .any_legal());
}

TEST(KnownFaults, C126ATrainableSlopeIsNeverSilu) {
  const std::string_view text =
      "%x: f32[8]\n%beta: f32[1] requires_grad parameter\n"
      "%b: f32[8] requires_grad = aten.mul.Tensor(%x, %beta)\n"
      "%s: f32[8] requires_grad = aten.sigmoid(%b)\n"
      "%y: f32[8] requires_grad = aten.mul.Tensor(%x, %s)\nreturn %y\n";
  EXPECT_THAT(Found("silu", text).rules(), IsEmpty());
  const Found found("swish_learned", text);
  ASSERT_THAT(found.report.matches, SizeIs(1));
  EXPECT_THAT(found.report.matches[0].inputs, ElementsAre(found.value("x"), found.value("beta")));
}

}  // namespace
}  // namespace opfuse::match
