#include "opfuse/graph/canonical.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <random>

#include "opfuse/graph/text.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::graph {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Graph parse(std::string_view text) {
  Result<Graph> graph = parse_graph(text, SchemaTable::builtin());
  EXPECT_TRUE(graph.ok()) << (graph.ok() ? "" : graph.error().message) << "\n" << text;
  return graph.ok() ? std::move(*graph) : Graph{};
}

// The canonical form of one line over %x and %y, as printed, without the types.
std::string canonical_of(std::string_view line, std::string_view type = "f32[8]") {
  std::string text = "%x: " + std::string(type) + "\n%y: " + std::string(type) + "\n";
  text += "%r: " + std::string(type) + " = " + std::string(line) + "\nreturn %r\n";
  CanonicalForm form = canonicalize(parse(text));
  std::string printed;
  for (NodeId id = 0; id < static_cast<NodeId>(form.graph.nodes.size()); ++id)
    printed += print_node(form.graph, id) + "\n";
  return printed.empty() ? "%" + form.graph.values[form.graph.results[0]].name : printed;
}

TEST(Canonical, EachRowMakesOneFormOfSeveral) {
  auto expect = [](std::string_view line, std::string_view form) {
    EXPECT_THAT(canonical_of(line), HasSubstr(std::string(form)));
  };
  expect("aten.mul.Tensor(%y, %x)", "aten.mul.Tensor(%x, %y)");
  expect("aten.add.Tensor(%y, %x)", "aten.add.Tensor(%x, %y)");
  expect("aten.mul.Tensor(2, %x)", "aten.mul.Tensor(%x, 2)");
  expect("aten.mul.Scalar(%x, 2)", "aten.mul.Tensor(%x, 2)");
  expect("aten.add.Scalar(%x, 2.5)", "aten.add.Tensor(%x, 2.5)");
  expect("aten.rsub.Scalar(%x, 1)", "aten.sub.Tensor(1, %x)");
  expect("aten.rsub.Tensor(%x, %y)", "aten.sub.Tensor(%y, %x)");
  expect("aten.sub.Tensor(%x, 3)", "aten.add.Tensor(%x, -3)");
  expect("aten.div.Tensor(%x, 4)", "aten.mul.Tensor(%x, 0.25)");
  expect("aten.div.Scalar(%x, 5)", "aten.mul.Tensor(%x, 0.2)");
  expect("aten.reciprocal(%x)", "aten.div.Tensor(1, %x)");
  expect("aten.pow.Tensor_Scalar(%x, 2)", "aten.mul.Tensor(%x, %x)");
  expect("aten.pow.Tensor_Scalar(%x, 2.0)", "aten.mul.Tensor(%x, %x)");
  expect("aten.pow.Tensor_Scalar(%x, 0.5)", "aten.sqrt(%x)");
  expect("aten.pow.Tensor_Scalar(%x, -0.5)", "aten.rsqrt(%x)");
  expect("aten.pow.Tensor_Scalar(%x, -1)", "aten.div.Tensor(1, %x)");
  expect("aten.mul.Tensor(%x, -1)", "aten.neg(%x)");
  expect("aten.mul.Tensor(%x, 1.0)", "%x");
  expect("aten.mul_.Tensor(%x, %y)", "aten.mul.Tensor(%x, %y)");
  expect("aten.detach(%x)", "%x");
  expect("aten._to_copy(%x, dtype=f32)", "%x");
}

TEST(Canonical, LeavesAloneWhatIsNotTheSame) {
  auto expect_same = [](std::string_view line, std::string_view type = "f32[8]") {
    EXPECT_THAT(canonical_of(line, type), HasSubstr(std::string(line)));
  };
  expect_same("aten.sub.Tensor(%y, %x)");
  expect_same("aten.div.Tensor(%y, %x)");
  expect_same("aten.div.Tensor(%x, 0)");
  expect_same("aten.pow.Tensor_Scalar(%x, 3)");
  expect_same("aten.add.Tensor(%y, %x, alpha=2)");
  expect_same("aten.mul.Tensor(%x, 1)", "i64[8]");
  expect_same("aten.sub.Tensor(%x, 3)", "i64[8]");
}

