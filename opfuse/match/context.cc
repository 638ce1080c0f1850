#include "opfuse/match/context.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "opfuse/match/solver.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::match {

using graph::Graph;
using graph::kNone;
using graph::NodeId;
using graph::ScopeKind;
using graph::ValueId;

Context::Context(const Graph& g) : graph(g), form(canonicalize(g)) {
  writers.resize(g.storages.size());
  function_sizes.resize(g.scopes.size());
  for (NodeId id = 0; id < static_cast<NodeId>(g.nodes.size()); ++id) {
    for (ValueId written : g.nodes[id].writes) {
      int32_t storage = g.values[written].storage;
      if (storage == kNone) continue;
      if (writers[storage].empty() || writers[storage].back() != id) writers[storage].push_back(id);
    }
    int32_t backward = enclosing_scope(g, id, ScopeKind::kAutogradNode);
    if (backward != kNone && g.scopes[backward].sequence >= 0)
      backward_nodes[g.scopes[backward].sequence].push_back(id);
    int32_t function = enclosing_scope(g, id, ScopeKind::kFunction);
    if (function != kNone) ++function_sizes[function];
  }
}

bool Context::is_number(ValueId id) const {
  return (value(id).meta.flags & trace::kWrappedNumber) != 0;
}

std::vector<ValueId> Context::operands(NodeId id) const {
  std::vector<ValueId> result;
  for (const graph::Input& input : node(id).inputs)
    for (ValueId v : input.values)
      if (v != kNone) result.push_back(v);
  return result;
}

std::string where(const Graph& graph, NodeId node) {
  const graph::Node& n = graph.nodes[node];
  for (const int32_t at : n.positions) {
    const graph::Position& position = graph.positions[at];
    if (position.file.empty()) continue;  // built-in functions
    std::string file = position.file.substr(position.file.rfind('/') + 1);
    return fmt::format("{} at {}:{}", n.op, file, position.line);
  }
  return n.op;
}

namespace {

class Expander {
 public:
  Expander(const Context& context, const Pattern& pattern, const Solver& solver)
      : context_(context), pattern_(pattern), solver_(solver), values_(solver.values()) {
    for (NodeId node : solver.nodes()) {
      nodes_.insert(context.form.origin[node]);
      rows_ |= context.form.rows[node];
    }
    chain_ = nodes_;
  }

  Match run() {
    Match match;
    match.rule = pattern_.rule;
    match.spelling = pattern_.spelling;
    match.numbers = solver_.numbers();
    match.shapes_known = solver_.shapes_known();
    for (int i = 0; i < pattern_.parameters; ++i)
      match.inputs.push_back(values_[i] == kNone ? kNone : input(values_[i]));
    const Graph& g = pattern_.graph();
    const auto is_input = [&](ValueId v) {
      return std::find(values_.begin(), values_.begin() + pattern_.parameters, v) !=
             values_.begin() + pattern_.parameters;
    };
    // A cast that is nothing here gives back its operand, which may be an input.
    for (size_t i = 0; i < g.values.size(); ++i)
      if (g.values[i].producer != kNone && values_[i] != kNone && !is_input(values_[i]))
        inner(values_[i]);
    // Of a run of changes of shape the pattern holds only the last.
    for (NodeId node : solver_.nodes())
      for (ValueId made : context_.form.graph.nodes[node].outputs)
        if (made != kNone && !is_input(made)) inner(made);
    for (ValueId result : g.results) match.outputs.push_back(values_[result]);
    match.nodes.assign(nodes_.begin(), nodes_.end());
    match.equivalence = pattern_.spelling->equivalence;
    match.canonical_rows = pattern_.spelling->rows;
    for (size_t i = 0; i < graph::canonical_rows().size(); ++i) {
      if (!(rows_ >> i & 1)) continue;
      const graph::CanonicalRow& row = graph::canonical_rows()[i];
      match.canonical_rows.emplace_back(row.name);
      if (row.exactness == graph::Exactness::kRealsOnly)
        match.equivalence = std::max(match.equivalence, Equivalence::kE3);
    }
    return match;
  }

 private:
  // Values that operators of the chain read and that stand for `canonical`.
  std::set<ValueId> raw_values(ValueId canonical) const {
    std::set<ValueId> result;
    for (NodeId node : chain_)
      for (ValueId v : context_.operands(node))
        if (context_.form.stands_in[v] == canonical) result.insert(v);
    return result;
  }

  // `raw`, what it is a no-op of, and so on, down to the canonical value.
  std::vector<ValueId> path(ValueId raw) const {
    std::vector<ValueId> values = {raw};
    while (context_.form.stands_in[values.back()] != values.back())
      values.push_back(context_.node(context_.value(values.back()).producer).inputs[0].values[0]);
    return values;
  }

  void absorb(const std::vector<ValueId>& path, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      nodes_.insert(context_.value(path[i]).producer);
      rows_ |= context_.form.drop_rows[path[i]];
    }
  }

  // The last value that all reads have in common; no-op operators after it belong to the chain.
  ValueId input(ValueId canonical) {
    std::set<ValueId> raws = raw_values(canonical);
    if (raws.empty()) return canonical;
    std::vector<ValueId> shortest = path(*raws.begin());
    for (ValueId raw : raws)
      if (auto other = path(raw); other.size() < shortest.size()) shortest = other;
    for (ValueId candidate : shortest) {
      bool common = std::ranges::all_of(raws, [&](ValueId raw) {
        std::vector<ValueId> steps = path(raw);
        return std::ranges::find(steps, candidate) != steps.end();
      });
      if (!common) continue;
      for (ValueId raw : raws) {
        std::vector<ValueId> steps = path(raw);
        absorb(steps, std::ranges::find(steps, candidate) - steps.begin());
      }
      return candidate;
    }
    return canonical;
  }

  // No-op operators on an inner value: those on the way to a reader, and those that nobody reads.
  void inner(ValueId canonical) {
    for (ValueId raw : raw_values(canonical)) {
      std::vector<ValueId> steps = path(raw);
      absorb(steps, steps.size() - 1);
    }
    absorb_dead(canonical);
  }

  void absorb_dead(ValueId value) {
    for (NodeId reader : context_.graph.users[value]) {
      const graph::Node& node = context_.node(reader);
      if (node.outputs.size() != 1 || node.outputs[0] == kNone) continue;
      ValueId output = node.outputs[0];
      if (context_.form.stands_in[output] == output) continue;
      absorb_dead(output);
      bool dead = std::ranges::all_of(context_.graph.users[output],
                                      [&](NodeId user) { return nodes_.contains(user); });
      bool seen = context_.value(output).escapes != 0 ||
                  std::ranges::find(context_.graph.results, output) != context_.graph.results.end();
      if (dead && !seen) nodes_.insert(reader);
    }
  }

  const Context& context_;
  const Pattern& pattern_;
  const Solver& solver_;
  const std::vector<ValueId>& values_;
  std::set<NodeId> nodes_, chain_;
  graph::RowSet rows_ = 0;
};

}  // namespace

Match expand_match(const Context& context, const Pattern& pattern, const Solver& solver) {
  return Expander(context, pattern, solver).run();
}

}  // namespace opfuse::match
