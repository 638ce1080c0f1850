#include "opfuse/match/rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "opfuse/match/rule_lower.h"
#include "opfuse/match/test_graphs.h"

namespace opfuse::match {
namespace {

using testing::builtin_rules;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::parse;
using testing::rules_from;
using ::testing::SizeIs;
using ::testing::StartsWith;

std::string error_of(std::string_view text) {
  Result<std::vector<Rule>> rules = parse_rules(text, "r.rule", graph::SchemaTable::builtin());
  return rules.ok() ? "no error" : rules.error().message;
}

// A rule with this composition line and the clauses after it.
std::string rule(std::string_view line, std::string_view clauses = "") {
  return "op f(x: T) -> T\n  composition\n    " + std::string(line) + "\n" + std::string(clauses) +
         "  target aten.silu(x)\n";
}

TEST(Rule, ReadsSilu) {
  const Rule* silu = builtin_rules().find("silu");
  ASSERT_NE(silu, nullptr);
  EXPECT_EQ(silu->version, 1);
  EXPECT_EQ(silu->domain, "floating");
  ASSERT_THAT(silu->parameters, SizeIs(1));
  EXPECT_EQ(silu->parameters[0].name, "x");
  EXPECT_THAT(silu->spellings, SizeIs(3));
  ASSERT_THAT(silu->targets, SizeIs(2));
  EXPECT_EQ(silu->targets[0].op, "aten.silu");
  EXPECT_EQ(silu->targets[0].python, "torch.nn.functional.silu");
  EXPECT_EQ(silu->targets[0].backward, "aten.silu_backward(grad, x)");
  EXPECT_THAT(silu->targets[0].arguments, ElementsAre("x"));
  EXPECT_EQ(silu->targets[1].op, "npu.npu_silu");
  EXPECT_EQ(silu->targets[1].device, "npu");
  EXPECT_THAT(silu->source, StartsWith("op silu(x: T) -> T"));
  EXPECT_THAT(silu->source, HasSubstr("torch_npu.npu_silu"));
}

TEST(Rule, ACompositionIsAGraphOfItsParameters) {
  const graph::Graph& g = builtin_rules().find("silu")->composition.graph;
  ASSERT_THAT(g.nodes, SizeIs(2));
  EXPECT_EQ(g.nodes[0].op, "aten.sigmoid");
  EXPECT_EQ(g.nodes[1].op, "aten.mul.Tensor");
  EXPECT_EQ(g.values[0].name, "x");
  EXPECT_THAT(g.results, SizeIs(1));
}

TEST(Rule, ReadsConditionsDevicesAndClasses) {
  Rulebook book = rules_from(
      "op f(a: T, b: T) -> T  where T in f32, bf16 and a is not b\n  version 3\n  composition\n"
      "    t = a * sigmoid(b)\n    return t + t\n"
      "  spelling \"other\" class E3\n    return 2 * (a * sigmoid(b))\n"
      "  near \"n\" if a * sigmoid(c) where shape(a) != shape(c)\n    because \"{c}\"\n"
      "  target aten.mul.Tensor(a, b) on cuda where T is f32\n  target mine.f(a, 2, -0.5, \"s\", "
      "True)\n");
  ASSERT_THAT(book.rules, SizeIs(1));
  const Rule& f = book.rules[0];
  EXPECT_EQ(f.version, 3);
  EXPECT_THAT(f.dtypes, ElementsAre(DType::kF32, DType::kBF16));
  EXPECT_THAT(f.guards, SizeIs(1));
  EXPECT_EQ(f.spellings[0].equivalence, Equivalence::kE3);
  EXPECT_THAT(f.near[0].others, ElementsAre("c"));
  EXPECT_EQ(f.near[0].guards[0].kind, Guard::Kind::kOtherShape);
  EXPECT_EQ(f.targets[0].device, "cuda");
  EXPECT_THAT(f.targets[0].dtypes, ElementsAre(DType::kF32));
  EXPECT_THAT(f.targets[1].arguments, ElementsAre("a", "2", "-0.5", "\"s\"", "True"));
}

TEST(Rule, FoldsConstants) {
  Rulebook book = rules_from(rule("return x * sqrt(2 / pi) ** 2 + -(3 - 1)"));
  const graph::Graph& g = book.rules[0].composition.graph;
  ASSERT_THAT(g.nodes, SizeIs(2));
  EXPECT_NEAR(*g.values[g.nodes[0].inputs[1].values[0]].meta.number, 0.6366197723675814, 1e-15);
  EXPECT_EQ(g.values[g.nodes[1].inputs[1].values[0]].meta.number, -2);
}

TEST(Rule, PassesArgumentsByTheOperatorsSchema) {
  Rulebook book =
      rules_from(rule("return x * mean(x, dim=-1, keepdim) + gelu(x, approximate=\"tanh\")"));
  const graph::Graph& g = book.rules[0].composition.graph;
  EXPECT_EQ(g.nodes[0].inputs[1].attr, (graph::Attr{std::vector<int64_t>{-1}}));
  EXPECT_EQ(g.nodes[0].inputs[2].attr, graph::Attr{true});
}

TEST(Rule, TwoInputsThatMustDifferDoNotMatchTheSameValue) {
  Rulebook book = rules_from(
      "op f(a: T, b: T) -> T  where a is not b\n  composition\n    return a * sigmoid(b)\n"
      "  target mine.f(a, b)\n");
  EXPECT_THAT(
      find_matches(
          parse(
              "%x: f32[8]\n%s: f32[8] = aten.sigmoid(%x)\n%y: f32[8] = aten.mul.Tensor(%x, %s)\n"),
          book)
          .matches,
      IsEmpty());
  EXPECT_THAT(find_matches(parse("%x: f32[8]\n%z: f32[8]\n%s: f32[8] = aten.sigmoid(%x)\n"
                                 "%y: f32[8] = aten.mul.Tensor(%z, %s)\n"),
                           book)
                  .matches,
              SizeIs(1));
}

TEST(Rule, SeveralResultsMatchAtOnce) {
  Rulebook book = rules_from(
      "op f(x: T) -> (y: T, s: T)\n  composition\n    s = sigmoid(x)\n    return x * s, s\n"
      "  target mine.f(x)\n");
  graph::Graph g = parse(
      "%x: f32[8]\n%s: f32[8] = aten.sigmoid(%x)\n%y: f32[8] = aten.mul.Tensor(%x, %s)\n"
      "return %y, %s\n");
  MatchReport report = find_matches(g, book);
  ASSERT_THAT(report.matches, SizeIs(1));
  EXPECT_THAT(report.matches[0].outputs, ElementsAre(g.nodes[1].outputs[0], g.nodes[0].outputs[0]));
}

TEST(RuleErrors, SayWhereWhatWasExpectedAndWhatWasFound) {
  EXPECT_EQ(error_of("rule f"), "r.rule:1:1: expected 'op' or 'extend', found 'rule'");
  EXPECT_EQ(error_of("op f(x T) -> T\n"), "r.rule:1:8: expected ':', found 'T'");
  EXPECT_EQ(error_of("op f(x: T) -> T\ncomposition\n"),
            "r.rule:2:1: expected an indented block, found 'composition'");
  EXPECT_EQ(error_of(rule("return x *")),
            "r.rule:3:15: expected an expression, found the end of the line");
  EXPECT_EQ(error_of(rule("return x * w")),
            "r.rule:3:16: expected a parameter or a binding, found 'w'");
  EXPECT_EQ(error_of(rule("return sigmoid(x, 3)")),
            "r.rule:3:12: aten.sigmoid has no further argument ''");
  EXPECT_EQ(error_of(rule("return 2 * 3")),
            "r.rule:3:14: expected a tensor as the result, found a number");
  EXPECT_EQ(error_of(rule("return x")), "r.rule:2:1: 'x' is returned as it is");
  EXPECT_EQ(error_of(rule("return sigmoid(x), x * 2")),
            "r.rule:2:1: rule f: expected 1 results, found 2");
  EXPECT_EQ(error_of(rule("return x * 2", "  version one\n")),
            "r.rule:4:11: expected the version, a whole number, found 'one'");
  EXPECT_EQ(error_of(rule("return x * 2", "  domain reals\n")),
            "r.rule:4:10: expected the domain: floating, found 'reals'");
  EXPECT_EQ(error_of(rule("return x * 2", "  colour red\n")),
            "r.rule:4:3: expected version, composition, spelling, near, domain, requires, "
            "found, folds or target, found 'colour'");
  EXPECT_EQ(error_of(rule("return x * 2", "   domain floating\n")),
            "r.rule:4:4: expected an indentation of 2, found 3");
  EXPECT_EQ(error_of(rule("return x $ 2")),
            "r.rule:3:14: expected a name, a number, a string or a sign, found '$'");
  EXPECT_EQ(error_of(rule("return x * 1.2.3")), "r.rule:3:16: expected a number, found '1.2.3'");
  EXPECT_EQ(error_of("op f(x: T) -> T\n  composition\n    return x * 2\n"),
            "r.rule:1:1: rule f: expected a target");
  EXPECT_EQ(error_of("op f(x: T) -> T\n  target aten.silu(x)\n"),
            "r.rule:1:1: rule f: expected a composition");
  EXPECT_EQ(error_of("op f(x: T, x: T) -> T\n"), "r.rule:1:12: parameter 'x' is named twice");
  EXPECT_EQ(
      error_of("op f(x: T, y: T) -> T\n  composition\n    return x * 2\n  target aten.silu(x)\n"),
      "r.rule:2:1: 'y' is not used");
  EXPECT_EQ(error_of("op f(x: T) -> T\n  composition\n    return x * 2\n  target aten.sillu(x)\n"),
            "r.rule:1:1: rule f: expected an operator as target, found 'aten.sillu'");
}

TEST(RuleErrors, OfTypesOptionalPartsAndNumbers) {
  EXPECT_EQ(error_of("op f(x: tensor) -> T\n"),
            "r.rule:1:9: expected a type: a capital letter, a dtype, float, int or bool, found "
            "'tensor'");
  EXPECT_EQ(error_of("op f(x: T[n, +]) -> T\n"),
            "r.rule:1:14: expected a dimension or ']', found '+'");
  EXPECT_EQ(error_of("op f(x: T, e: float?) -> T\n"),
            "r.rule:1:12: expected a tensor's type for 'e', found float");
  EXPECT_EQ(error_of("op f(x: T, w: T?) -> T\n  composition\n    return x * w\n"
                     "  target mine.f(x, w)\n"),
            "r.rule:3:16: 'w' may be absent: expected '… if w else …'");
  EXPECT_EQ(error_of(rule("return x * 2 if x else x")),
            "r.rule:3:12: expected an optional parameter after 'if', found 'x'");
  EXPECT_EQ(error_of("op f(x: T, e: float) -> T\n  composition\n    return x * 2\n"
                     "  target mine.f(x, e)\n"),
            "r.rule:2:1: 'e' is not used");
  EXPECT_EQ(error_of(rule("return x ** x")),
            "r.rule:3:17: expected a number as the exponent, found a tensor");
  EXPECT_EQ(error_of(rule("return to(x, dtype(y))")),
            "r.rule:3:24: expected a tensor parameter, found 'y'");
  EXPECT_EQ(error_of(rule("return to(x, 3)")),
            "r.rule:3:18: expected a dtype such as f32, or dtype(x)");
  EXPECT_EQ(error_of(rule("a, b = chunk(x, 3)\n    return a * b")),
            "r.rule:3:12: expected chunk(x, 2, dim) for 2 names");
  EXPECT_EQ(error_of(rule("a, b = exp(x)\n    return a * b")),
            "r.rule:3:12: expected 1 names for the results of exp, found 2");
  EXPECT_EQ(error_of("op f(x: T, y: T) -> (T, T)\n  composition\n    return exp(x), exp(y)\n"
                     "  target mine.f(x, y)\n"),
            "r.rule:2:1: composition computes something that shares no value with the rest of it");
  EXPECT_EQ(error_of(rule("a = exp(x)\n    return x * 2")),
            "r.rule:2:1: composition computes aten.exp, which nothing uses");
}

TEST(Rulebook, UserFilesFollowAndMustNotRepeatAName) {
  std::string path = ::testing::TempDir() + "/user.rule";
  std::ofstream(path)
      << "op mine(x: T) -> T\n  composition\n    return x * tanh(x)\n  target mine.f(x)\n";
  Result<Rulebook> book = load_rulebook({path}, graph::SchemaTable::builtin());
  ASSERT_TRUE(book.ok()) << book.error().message;
  EXPECT_EQ(book->rules.back().name, "mine");
  EXPECT_THAT(load_rulebook({path, path}, graph::SchemaTable::builtin()).error().message,
              HasSubstr("rule mine is defined twice"));
  std::ofstream(path) << "extend nothing\n  target mine.f(x)\n";
  EXPECT_THAT(load_rulebook({path}, graph::SchemaTable::builtin()).error().message,
              HasSubstr("found no rule 'nothing'"));
  std::ofstream(path) << "extend silu\n  target mine.f(y)\n";
  EXPECT_THAT(load_rulebook({path}, graph::SchemaTable::builtin()).error().message,
              HasSubstr("takes something that is no parameter"));
  EXPECT_THAT(load_rulebook({"/nowhere.rule"}, graph::SchemaTable::builtin()).error().message,
              HasSubstr("/nowhere.rule: expected a rule file"));
}

struct Example {
  std::string kind, text;
};

std::vector<Example> examples(const std::string& path) {
  std::ifstream file(path);
  std::vector<Example> result;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("```")) {
      inside = !inside;
      if (inside) result.push_back({line.substr(3), ""});
    } else if (inside) {
      result.back().text += line + "\n";
    }
  }
  return result;
}

TEST(RulebookPage, EveryExampleIsAsItSays) {
  std::vector<Example> all = examples(std::string(OPFUSE_SOURCE_DIR) + "/docs/rulebook.md");
  ASSERT_GE(all.size(), 5u);
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].kind == "rule") {
      EXPECT_EQ(error_of(all[i].text), "no error") << all[i].text;
    } else if (all[i].kind == "refused") {
      ASSERT_LT(i + 1, all.size());
      EXPECT_EQ(error_of(all[i].text) + "\n", "r.rule:" + all[i + 1].text) << all[i].text;
    }
  }
}

TEST(RulebookPage, NamesEveryFunction) {
  std::ifstream file(std::string(OPFUSE_SOURCE_DIR) + "/docs/rulebook.md");
  std::stringstream page;
  page << file.rdbuf();
  for (const RuleFunction& function : rule_functions()) {
    EXPECT_NE(page.str().find(function.name), std::string::npos) << function.name;
    EXPECT_NE(graph::SchemaTable::builtin().find(function.overload), nullptr) << function.overload;
  }
}

}  // namespace
}  // namespace opfuse::match