TEST(Canonical, ACopyIsKeptWhenItsSourceIsWritten) {
  CanonicalForm form =
      canonicalize(parse("%x: f32[8]\n%c: f32[8] = aten._to_copy(%x, dtype=f32)\n%w: f32[8] = "
                         "aten.add_.Tensor(%x, 1)\n"));
  EXPECT_THAT(print_node(form.graph, 0), HasSubstr("aten._to_copy"));
}

TEST(Canonical, ACastThatChangesTheTypeIsKept) {
  CanonicalForm form =
      canonicalize(parse("%x: bf16[8]\n%c: f32[8] = aten._to_copy(%x, dtype=f32)\n"));
  EXPECT_THAT(print_node(form.graph, 0), HasSubstr("dtype=f32"));
}

TEST(Canonical, RemembersWhereEachNodeComesFrom) {
  Graph g =
      parse("%x: f32[8]\n%d: f32[8] = aten.detach(%x)\n%y: f32[8] = aten.mul.Scalar(%d, 2)\n");
  CanonicalForm form = canonicalize(g);
  ASSERT_EQ(form.graph.nodes.size(), 1u);
  EXPECT_EQ(form.origin[0], 1);
  EXPECT_EQ(form.stands_in[g.nodes[0].outputs[0]], g.nodes[0].inputs[0].values[0]);
  EXPECT_NE(form.rows[0], 0u);
  EXPECT_NE(form.drop_rows[g.nodes[0].outputs[0]], 0u);
  EXPECT_EQ(form.graph.values[form.graph.nodes[0].outputs[0]].producer, 0);
}

// Evaluates pointwise graphs in fp64, one number a value; in-place operators write their storage.
class Evaluator {
 public:
  explicit Evaluator(const Graph& graph) : graph_(graph), values_(graph.values.size()) {}

  std::map<ValueId, double> run(const std::vector<double>& externals) {
    std::copy(externals.begin(), externals.end(), values_.begin());  // the first values of the text
    std::map<ValueId, double> result;
    for (const Node& node : graph_.nodes) {
      double value = evaluate(node);
      values_[node.outputs[0]] = result[node.outputs[0]] = value;
    }
    return result;
  }

 private:
  double operand(const Node& node, size_t i) const {
    const Input& input = node.inputs[i];
    if (input.kind == InputKind::kAttr) {
      if (auto* d = std::get_if<double>(&input.attr)) return *d;
      return static_cast<double>(std::get<int64_t>(input.attr));
    }
    const Value& value = graph_.values[input.values[0]];
    return value.meta.number ? *value.meta.number : values_[input.values[0]];
  }

  double evaluate(const Node& node) const {
    using F = std::function<double(double, double, double)>;
    static const std::map<std::string, F> kOps = {
        {"add", [](double a, double b, double c) { return a + c * b; }},
        {"sub", [](double a, double b, double c) { return a - c * b; }},
        {"rsub", [](double a, double b, double c) { return b - c * a; }},
        {"mul", [](double a, double b, double) { return a * b; }},
        {"div", [](double a, double b, double) { return a / b; }},
        {"pow", [](double a, double b, double) { return std::pow(a, b); }},
        {"neg", [](double a, double, double) { return -a; }},
        {"exp", [](double a, double, double) { return std::exp(a); }},
        {"tanh", [](double a, double, double) { return std::tanh(a); }},
        {"sqrt", [](double a, double, double) { return std::sqrt(a); }},
        {"rsqrt", [](double a, double, double) { return 1 / std::sqrt(a); }},
        {"sigmoid", [](double a, double, double) { return 1 / (1 + std::exp(-a)); }},
        {"reciprocal", [](double a, double, double) { return 1 / a; }},
        {"detach", [](double a, double, double) { return a; }},
        {"_to_copy", [](double a, double, double) { return a; }},
    };
    std::string name = node.op.substr(5, node.op.find('.', 5) - 5);
    if (name != "_to_copy" && name.ends_with("_")) name.pop_back();
    bool binary = node.inputs.size() > 1 && name != "_to_copy";
    bool has_alpha = node.inputs.size() > 2 && name != "_to_copy";
    return kOps.at(name)(operand(node, 0), binary ? operand(node, 1) : 0,
                         has_alpha ? operand(node, 2) : 1);
  }

