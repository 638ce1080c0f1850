// find_matches: patterns are indexed by the operator of their root, each canonical node is tried as
// a root, what binds is expanded to original nodes and checked for legality.

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "opfuse/match/context.h"
#include "opfuse/match/legality.h"
#include "opfuse/match/near_miss.h"
#include "opfuse/match/pattern.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::match {
namespace {

using graph::Graph;
using graph::kNone;
using graph::NodeId;
using graph::ScopeKind;
using graph::ValueId;

// Rows of docs/legality.md that data flow, shapes and dtypes decide; a trace file tells no others.
bool told_by_data_flow(int row) {
  static constexpr int kRows[] = {0, 1, 5, 6, 7, 8, 14, 16, 22};
  return std::ranges::find(kRows, row) != std::end(kRows);
}

// The patterns of one rule that have the same root operator.
struct RulePatterns {
  std::vector<Pattern> ways, near;
};

class Matcher {
 public:
  Matcher(const Graph& graph, const Rulebook& rulebook, const MatchOptions& options)
      : context_(graph), options_(options) {
    for (const Rule& rule : rulebook.rules) add(rule);
    by_root_.resize(ops_.size());
    for (auto& [key, patterns] : grouped_) by_root_[key.first].push_back(std::move(patterns));
    const Graph& canonical = context_.form.graph;
    ops_of_.reserve(canonical.nodes.size());
    for (const graph::Node& node : canonical.nodes) ops_of_.push_back(ops_.find(node.op));
  }

  MatchReport run() {
    Solver solver(context_.form.graph, ops_of_, options_.assume_unknown);
    for (NodeId root = 0; root < static_cast<NodeId>(ops_of_.size()); ++root) {
      if (ops_of_[root] < 0) continue;
      collect_operands(root);
      for (const RulePatterns& patterns : by_root_[ops_of_[root]])
        try_rule(patterns, root, &solver);
    }
    refuse_lone_recomputations(context_, &report_.matches);
    settle_overlaps();
    drop_covered_misses();
    return std::move(report_);
  }

 private:
  void add(const Rule& rule) {
    int index = rules_++;
    auto put = [&](const Spelling& spelling, const NearNeighbour* near) {
      Pattern pattern = make_pattern(rule, spelling, near, &ops_);
      RulePatterns& group = grouped_[{pattern.ops[pattern.root], index}];
      (near ? group.near : group.ways).push_back(std::move(pattern));
    };
    put(rule.composition, nullptr);
    for (const Spelling& spelling : rule.spellings) put(spelling, nullptr);
    for (const NearNeighbour& near : rule.near) put(near.spelling, &near);
  }

  void collect_operands(NodeId root) {
    operands_.clear();
    for (const graph::Input& input : context_.form.graph.nodes[root].inputs)
      for (ValueId value : input.values) {
        if (value == kNone) continue;
        NodeId producer = context_.form.graph.values[value].producer;
        if (producer != kNone && ops_of_[producer] < 0) producer = below_cast(producer);
        if (producer != kNone && ops_of_[producer] >= 0) operands_.push_back(ops_of_[producer]);
      }
  }

  // A cast inside a chain is a near miss that is worth telling.
  NodeId below_cast(NodeId node) const {
    const graph::Node& n = context_.form.graph.nodes[node];
    ValueId input = is_cast(n) ? n.inputs[0].values[0] : kNone;
    return input == kNone ? kNone : context_.form.graph.values[input].producer;
  }

  // Most places differ from most patterns already in the operators below the root.
  bool plausible(const Pattern& pattern) const {
    if (pattern.root_operands.empty()) return true;
    return std::ranges::any_of(pattern.root_operands, [&](int op) {
      return std::ranges::find(operands_, op) != operands_.end();
    });
  }

  void try_rule(const RulePatterns& patterns, NodeId root, Solver* solver) {
    const Pattern* best = nullptr;
    Mismatch mismatch;
    for (const Pattern& pattern : patterns.ways) {
      if (!plausible(pattern)) continue;
      if (solver->solve(pattern, root) &&
          guards_hold(context_, pattern, pattern.rule->guards, solver->values()))
        return add_match(pattern, *solver);
      if (solver->mismatch().nodes.size() > mismatch.nodes.size()) {
        mismatch = solver->mismatch();
        best = &pattern;
      }
    }
    if (in_backward(root)) return;  // derivatives look like gates
    add_near_miss(patterns, root, best, mismatch, solver);
  }

