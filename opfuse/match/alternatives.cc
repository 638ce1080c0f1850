#include "opfuse/match/alternatives.h"

#include <algorithm>
#include <functional>
#include <set>

#include <fmt/format.h>

#include "opfuse/graph/text.h"
#include "opfuse/match/pattern_edit.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::match {
namespace {

using graph::CanonicalRow;
using graph::Exactness;
using graph::Graph;
using graph::kNone;
using graph::Node;
using graph::NodeId;
using graph::ValueId;

// Products in any order that have been written out, with the graph around them: see
// as_one_product().
using Expanded = std::set<size_t>;

// What a row looks at: one operator of a pattern's graph.
struct Place {
  const Graph& graph;
  NodeId id;
  Expanded* expanded;

  const Node& node() const { return graph.nodes[id]; }
  bool is(std::string_view op) const { return node().op == op; }
  ValueId operand(int i) const { return node().inputs[i].values[0]; }
  ValueId result() const { return node().outputs[0]; }
  bool is_number(ValueId v) const {
    return (graph.values[v].meta.flags & trace::kWrappedNumber) != 0;
  }
  bool is_value(ValueId v, double number) const { return graph.values[v].meta.number == number; }
  // The operator that makes v, when it is `op`.
  const Node* maker(ValueId v, std::string_view op) const {
    NodeId id = graph.values[v].producer;
    return id != kNone && graph.nodes[id].op == op ? &graph.nodes[id] : nullptr;
  }
};

using Made = std::vector<PatternEdit>;

struct Row {
  CanonicalRow text;
  std::function<void(const Place&, Made*)> make;
};

constexpr std::string_view kMul = "aten.mul.Tensor", kDiv = "aten.div.Tensor",
                           kAdd = "aten.add.Tensor";

// The two orders of a product's operands.
template <class F>
void either_order(const Place& p, F f) {
  f(p.operand(0), p.operand(1));
  f(p.operand(1), p.operand(0));
}

PatternEdit with(const Place& p, const std::function<ValueId(PatternEdit*)>& make) {
  PatternEdit edit(p.graph);
  ValueId now = make(&edit);
  edit.replace(p.result(), now);
  return edit;
}

// a * rsqrt(b) -> a / sqrt(b), a * (1 / sqrt(b))
void times_rsqrt(const Place& p, Made* made) {
  if (!p.is(kMul)) return;
  either_order(p, [&](ValueId a, ValueId r) {
    const Node* root = p.maker(r, "aten.rsqrt");
    if (!root) return;
    ValueId b = root->inputs[0].values[0];
    made->push_back(
        with(p, [&](PatternEdit* e) { return e->add(kDiv, {a, e->add("aten.sqrt", {b})}); }));
  });
}

// rsqrt(b) -> 1 / sqrt(b)
void rsqrt_as_quotient(const Place& p, Made* made) {
  if (!p.is("aten.rsqrt")) return;
  made->push_back(with(p, [&](PatternEdit* e) {
    return e->add(kDiv, {e->number(1, true), e->add("aten.sqrt", {p.operand(0)})});
  }));
}

// a / sqrt(b) -> a * rsqrt(b), 1 / sqrt(b) -> rsqrt(b)
void over_sqrt(const Place& p, Made* made) {
  if (!p.is(kDiv)) return;
  const Node* root = p.maker(p.operand(1), "aten.sqrt");
  if (!root) return;
  ValueId b = root->inputs[0].values[0];
  made->push_back(with(p, [&](PatternEdit* e) {
    ValueId inverse = e->add("aten.rsqrt", {b});
    return p.is_value(p.operand(0), 1) ? inverse : e->add(kMul, {p.operand(0), inverse});
  }));
}

// a / b -> a * (1 / b)
void quotient_as_product(const Place& p, Made* made) {
  if (!p.is(kDiv) || p.is_number(p.operand(0)) || p.is_number(p.operand(1))) return;
  made->push_back(with(p, [&](PatternEdit* e) {
    return e->add(kMul, {p.operand(0), e->add(kDiv, {e->number(1, true), p.operand(1)})});
  }));
}

// a * (1 / b) -> a / b
void product_as_quotient(const Place& p, Made* made) {
  if (!p.is(kMul)) return;
  either_order(p, [&](ValueId a, ValueId q) {
    const Node* inverse = p.maker(q, kDiv);
    if (!inverse || !p.is_value(inverse->inputs[0].values[0], 1)) return;
    ValueId b = inverse->inputs[1].values[0];
    made->push_back(with(p, [&](PatternEdit* e) { return e->add(kDiv, {a, b}); }));
  });
}

// x ** 3 -> x * x * x
void cube(const Place& p, Made* made) {
  if (!p.is("aten.pow.Tensor_Scalar")) return;
  const graph::Attr& exponent = p.node().inputs[1].attr;
  if (exponent != graph::Attr{int64_t{3}} && exponent != graph::Attr{3.0}) return;
  ValueId x = p.operand(0);
  made->push_back(with(p, [&](PatternEdit* e) { return e->add(kMul, {e->add(kMul, {x, x}), x}); }));
}

// sigmoid(x) -> 1 / (1 + exp(-x))
void sigmoid_by_exp(const Place& p, Made* made) {
  if (!p.is("aten.sigmoid")) return;
  made->push_back(with(p, [&](PatternEdit* e) {
    ValueId grown = e->add("aten.exp", {e->add("aten.neg", {p.operand(0)})});
    return e->add(kDiv, {e->number(1, true), e->add(kAdd, {grown, e->number(1, true)})});
  }));
}

// hardtanh(x, a, b) -> clamp_max(clamp_min(x, a), b); the canonical form knows it as clamp.
void clamp_in_two(const Place& p, Made* made) {
  if (!p.is("aten.clamp")) return;
  const graph::Attr &low = p.node().inputs[1].attr, &high = p.node().inputs[2].attr;
  if (std::holds_alternative<graph::NoneAttr>(low) || std::holds_alternative<graph::NoneAttr>(high))
    return;
  made->push_back(with(p, [&](PatternEdit* e) {
    ValueId above = e->add("aten.clamp_min", {p.operand(0)}, 1, low);
    return e->add("aten.clamp_max", {above}, 1, high);
  }));
}

// The factors of the largest product that ends in `p`; inner products have no other reader.
void factors_of(const Place& p, ValueId value, bool root, std::vector<ValueId>* factors) {
  const Node* product = p.maker(value, kMul);
  const bool inner =
      product && (root || (p.graph.users[value].size() == 1 &&
                           std::ranges::find(p.graph.results, value) == p.graph.results.end()));
  if (!inner) {
    factors->push_back(value);
    return;
  }
  factors_of(p, product->inputs[0].values[0], false, factors);
  factors_of(p, product->inputs[1].values[0], false, factors);
}

bool is_whole_product(const Place& p) {
  if (!p.is(kMul)) return false;
  const std::vector<NodeId>& readers = p.graph.users[p.result()];
  const bool is_result = std::ranges::find(p.graph.results, p.result()) != p.graph.results.end();
  return is_result || readers.size() != 1 || p.graph.nodes[readers[0]].op != kMul;
}

// Every binary tree over the factors in place of `old`; `number` is the factor that is one, or
// kNone.
void every_product(PatternEdit base, std::vector<ValueId> terms, ValueId number, ValueId old,
                   Made* made) {
  if (terms.size() == 1) {
    base.replace(old, terms[0]);
    made->push_back(std::move(base));
    return;
  }
  for (size_t i = 0; i < terms.size(); ++i)
    for (size_t j = i + 1; j < terms.size(); ++j) {
      const bool last = i + 2 == terms.size();
      PatternEdit next = last ? std::move(base) : PatternEdit(base);
      std::vector<ValueId> rest;
      for (size_t k = 0; k < terms.size(); ++k)
        if (k != i && k != j) rest.push_back(terms[k]);
      const bool swap = terms[i] == number;  // a number is the second operand
      rest.insert(rest.begin(), swap ? next.add(kMul, {terms[j], terms[i]})
                                     : next.add(kMul, {terms[i], terms[j]}));
      every_product(std::move(next), std::move(rest), number, old, made);
    }
}

size_t mixed(size_t a, size_t b) { return a ^ (b + 0x9e3779b97f4a7c15 + (a << 6) + (a >> 2)); }

size_t hash_of(const graph::Attr& attr) {
  return std::hash<std::string>{}(graph::print_attr(attr));
}

// What `node` computes, from what its operands are.
size_t hash_of(const Node& node, const std::vector<size_t>& values) {
  size_t hash = std::hash<std::string_view>{}(node.op);
  for (const graph::Input& input : node.inputs) {
    for (ValueId v : input.values) hash = mixed(hash, v == kNone ? 0 : values[v]);
    if (input.kind == graph::InputKind::kAttr) hash = mixed(hash, hash_of(input.attr));
  }
  return hash;
}

// A hash of the graph in which the product that ends in `p` is one operator over `factors` in no
// order: equal for all that product_order() makes of one another.
size_t as_one_product(const Place& p, const std::vector<ValueId>& factors) {
  std::vector<size_t> values(p.graph.values.size());
  for (size_t v = 0; v < values.size(); ++v) {
    const graph::Value& value = p.graph.values[v];
    values[v] = value.meta.number ? std::hash<double>{}(*value.meta.number) : v;
  }
  for (NodeId id = 0; id < static_cast<NodeId>(p.graph.nodes.size()); ++id) {
    const Node& node = p.graph.nodes[id];
    size_t hash = hash_of(node, values);
    if (id == p.id) {
      std::vector<size_t> unordered;
      for (ValueId v : factors) unordered.push_back(values[v]);
      std::ranges::sort(unordered);
      hash = factors.size();
      for (size_t factor : unordered) hash = mixed(hash, factor);
    }
    for (size_t i = 0; i < node.outputs.size(); ++i)
      if (node.outputs[i] != kNone) values[node.outputs[i]] = mixed(hash, i);
  }
  size_t hash = p.graph.nodes.size();
  for (ValueId v : p.graph.results) hash = mixed(hash, values[v]);
  return hash;
}

// (a * b) * c -> a * (b * c), for three and four factors
void product_order(const Place& p, Made* made) {
  if (!is_whole_product(p)) return;
  std::vector<ValueId> factors;
  factors_of(p, p.result(), true, &factors);
  const auto is_number = [&](ValueId v) { return p.is_number(v); };
  if (factors.size() < 3 || factors.size() > 4 || std::ranges::count_if(factors, is_number) > 1)
    return;
  if (!p.expanded->insert(as_one_product(p, factors)).second) return;
  const auto number = std::ranges::find_if(factors, is_number);
  every_product(PatternEdit(p.graph), factors, number == factors.end() ? kNone : *number,
                p.result(), made);
}

// (a + b) + c -> a + (b + c) is not among the rows: sums cancel, and then it matters.

const std::vector<Row>& rows() {
  using enum Exactness;
  static const std::vector<Row> table = {
      {{"product in another order", kRounding, "(a * b) * c -> a * (b * c)"}, product_order},
      {{"times a reciprocal root", kRounding, "a * rsqrt(b) -> a / sqrt(b)"}, times_rsqrt},
      {{"reciprocal root as a quotient", kRounding, "rsqrt(b) -> 1 / sqrt(b)"}, rsqrt_as_quotient},
      {{"over a root", kRounding, "a / sqrt(b) -> a * rsqrt(b)"}, over_sqrt},
      {{"quotient as a product", kRounding, "a / b -> a * (1 / b)"}, quotient_as_product},
      {{"product as a quotient", kRounding, "a * (1 / b) -> a / b"}, product_as_quotient},
      {{"cube", kRounding, "x ** 3 -> x * x * x"}, cube},
      {{"sigmoid by exp", kRounding, "sigmoid(x) -> 1 / (1 + exp(-x))"}, sigmoid_by_exp},
      {{"clamp in two steps", kExact, "clamp(x, a, b) -> clamp_max(clamp_min(x, a), b)"},
       clamp_in_two},
  };
  return table;
}

// A text that is equal for graphs that differ in names alone.
std::string key_of(const Graph& graph) {
  std::string text;
  const auto add = [&](ValueId v) {
    if (v == kNone)
      text += " None";
    else if (const auto& number = graph.values[v].meta.number)
      text += fmt::format(" {}", *number);
    else
      text += fmt::format(" %{}", v);
  };
  for (const Node& node : graph.nodes) {
    text += node.op;
    for (const graph::Input& input : node.inputs) {
      for (ValueId v : input.values) add(v);
      if (input.kind == graph::InputKind::kAttr) text += " " + graph::print_attr(input.attr);
    }
    text += " ->";
    for (ValueId v : node.outputs) add(v);
    text += '\n';
  }
  for (ValueId v : graph.results) add(v);
  return text;
}

// `spelling` with the graph that `row` made of its own.
Spelling remade(const Spelling& spelling, Graph graph, std::string_view row) {
  Spelling other{.name = spelling.name,
                 .graph = std::move(graph),
                 .line = spelling.line,
                 .equivalence = spelling.equivalence,
                 .absent = spelling.absent,
                 .numbers = spelling.numbers,
                 .rows = spelling.rows};
  if (std::ranges::find(other.rows, row) == other.rows.end()) other.rows.emplace_back(row);
  return other;
}

}  // namespace