  const Graph& graph_;
  std::vector<double> values_;
};

// A random straight-line graph, as text. In-place operators work on fresh results only.
std::string random_graph(std::mt19937* random) {
  auto pick = [&](int n) { return static_cast<int>((*random)() % n); };
  const char* kUnary[] = {"neg", "exp", "tanh", "sigmoid", "reciprocal", "detach", "sqrt", "rsqrt"};
  const char* kBinary[] = {"add", "sub", "mul", "div", "rsub"};
  const char* kNumbers[] = {"2", "0.5", "1", "-1", "3", "1.0", "6", "-0.25", "0.1"};
  std::string text = "%0: f64[4]\n%1: f64[4]\n%2: f64[4]\n";
  int size = 2 + pick(10);
  for (int id = 3; id < 3 + size; ++id) {
    auto operand = [&] { return "%" + std::to_string(pick(id)); };
    std::string number = kNumbers[pick(9)], op = kBinary[pick(5)], call;
    switch (pick(6)) {
      case 0:
        call = "aten." + std::string(kUnary[pick(8)]) + "(" + operand() + ")";
        break;
      case 1:
        call = "aten." + op + ".Tensor(" + operand() + ", " + operand() + ")";
        break;
      case 2:
        call = "aten." + op + ".Scalar(" + operand() + ", " + number + ")";
        break;
      case 3:
        call = "aten." + op + ".Tensor(" + operand() + ", " + number + ")";
        break;
      case 4:
        call = "aten.pow.Tensor_Scalar(" + operand() + ", " + (pick(2) ? "2" : number) + ")";
        break;
      default:
        call = "aten._to_copy(" + operand() + ", dtype=f64)";
    }
    text += "%" + std::to_string(id) + ": f64[4] = " + call + "\n";
  }
  return text + "return %" + std::to_string(2 + size) + "\n";
}

bool agree(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return std::abs(a - b) <= 1e-9 * (std::abs(a) + std::abs(b)) + 1e-12;
}

// Every value that the canonical form still makes is what it was, and what it dropped equals its
// stand-in. Values near a pole amplify rounding: such graphs prove nothing and are left out.
bool same_meaning(const Graph& graph, const std::vector<double>& externals) {
  CanonicalForm form = canonicalize(graph);
  std::map<ValueId, double> before = Evaluator(graph).run(externals);
  std::map<ValueId, double> after = Evaluator(form.graph).run(externals);
  for (auto [value, number] : before)
    if (std::abs(number) > 1e6 || std::isnan(number)) return true;
  for (auto [value, number] : after)
    if (!agree(before.at(value), number)) return false;
  auto now = [&](ValueId value) {
    return after.contains(value) ? after.at(value) : externals.at(value);
  };
  for (auto [value, number] : before)
    if (!agree(number, now(form.stands_in[value]))) return false;
  return true;
}

TEST(Canonical, KeepsTheMeaningOfRandomGraphs) {
  std::mt19937 random(1);
  for (int i = 0; i < 3000; ++i) {
    std::string text = random_graph(&random);
    Graph graph = parse(text);
    ASSERT_TRUE(same_meaning(graph, {0.7, 1.9, 2.3})) << text << "\n"
                                                      << print_graph(canonicalize(graph).graph);
  }
}

TEST(Canonical, TwiceChangesNothingTheSecondTime) {
  std::mt19937 random(2);
  for (int i = 0; i < 1000; ++i) {
    std::string text = random_graph(&random);
    Graph once = canonicalize(parse(text)).graph;
    CanonicalForm twice = canonicalize(once);
    ASSERT_EQ(print_graph(once), print_graph(twice.graph)) << text;
    for (RowSet rows : twice.rows) ASSERT_EQ(rows, 0u) << text;
  }
}

TEST(Canonical, EveryRowHasANameAnExampleAndAPlaceInTheSet) {
  EXPECT_LE(canonical_rows().size(), 32u);
  for (const CanonicalRow& row : canonical_rows()) {
    EXPECT_FALSE(row.name.empty());
    EXPECT_THAT(std::string(row.example), HasSubstr("->"));
  }
}

}  // namespace
}  // namespace opfuse::graph