  bool in_backward(NodeId root) const {
    NodeId node = context_.form.origin[root];
    return (context_.node(node).region.flags & trace::kGraphTask) != 0 ||
           enclosing_scope(context_.graph, node, ScopeKind::kAutogradNode) != kNone;
  }

  // An autograd node that computes again what the chain computed (as that of div does) is no chain.
  bool crosses_into_backward(const Solver& solver) const {
    return std::ranges::any_of(solver.nodes(), [&](NodeId node) {
      return in_backward(node) != in_backward(solver.nodes().back());
    });
  }

  void add_match(const Pattern& pattern, const Solver& solver) {
    if (crosses_into_backward(solver)) return;
    Match match = expand_match(context_, pattern, solver.nodes(), solver.values());
    if (!options_.assume_unknown) join_backward(context_, &match);
    match.conditions = solver.assumed();
    match.refusals = check_legality(context_, match);
    if (options_.assume_unknown)
      std::erase_if(match.refusals, [](const Refusal& r) { return !told_by_data_flow(r.row); });
    report_.matches.push_back(std::move(match));
  }

  // A mismatch with a row of its own says more than a neighbour, a neighbour more than other
  // mismatches.
  void add_near_miss(const RulePatterns& patterns, NodeId root, const Pattern* best,
                     const Mismatch& mismatch, Solver* solver) {
    std::optional<NearMiss> miss;
    if (best) miss = describe_mismatch(context_, *best, mismatch);
    bool certain =
        miss && (miss->refusal.row == 5 || miss->refusal.row == 6 || miss->refusal.row == 16);
    for (const Pattern& near : patterns.near) {
      if (certain) break;
      if (!plausible(near) || !solver->solve(near, root)) continue;
      if (auto neighbour = describe_neighbour(context_, near, *solver)) {
        miss = std::move(neighbour);
        break;
      }
    }
    if (miss) report_.near_misses.push_back(std::move(*miss));
  }

  // Legal before refused, larger before smaller, then in order: a later one that shares an operator
  // is refused.
  void settle_overlaps() {
    std::vector<Match*> order;
    for (Match& match : report_.matches) order.push_back(&match);
    std::ranges::stable_sort(order, [](const Match* a, const Match* b) {
      if (a->refusals.empty() != b->refusals.empty()) return a->refusals.empty();
      return a->nodes.size() > b->nodes.size();
    });
    std::map<NodeId, const Match*> owner;
    for (Match* match : order) {
      for (NodeId node : match->nodes) {
        auto it = owner.find(node);
        if (it == owner.end()) continue;
        match->refusals.push_back({0,
                                   fmt::format("shares {} with a chain of {}",
                                               where(context_.graph, node), it->second->rule->name),
                                   node});
        break;
      }
      for (NodeId node : match->nodes) owner.try_emplace(node, match);
    }
  }

  // What is part of a match needs no explanation.
  void drop_covered_misses() {
    std::set<NodeId> covered;
    for (const Match& match : report_.matches)
      covered.insert(match.nodes.begin(), match.nodes.end());
    std::erase_if(report_.near_misses,
                  [&](const NearMiss& miss) { return covered.contains(miss.nodes.back()); });
  }

  Context context_;
  MatchOptions options_;
  OpIndex ops_;
  int rules_ = 0;
  std::map<std::pair<int, int>, RulePatterns> grouped_;  // by root operator and rule
  std::vector<std::vector<RulePatterns>> by_root_;
  std::vector<int> ops_of_;    // by canonical node
  std::vector<int> operands_;  // operators below the current root
  MatchReport report_;
};

}  // namespace

MatchReport find_matches(const Graph& graph, const Rulebook& rulebook,
                         const MatchOptions& options) {
  return Matcher(graph, rulebook, options).run();
}

}  // namespace opfuse::match