std::span<const CanonicalRow> alternative_rows() {
  static const std::vector<CanonicalRow> table = [] {
    std::vector<CanonicalRow> result;
    for (const Row& row : rows()) result.push_back(row.text);
    return result;
  }();
  return table;
}

std::vector<Spelling> alternatives_of(const Spelling& spelling) {
  int externals = 0;
  for (const graph::Value& value : spelling.graph.values) {
    if (value.producer != kNone || value.meta.number) break;
    ++externals;
  }
  std::vector<Spelling> all = {spelling};
  std::set<std::string> known = {key_of(PatternEdit(spelling.graph).finish(externals))};
  Expanded expanded;
  for (size_t next = 0; next < all.size(); ++next) {
    for (const Row& row : rows())
      for (NodeId id = 0; id < static_cast<NodeId>(all[next].graph.nodes.size()); ++id) {
        Made made;
        row.make({all[next].graph, id, &expanded}, &made);
        for (PatternEdit& edit : made) {
          if (all.size() > kMaxAlternatives) break;
          Graph graph = edit.finish(externals);
          if (!known.insert(key_of(graph)).second) continue;
          all.push_back(remade(all[next], std::move(graph), row.text.name));
        }
      }
  }
  all.erase(all.begin());
  return all;
}

}  // namespace opfuse::match
