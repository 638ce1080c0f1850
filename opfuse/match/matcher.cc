// find_matches: patterns are indexed by the operator of their root, each canonical node is tried as
// a root, what binds is expanded to original nodes and checked for legality.

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "opfuse/match/context.h"
#include "opfuse/match/legality.h"
#include "opfuse/match/near_miss.h"
#include "opfuse/match/solver.h"
#include "opfuse/match/words.h"
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

// Refused by a row of docs/legality.md that says that another function stands there: other dtypes
// or casts, operands of other shapes, a gradient that is stopped or written by hand.
bool is_another_function(const Match& match) {
  static constexpr int kRows[] = {14, 15, 16, 19, 23, 25};
  return std::ranges::any_of(match.refusals, [](const Refusal& refusal) {
    return std::ranges::find(kRows, refusal.row) != std::end(kRows);
  });
}

// The patterns of one rule that have the same root operator.
struct RulePatterns {
  std::vector<Pattern> ways, near;
  std::vector<Cone> cones;      // of the ways, side by side
  Cone common;                  // what all of them have
  std::vector<size_t> written;  // those of the ways that no row of alternatives made
  bool replaced = false;        // chains of the rule are replaced: why one is not is worth telling
};

struct Candidate {  // a way of writing rule by_root_[root][rule] that may nearly stand there
  int missing;
  size_t rule, way;
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
    cones_ = cones_of(context_.form.graph, ops_of_);
    Solver solver(context_.form.graph, ops_of_, options_.assume_unknown);
    for (NodeId root = 0; root < static_cast<NodeId>(ops_of_.size()); ++root) {
      if (ops_of_[root] < 0) continue;
      const std::vector<RulePatterns>& all = by_root_[ops_of_[root]];
      bool matched = false;
      for (const RulePatterns& patterns : all)
        matched = try_rule(patterns, root, &solver) || matched;
      // Derivatives look like gates.
      if (!matched && !in_backward(root)) explain_misses(all, root, &solver);
    }
    drop_parts_of_the_same();
    refuse_lone_recomputations(context_, &report_.matches);
    settle_overlaps();
    drop_covered_misses();
    return std::move(report_);
  }

 private:
  void add(const Rule& rule) {
    int index = rules_++;
    const bool replaced = found_only(rule).empty();
    auto put = [&](const Spelling& spelling, const NearNeighbour* near) {
      Pattern pattern = make_pattern(rule, spelling, near, &ops_);
      for (int op : pattern.root_ops) {
        RulePatterns& group = grouped_[{op, index}];
        group.replaced = replaced;
        if (!near && spelling.rows.empty()) group.written.push_back(group.ways.size());
        if (!near) add_cone(pattern.cone, &group);
        (near ? group.near : group.ways).push_back(pattern);
      }
    };
    put(rule.composition, nullptr);
    for (const Spelling& spelling : rule.spellings) put(spelling, nullptr);
    for (const Spelling& spelling : rule.alternatives) put(spelling, nullptr);
    for (const NearNeighbour& near : rule.near) put(near.spelling, &near);
  }

  static void add_cone(const Cone& cone, RulePatterns* group) {
    if (group->cones.empty()) group->common = cone;
    for (int i = 0; i < kDepth; ++i) {
      group->common.ops[i] &= cone.ops[i];
      group->common.reads[i] &= cone.reads[i];
    }
    group->cones.push_back(cone);
  }

  // Most places differ from most patterns already in what stands below the root.
  bool try_rule(const RulePatterns& patterns, NodeId root, Solver* solver) {
    const Cone& found = cones_[root];
    if (!patterns.common.within(found)) return false;
    for (size_t i = 0; i < patterns.ways.size(); ++i)
      if (patterns.cones[i].within(found) && solver->solve(patterns.ways[i], root))
        return add_match(patterns.ways[i], root, *solver);
    return false;
  }

  // What lacks an operator or reads another value cannot match, but may be worth telling: any way
  // of writing it that has all operators, and those that lack one as the rule's author wrote them.
  // The closest few of all rules are looked at.
  void choose_candidates(const std::vector<RulePatterns>& all, NodeId root) {
    constexpr int kReads = 2;
    constexpr size_t kFew = 12;
    const Cone& found = cones_[root];
    candidates_.clear();
    for (size_t rule = 0; rule < all.size(); ++rule) {
      const RulePatterns& patterns = all[rule];
      const int ops = patterns.common.missing_ops(found, 2);
      if (ops == 0 && patterns.common.missing_reads(found, kReads + 1) <= kReads)
        for (size_t i = 0; i < patterns.ways.size(); ++i) {
          if (patterns.cones[i].missing_ops(found, 1) != 0) continue;
          const int reads = patterns.cones[i].missing_reads(found, kReads + 1);
          if (reads <= kReads) candidates_.push_back({reads, rule, i});
        }
      if (ops < 2 && patterns.replaced)
        for (size_t i : patterns.written)
          if (patterns.cones[i].missing_ops(found, 2) == 1)
            candidates_.push_back({kReads + 1, rule, i});
    }
    const auto closer = [](const Candidate& a, const Candidate& b) {
      return std::tie(a.missing, a.rule, a.way) < std::tie(b.missing, b.rule, b.way);
    };
    if (candidates_.size() > kFew) {
      std::ranges::nth_element(candidates_, candidates_.begin() + kFew, closer);
      candidates_.resize(kFew);
    }
    std::ranges::sort(candidates_, {}, [](const Candidate& c) { return std::pair(c.rule, c.way); });
  }

  void explain_misses(const std::vector<RulePatterns>& all, NodeId root, Solver* solver) {
    choose_candidates(all, root);
    auto next = candidates_.begin();
    for (size_t rule = 0; rule < all.size(); ++rule) {
      const Pattern* best = nullptr;
      Mismatch mismatch;
      for (; next != candidates_.end() && next->rule == rule; ++next) {
        const Pattern& pattern = all[rule].ways[next->way];
        if (solver->solve(pattern, root)) continue;
        if (solver->mismatch().nodes.size() <= mismatch.nodes.size()) continue;
        mismatch = solver->mismatch();
        best = &pattern;
      }
      add_near_miss(all[rule], root, best, mismatch, solver);
    }
    keep_best_miss();
  }

  bool in_backward(NodeId root) const {
    NodeId node = context_.form.origin[root];
    return (context_.node(node).region.flags & trace::kGraphTask) != 0 ||
           enclosing_scope(context_.graph, node, ScopeKind::kAutogradNode) != kNone;
  }

  // An autograd node that computes again what the chain computed (as that of div does) is no chain.
  bool crosses_into_backward(const Solver& solver) const {
    const std::vector<NodeId> nodes = solver.nodes();
    return std::ranges::any_of(
        nodes, [&](NodeId node) { return in_backward(node) != in_backward(nodes.back()); });
  }

  // A composite operator of torch runs all of it: it is not the user's chain, and often the target.
  bool inside_one_operator(const Match& match) const {
    const auto within = [&](int32_t scope, NodeId node) {
      for (int32_t s = context_.node(node).scope; s != kNone; s = context_.graph.scopes[s].parent)
        if (s == scope) return true;
      return false;
    };
    for (int32_t s = context_.node(match.nodes[0]).scope; s != kNone;
         s = context_.graph.scopes[s].parent) {
      if (context_.graph.scopes[s].kind != ScopeKind::kOperator) continue;
      if (std::ranges::all_of(match.nodes, [&](NodeId node) { return within(s, node); }))
        return true;
    }
    return false;
  }

  // Sums of products are what derivatives consist of: a general rule would find itself in each.
  bool is_a_derivative(const Pattern& pattern, NodeId root) const {
    const graph::Node& node = context_.node(context_.form.origin[root]);
    return pattern.rule->parameters.size() > 1 && in_backward(root) &&
           !(node.region.flags & trace::kCheckpointRecompute);
  }

  bool add_match(const Pattern& pattern, NodeId root, const Solver& solver) {
    if (crosses_into_backward(solver) || is_a_derivative(pattern, root)) return false;
    Match match = expand_match(context_, pattern, solver);
    if (match.nodes.empty() || inside_one_operator(match)) return false;
    if (!options_.assume_unknown) join_backward(context_, &match);
    match.conditions = solver.assumed();
    match.refusals = check_legality(context_, match);
    if (options_.assume_unknown)
      std::erase_if(match.refusals, [](const Refusal& refusal) {
        return !told_by_data_flow(refusal.row) || refusal.reason.starts_with(kFoundOnly);
      });
    report_.matches.push_back(std::move(match));
    return true;
  }

  // A mismatch with a row of its own says more than a neighbour, a neighbour more than other
  // mismatches.
  void add_near_miss(const RulePatterns& patterns, NodeId root, const Pattern* best,
                     const Mismatch& mismatch, Solver* solver) {
    std::optional<NearMiss> miss;
    if (best) miss = describe_mismatch(context_, *best, mismatch);
    for (const Pattern& near : patterns.near) {
      if (miss && miss->certain) break;
      if (!near.cone.within(cones_[root]) || !solver->solve(near, root)) continue;
      if (auto neighbour = describe_neighbour(context_, near, *solver)) {
        miss = std::move(neighbour);
        break;
      }
    }
    const bool fits = mismatch.kind >= Mismatch::Kind::kShape;  // but for a condition of the rule
    if (miss && (miss->certain || fits || patterns.replaced)) misses_.push_back(std::move(*miss));
  }

  // Many rules nearly fit a common operator: the one that says most is told.
  void keep_best_miss() {
    const auto best = std::ranges::max_element(misses_, [](const NearMiss& a, const NearMiss& b) {
      return std::pair(a.certain, a.nodes.size()) < std::pair(b.certain, b.nodes.size());
    });
    if (best != misses_.end()) report_.near_misses.push_back(std::move(*best));
    misses_.clear();
  }

  // A chain with its weight holds the chain without it, and a run of reshapes may end in two
  // places: of one rule the larger stays, unless only the smaller can be replaced.
  void drop_parts_of_the_same() {
    std::vector<std::vector<size_t>> holders(context_.graph.nodes.size());
    for (size_t i = 0; i < report_.matches.size(); ++i)
      for (NodeId node : report_.matches[i].nodes) holders[node].push_back(i);
    std::vector<bool> drop(report_.matches.size());
    for (size_t i = 0; i < report_.matches.size(); ++i) {
      const Match& part = report_.matches[i];
      for (size_t k : holders[part.nodes[0]]) {
        const Match& whole = report_.matches[k];
        if (k == i || whole.rule != part.rule || drop[k]) continue;
        const bool larger = whole.nodes.size() > part.nodes.size() ||
                            (whole.nodes.size() == part.nodes.size() && k < i);
        const bool as_good = whole.refusals.empty() || !part.refusals.empty();
        if (larger && as_good && std::ranges::includes(whole.nodes, part.nodes)) drop[i] = true;
      }
    }
    size_t next = 0;
    std::erase_if(report_.matches, [&](const Match&) { return drop[next++]; });
  }

  // What is replaced comes first, then what is the function of its rule, then the larger, then in
  // order: a later one that shares an operator is refused. One that is only found (a sum of
  // products, say) and shares it with a larger chain tells nobody anything.
  void settle_overlaps() {
    std::vector<Match*> order;
    for (Match& match : report_.matches) order.push_back(&match);
    const auto is_replaced = [](const Match* match) {
      return match->refusals.empty() && never_replaced(*match->rule).empty();
    };
    std::ranges::stable_sort(order, [&](const Match* a, const Match* b) {
      if (is_replaced(a) != is_replaced(b)) return is_replaced(a);
      if (is_another_function(*a) != is_another_function(*b)) return is_another_function(*b);
      return a->nodes.size() > b->nodes.size();
    });
    std::vector<const Match*> owner(context_.graph.nodes.size());
    std::set<const Match*> hidden;
    for (Match* match : order) {
      for (NodeId node : match->nodes) {
        const Match* first = owner[node];
        if (!first) continue;
        match->refusals.push_back({0,
                                   fmt::format("shares {} with a chain of {}",
                                               where(context_.graph, node), first->rule->name),
                                   node});
        const bool says_less =
            is_another_function(*match) || first->nodes.size() > match->nodes.size();
        if (says_less && !never_replaced(*match->rule).empty()) hidden.insert(match);
        break;
      }
      if (hidden.contains(match)) continue;
      for (NodeId node : match->nodes)
        if (!owner[node]) owner[node] = match;
    }
    std::erase_if(report_.matches, [&](const Match& match) { return hidden.contains(&match); });
  }

  // What is part of a match needs no explanation.
  void drop_covered_misses() {
    std::vector<bool> covered(context_.graph.nodes.size());
    for (const Match& match : report_.matches)
      for (NodeId node : match.nodes) covered[node] = true;
    std::erase_if(report_.near_misses,
                  [&](const NearMiss& miss) { return covered[miss.nodes.back()]; });
  }

  Context context_;
  MatchOptions options_;
  OpIndex ops_;
  int rules_ = 0;
  std::map<std::pair<int, int>, RulePatterns> grouped_;  // by root operator and rule
  std::vector<std::vector<RulePatterns>> by_root_;
  std::vector<int> ops_of_;       // by canonical node
  std::vector<Cone> cones_;       // by canonical node
  std::vector<NearMiss> misses_;  // of the current root
  std::vector<Candidate> candidates_;
  MatchReport report_;
};

}  // namespace

MatchReport find_matches(const Graph& graph, const Rulebook& rulebook,
                         const MatchOptions& options) {
  return Matcher(graph, rulebook, options).run();
}

}  // namespace opfuse::match
