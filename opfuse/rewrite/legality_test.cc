// Each refused case stands beside a twin that differs in that one thing and is planned.

#include "opfuse/rewrite/legality.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "opfuse/rewrite/test_case.h"

namespace opfuse::rewrite {
namespace {

using ::testing::HasSubstr;

struct Refusing {
  std::string name;
  int row;
  std::string reason;
  std::function<void(Case&)> change;
  bool applies = false;  // a case of Function.apply
};

class Legality : public ::testing::TestWithParam<Refusing> {};

TEST_P(Legality, RefusesWithItsRow) {
  Case changed = GetParam().applies ? Case::apply_case() : Case::inline_case();
  ASSERT_EQ(changed.refusal().row, -1) << changed.refusal().reason;
  GetParam().change(changed);
  EXPECT_EQ(changed.refusal().row, GetParam().row) << changed.refusal().reason;
  EXPECT_THAT(changed.refusal().reason, HasSubstr(GetParam().reason));
}

INSTANTIATE_TEST_SUITE_P(
    Source, Legality,
    ::testing::Values(
        Refusing{"OptedOut", 0, "opfuse: off", [](Case& c) { c.facts.opted_out = true; }},
        Refusing{"NoPositions", 0, "3.11", [](Case& c) { c.facts.has_positions = false; }},
        Refusing{"Changed", 36, "its source was changed",
                 [](Case& c) {
                   c.facts.source_matches = false;
                   c.facts.source_problem = "its source was changed since it was imported";
                 }},
        Refusing{"ModuleLevel", 43, "module-level",
                 [](Case& c) { c.facts.is_module_level = true; }},
        Refusing{"Generator", 43, "generator", [](Case& c) { c.facts.is_generator = true; }},
        Refusing{"Coroutine", 43, "coroutine", [](Case& c) { c.facts.is_coroutine = true; }},
        Refusing{"Nested", 43, "inside another", [](Case& c) { c.facts.is_nested = true; }},
        Refusing{"Running", 43, "still running", [](Case& c) { c.facts.running_now = true; }},
        Refusing{"NoFunction", 43, "no function", [](Case& c) { c.facts.functions_found = 0; }},
        Refusing{"Compiled", 38, "compiled", [](Case& c) { c.facts.scripted_or_compiled = true; }},
        Refusing{"FrameMagic", 3, "own frame", [](Case& c) { c.facts.uses_frame_magic = true; }},
        Refusing{"Kept", 3, "self.last = s",
                 [](Case& c) { c.facts.kept_names = {"self.last = s"}; }},
        Refusing{"Hooked", 4, "Sigmoid has",
                 [](Case& c) { c.facts.hook_notes = {"Sigmoid has forward_hooks"}; }},
        Refusing{"NoSpan", 36, "other statements",
                 [](Case& c) { c.facts.span_problem = "other statements stand between"; }},
        Refusing{"Rebound", 33, "bound anew",
                 [](Case& c) { c.facts.reads[0].rebound_inside = true; }}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Proof, Legality,
    ::testing::Values(
        Refusing{"Property", 36, "property", [](Case& c) { c.facts.reads[0].kind = "property"; }},
        Refusing{"Attribute", 36, "plain nn.Module",
                 [](Case& c) { c.facts.reads[0].kind = "attribute"; }},
        Refusing{"Global", 36, "may change", [](Case& c) { c.facts.reads[0].kind = "global"; }},
        Refusing{"Closure", 36, "may change", [](Case& c) { c.facts.reads[0].kind = "closure"; }},
        Refusing{"OtherName", 44, "something else",
                 [](Case& c) { c.facts.operations[0].callee = "unknown:torch.sigmoid"; }},
        Refusing{"ModuleCall", 37, "as a module",
                 [](Case& c) { c.facts.operations[0].callee = "module:torch.nn.Sigmoid"; }},
        Refusing{"OtherOperator", 36, "was recorded as",
                 [](Case& c) { c.facts.operations[0].callee = "torch.tanh"; }},
        Refusing{"TwoNames", 36, "only in the recorded calls",
                 [](Case& c) {
                   c.facts.reads.push_back({"z", "local", "", 1, false});
                   c.facts.operations[1].arguments[0] = "read:z";
                 }},
        Refusing{"Operand", 36, "another value",
                 [](Case& c) { c.facts.operations[1].arguments = {"op:0", "op:0"}; }},
        Refusing{"CallInside", 36, "neither a name",
                 [](Case& c) { c.facts.operations[0].arguments = {"other"}; }},
        Refusing{"ExtraOperation", 36, "not part of what was recorded",
                 [](Case& c) { c.facts.operations.push_back(c.facts.operations[1]); }},
        Refusing{"OperatorMissing", 36, "no operation of its own",
                 [](Case& c) { c.facts.operations.pop_back(); }},
        Refusing{"Part", 36, "not the whole expression", [](Case& c) { c.facts.span.end -= 1; }},
        Refusing{"Constant", 36, "another value",
                 [](Case& c) { c.facts.operations[1].arguments[0] = "const:2.0"; }}),
    [](const auto& info) { return info.param.name; });

// `x.float() * torch.sigmoid(x.float())`, where x is f32 in the record.
void cast_operands(Case& c) {
  std::vector<OperationFact>& operations = c.facts.operations;
  const OperationFact cast{operations[0].span, "Tensor.float", {"read:x"}};
  operations = {cast, operations[0], cast, operations[1]};
  operations[1].arguments = {"op:0"};
  operations[3].arguments = {"op:2", "op:1"};
}

// The value of the above, cast to `dtype` at last.
void cast_back(Case& c, const std::string& dtype) {
  cast_operands(c);
  c.facts.operations.push_back({c.facts.span, "Tensor.to", {"op:3", dtype}});
}

INSTANTIATE_TEST_SUITE_P(
    Casts, Legality,
    ::testing::Values(Refusing{"OfOperands", 16, "the dtype of f32, the fused operator's that of x",
                               cast_operands},
                      Refusing{"OfTheResult", 16, "they may differ at another call",
                               [](Case& c) { cast_back(c, "dtype:float32"); }},
                      Refusing{"OfOneOperand", 16, "the dtype of f32 and x",
                               [](Case& c) {
                                 cast_operands(c);
                                 c.facts.operations[3].arguments = {"read:x", "op:1"};
                               }},
                      Refusing{"OfAnotherValue", 36, "another value than the one recorded",
                               [](Case& c) {
                                 cast_operands(c);
                                 c.facts.operations[3].arguments = {"op:1", "op:1"};
                               }},
                      Refusing{"ToAnotherDtype", 36, "another value than the one recorded",
                               [](Case& c) {
                                 cast_operands(c);
                                 c.facts.operations[0] = {c.facts.operations[0].span,
                                                          "Tensor.to",
                                                          {"read:x", "dtype:bfloat16"}};
                               }},
                      Refusing{"ToNoFloatingDtype", 36, "not known",
                               [](Case& c) { cast_back(c, "dtype:int64"); }}),
    [](const auto& info) { return info.param.name; });

TEST(LegalityTwins, CastsBackToTheDtypeOfTheInputArePlanned) {
  Case back = Case::inline_case();
  cast_back(back, "dtypeof:read:x");
  EXPECT_EQ(back.refusal().row, -1) << back.refusal().reason;
}

INSTANTIATE_TEST_SUITE_P(
    Function, Legality,
    ::testing::Values(
        Refusing{"NotStraight", 25, "a branch",
                 [](Case& c) {
                   c.facts.function_straight_line = false;
                   c.facts.function_problem = "a branch";
                 },
                 true},
        Refusing{"Jvp", 26, "jvp", [](Case& c) { c.facts.function_has_jvp = true; }, true},
        Refusing{"Vmap", 26, "vmap", [](Case& c) { c.facts.function_has_vmap = true; }, true},
        Refusing{"Once", 26, "once_differentiable",
                 [](Case& c) { c.facts.function_once_differentiable = true; }, true},
        Refusing{"Apply", 44, "not torch's own",
                 [](Case& c) { c.facts.function_subclassed = true; }, true},
        Refusing{"OtherClass", 44, "where Swish.apply was recorded",
                 [](Case& c) { c.facts.operations[0].callee = "Function.apply:Other"; }, true},
        Refusing{"TwoArguments", 36, "one positional",
                 [](Case& c) { c.facts.operations[0].arguments = {"read:x", "read:y"}; }, true},
        Refusing{"Starred", 36, "not one value",
                 [](Case& c) { c.facts.operations[0].arguments = {"other"}; }, true},
        Refusing{"NotTheFunction", 36, "not the forward",
                 [](Case& c) { c.match().function_scope = graph::kNone; }, true},
        Refusing{"InnerEdit", 25, "caller is not the edit",
                 [](Case& c) { c.facts.span_kind = "expression"; }, true}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Plan, Legality,
    ::testing::Values(
        Refusing{"GraphRefusal", 5, "written between",
                 [](Case& c) { c.match().refusals = {{5, "x is written between its reads", 0}}; }},
        Refusing{"Class", 0, "--allow E2",
                 [](Case& c) { c.match().equivalence = match::Equivalence::kE2; }},
        Refusing{"Strict", 14, "--strict", [](Case& c) { c.options.strict = true; }},
        Refusing{"Vendor", 18, "no target of other",
                 [](Case& c) { c.options.target_vendor = "other"; }},
        Refusing{"Dtype", 18, "dtypes", [](Case& c) { c.rule.targets[1].dtypes = {DType::kBF16}; }},
        Refusing{"OtherDevice", 18, "cuda",
                 [](Case& c) {
                   c.rule.targets[1].device = "cpu";
                   c.options.device = "cuda";
                 }},
        Refusing{"NoFacts", 36, "nothing is known", [](Case& c) { c.facts.site = 7; }}),
    [](const auto& info) { return info.param.name; });

TEST(LegalityTwins, PassWhereTheRefusedOnesFail) {
  Case strict = Case::inline_case();
  strict.options.strict = true;
  strict.rule.domain.clear();
  EXPECT_EQ(strict.refusal().row, -1) << strict.refusal().reason;
  Case member = Case::inline_case();
  member.facts.reads[0].kind = "module_member";
  EXPECT_EQ(member.refusal().row, -1) << member.refusal().reason;
  Case argument = Case::apply_case();
  argument.facts.operations[0].arguments = {"expr"};
  EXPECT_EQ(argument.refusal().row, -1) << argument.refusal().reason;
  Case allowed = Case::inline_case();
  allowed.match().equivalence = allowed.options.allow = match::Equivalence::kE2;
  EXPECT_EQ(allowed.refusal().row, -1) << allowed.refusal().reason;
}

// An int call of the same line would be replaced too.
TEST(Legality, RefusesWhenAnotherOperatorRanAtTheSamePlace) {
  const std::string chain =
      "%x: f32[4]\n%i: i64[4]\n"
      "%s: f32[4] = aten.sigmoid(%x) @ m.py:3:15-31 (f)\n"
      "%y: f32[4] = aten.mul.Tensor(%x, %s) @ m.py:3:11-31 (f)\n";
  Case same(inline_facts(std::string(kInlineText)),
            chain + "%t: f32[4] = aten.sigmoid(%i) @ m.py:3:15-31 (f)\nreturn %y\n");
  EXPECT_EQ(same.refusal().row, 36);
  EXPECT_THAT(same.refusal().reason, HasSubstr("aten.sigmoid ran at the same place"));
  Case other(inline_facts(std::string(kInlineText)),
             chain + "%t: f32[4] = aten.sigmoid(%i) @ m.py:9:15-31 (f)\nreturn %y\n");
  EXPECT_EQ(other.refusal().row, -1) << other.refusal().reason;
}

TEST(Legality, RefusesACallThatCameAnotherWay) {
  Case other(
      apply_facts(std::string(kApplyText)),
      "%x: f32[4]\nfunction Swish #1 {\n"
      "  %s: f32[4] = aten.sigmoid(%x) @ m.py:9:5-9 (Swish.forward) < m.py:7:1-9 (g)\n"
      "  %y: f32[4] = aten.mul.Tensor(%x, %s) @ m.py:9:1-9 (Swish.forward) < m.py:7:1-9 (g)\n"
      "}\nreturn %y\n");
  EXPECT_EQ(other.refusal().row, 36);
  EXPECT_THAT(other.refusal().reason, HasSubstr("another place"));
}

// x / (1 + exp(-x)): reflected operators and constants, as PyTorch records them.
TEST(Legality, AccountsForReflectedOperatorsAndConstants) {
  const std::string text = "import torch\ndef f(x):\n    return x / (1 + torch.exp(-x))\n";
  const auto at = [&](std::string_view part) { return span_of(text, part); };
  SiteFacts facts = inline_facts(text + "# torch.sigmoid(x)", "x / (1 + torch.exp(-x))");
  facts.operations = {{at("-x"), "operator.neg", {"read:x"}},
                      {at("torch.exp(-x)"), "torch.exp", {"op:0"}},
                      {at("1 + torch.exp(-x)"), "operator.add", {"const:1", "op:1"}},
                      {at("x / (1 + torch.exp(-x))"), "operator.truediv", {"read:x", "op:2"}}};
  const std::string recorded =
      "%x: f32[4]\n"
      "%a: f32[4] = aten.neg(%x) @ m.py:3:30-32 (f)\n"
      "%b: f32[4] = aten.exp(%a) @ m.py:3:20-33 (f)\n"
      "%c: f32[4] = aten.add.Tensor(%b, 1) @ m.py:3:16-33 (f)\n"
      "%y: f32[4] = aten.div.Tensor(%x, %c) @ m.py:3:11-34 (f)\nreturn %y\n";
  Case passing(facts, recorded, {"a", "b", "c", "y"});
  EXPECT_EQ(passing.refusal().row, -1) << passing.refusal().reason;
  facts.operations[2].arguments[0] = "const:2";
  Case constant(facts, recorded, {"a", "b", "c", "y"});
  EXPECT_THAT(constant.refusal().reason, HasSubstr("a constant was recorded as something else"));
}

// `torch.sigmoid(x * 1.5)`, for a rule with a number that no name stands for.
TEST(Legality, ANameBesideAConstantIsATensor) {
  const std::string text = "import torch\ndef f(x):\n    return torch.sigmoid(x * 1.5)\n";
  SiteFacts facts = inline_facts(text + "# torch.sigmoid(x)", "torch.sigmoid(x * 1.5)");
  facts.reads = {{"x", "local", "", 1, false}, {"torch", "global", "torch", 1, false}};
  facts.operations = {{span_of(text, "x * 1.5"), "operator.mul", {"read:x", "const:1.5"}},
                      {facts.span, "torch.sigmoid", {"op:0"}}};
  const std::string recorded =
      "%x: f32[4]\n"
      "%a: f32[4] = aten.mul.Tensor(%x, 1.5) @ m.py:3:25-32 (f)\n"
      "%y: f32[4] = aten.sigmoid(%a) @ m.py:3:11-33 (f)\nreturn %y\n";
  const auto reason = [&] {
    Case c(facts, recorded, {"a", "y"});
    c.rule.parameters.push_back({"scale", "float", false, false});
    c.match().inputs.push_back(graph::kNone);
    c.match().numbers = {std::nullopt, 1.5};
    return c.refusal().reason;
  };
  EXPECT_EQ(reason(), "planned");
  facts.operations[0].arguments = {"const:1.5", "read:x"};
  EXPECT_EQ(reason(), "planned");
  facts.operations[0].arguments = {"read:x", "const:2.5"};
  EXPECT_THAT(reason(), HasSubstr("a constant was recorded as something else"));
}

}  // namespace
}  // namespace opfuse::rewrite
