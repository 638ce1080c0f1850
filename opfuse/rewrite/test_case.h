#pragma once
// A small chain with its graph, match, rule and facts, for the tests of rewrite/. Each test changes
// one thing of a case that is planned.

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "opfuse/graph/schema.h"
#include "opfuse/graph/text.h"
#include "opfuse/rewrite/plan.h"

namespace opfuse::rewrite {

inline Span span_of(std::string_view text, std::string_view part) {
  const size_t begin = text.rfind(part);
  EXPECT_NE(begin, text.npos) << "\"" << part << "\" in the text of the case";
  return {static_cast<int64_t>(begin), static_cast<int64_t>(begin + part.size())};
}

// A target of one input, by the operator and by what Python calls.
inline match::Target target(std::string op, std::string python) {
  match::Target made;
  made.op = std::move(op);
  made.arguments = {"x"};
  made.python = std::move(python);
  return made;
}

inline match::Rule silu_rule() {
  match::Rule rule;
  rule.name = "silu";
  rule.parameters = {{"x", "T", true, false}};
  rule.domain = "floating";
  auto composition = graph::parse_graph(
      "%x: f32[4]\n%s: f32[4] = aten.sigmoid(%x)\n%y: f32[4] = aten.mul.Tensor(%x, %s)\n"
      "return %y\n",
      graph::SchemaTable::builtin());
  EXPECT_TRUE(composition.ok());
  rule.composition.graph = std::move(*composition);
  match::Target vendor = target("torch_npu.npu_silu", "torch_npu.npu_silu");
  vendor.device = "npu";
  match::Target native = target("aten.silu", "torch.nn.functional.silu");
  native.backward = "aten.silu_backward(grad, x)";
  rule.targets = {vendor, native};
  return rule;
}

// What Python says of `text`, whose function f holds the chain `chain`: x times its sigmoid.
inline SiteFacts inline_facts(std::string text, std::string_view chain = "x * torch.sigmoid(x)") {
  SiteFacts facts;
  facts.site = 0;
  facts.file = "/src/m.py";
  facts.sha256 = "abc";
  facts.module = "m";
  facts.qualname = "f";
  facts.line = 4;
  facts.span = span_of(text, chain);
  facts.span_kind = "expression";
  const Span sigmoid = span_of(text, "torch.sigmoid(x)");
  facts.reads = {{"x", "local", "", 2, false}, {"torch", "global", "torch", 1, false}};
  facts.operations = {{sigmoid, "torch.sigmoid", {"read:x"}},
                      {facts.span, "operator.mul", {"read:x", "op:0"}}};
  facts.argument_sources = {"x"};
  facts.import_offset = static_cast<int64_t>(text.find('\n')) + 1;
  facts.source_matches = facts.has_positions = true;
  facts.functions_found = 1;
  facts.module_aliases = {"torch=torch"};
  facts.module_globals = {"f", "torch"};
  facts.text = std::move(text);
  return facts;
}

// What Python says of a caller of the Function Swish.
inline SiteFacts apply_facts(std::string text, std::string_view call = "Swish.apply(x)") {
  SiteFacts facts = inline_facts(text + "# torch.sigmoid(x)", call);
  facts.text = std::move(text);
  facts.qualname = "M.forward";
  facts.span_kind = "function_apply";
  facts.operations = {{facts.span, "Function.apply:Swish", {"read:x"}}};
  facts.function_class = "Swish";
  facts.function_straight_line = true;
  facts.module_aliases = {"F=torch.nn.functional", "torch=torch"};
  return facts;
}

constexpr std::string_view kInlineText =
    "import torch\n"
    "def f(x):\n"
    "    return x * torch.sigmoid(x)\n";
constexpr std::string_view kApplyText =
    "import torch\n"
    "from torch.nn import functional as F\n"
    "class M:\n"
    "    def forward(self, x):\n"
    "        return Swish.apply(x)\n";

constexpr std::string_view kInlineGraph =
    "%x: f32[4] requires_grad\n"
    "%s: f32[4] = aten.sigmoid(%x) @ m.py:3:15-31 (f)\n"
    "%y: f32[4] = aten.mul.Tensor(%x, %s) @ m.py:3:11-31 (f)\n"
    "return %y\n";
constexpr std::string_view kApplyGraph =
    "%x: f32[4] requires_grad\n"
    "function Swish #1 {\n"
    "  %s: f32[4] = aten.sigmoid(%x) @ m.py:9:5-9 (Swish.forward) < m.py:5:15-29 (M.forward)\n"
    "  %y: f32[4] = aten.mul.Tensor(%x, %s) @ m.py:9:1-9 (Swish.forward) < m.py:5:15-29 "
    "(M.forward)\n"
    "}\n"
    "return %y\n";

// Owns what a plan is made of. The chain is the nodes named in `chain` (results by name).
class Case {
 public:
  explicit Case(SiteFacts site_facts, std::string_view graph_text,
                std::vector<std::string> chain = {"s", "y"})
      : rule(silu_rule()), facts(std::move(site_facts)) {
    auto parsed = graph::parse_graph(graph_text, graph::SchemaTable::builtin());
    EXPECT_TRUE(parsed.ok()) << (parsed.ok() ? "" : parsed.error().message);
    if (parsed.ok()) graph = std::move(*parsed);
    match::Match match;
    match.rule = &rule;
    match.inputs = {value("x")};
    match.outputs = {value(chain.back())};
    for (const std::string& name : chain) match.nodes.push_back(graph.values[value(name)].producer);
    match.function_scope =
        graph::enclosing_scope(graph, match.nodes.back(), graph::ScopeKind::kFunction);
    report.matches = {match};
    match::Site site;
    site.rule = &rule;
    site.matches = {0};
    sites = {site};
  }
  Case(const Case&) = delete;

  static Case inline_case() { return Case(inline_facts(std::string(kInlineText)), kInlineGraph); }
  static Case apply_case() { return Case(apply_facts(std::string(kApplyText)), kApplyGraph); }

  graph::ValueId value(std::string_view name) const {
    for (size_t i = 0; i < graph.values.size(); i++)
      if (graph.values[i].name == name) return static_cast<graph::ValueId>(i);
    ADD_FAILURE() << "no value " << name;
    return 0;
  }
  match::Match& match() { return report.matches[0]; }
  Plan plan() const { return make_plan(graph, report, sites, {facts}, options); }

  // The refusal of the only site; row -1 when it is planned.
  match::Refusal refusal() const {
    const Plan made = plan();
    if (made.refused.empty()) return {-1, "planned", graph::kNone};
    return made.refused[0].refusal;
  }
  std::string diff() const {
    const Plan made = plan();
    EXPECT_TRUE(made.refused.empty()) << made.refused[0].refusal.reason;
    const auto after = apply_edits(facts.text, made, facts.file, false);
    EXPECT_TRUE(after.ok()) << (after.ok() ? "" : after.error().message);
    return after.ok() ? unified_diff("m.py", facts.text, *after) : "";
  }
  std::string memory() const {
    const auto after = apply_edits(facts.text, plan(), facts.file, true);
    EXPECT_TRUE(after.ok()) << (after.ok() ? "" : after.error().message);
    return after.ok() ? *after : "";
  }

  match::Rule rule;
  SiteFacts facts;
  graph::Graph graph;
  match::MatchReport report;
  std::vector<match::Site> sites;
  PlanOptions options;
};

}  // namespace opfuse::rewrite
