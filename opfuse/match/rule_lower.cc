#include "opfuse/match/rule_lower.h"

#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "opfuse/match/alternatives.h"
#include "opfuse/match/lowering.h"

namespace opfuse::match {
namespace {

using graph::Graph;
using graph::kNone;
using graph::ValueId;

constexpr int kMaxOptional = 3;

class RuleLowering {
 public:
  RuleLowering(const RuleSyntax& syntax, const graph::SchemaTable& schemas)
      : syntax_(syntax), schemas_(schemas), rule_(syntax.head) {}

  Result<Rule> run() {
    OPFUSE_TRY_STATUS(check_targets());
    if (rule_.extends) return std::move(rule_);
    OPFUSE_TRY(rule_.guards, guards(syntax_.conditions, {}));
    OPFUSE_TRY(rule_.composition, block(syntax_.composition, "composition", 0));
    if (rule_.composition.graph.results.size() != rule_.returns.size())
      return at(syntax_.composition.line,
                fmt::format("rule {}: expected {} results, found {}", rule_.name,
                            rule_.returns.size(), rule_.composition.graph.results.size()));
    for (const SpellingSyntax& spelling : syntax_.spellings) {
      OPFUSE_TRY(Spelling lowered, block(spelling.block, spelling.title, 0));
      lowered.equivalence = spelling.equivalence;
      rule_.spellings.push_back(std::move(lowered));
    }
    OPFUSE_TRY_STATUS(add_alternatives());
    for (const NearSyntax& near : syntax_.near) {
      OPFUSE_TRY(NearNeighbour lowered, neighbour(near));
      rule_.near.push_back(std::move(lowered));
    }
    return std::move(rule_);
  }

 private:
  Error at(int line, const std::string& sentence) const {
    return Error{fmt::format("{}:{}:1: {}", rule_.file, line, sentence)};
  }

  Status check_targets() const {
    for (const Target& target : rule_.targets)
      if (target.op.starts_with("aten.") && !schemas_.find(target.op))
        return at(rule_.line, fmt::format("rule {}: expected an operator as target, found '{}'",
                                          rule_.name, target.op));
    return ok_status();
  }

  Result<Spelling> block(const Block& block, const std::string& name, uint32_t absent) {
    Lowering lowering(rule_, schemas_, {false, absent});
    OPFUSE_TRY_STATUS(lowering.block(block));
    OPFUSE_TRY(Spelling spelling, lowering.finish(name, block.line));
    OPFUSE_TRY_STATUS(check_connected(spelling));
    return spelling;
  }

  // The composition and each spelling without some of the optional parameters. A spelling that uses
  // an optional parameter without asking is a way of writing it with that parameter only.
  Status add_alternatives() {
    uint32_t optional = 0;
    for (size_t i = 0; i < rule_.parameters.size(); ++i)
      if (rule_.parameters[i].optional) optional |= uint32_t{1} << i;
    if (std::popcount(optional) > kMaxOptional)
      return at(rule_.line,
                fmt::format("rule {}: expected at most {} optional parameters, found {}",
                            rule_.name, kMaxOptional, std::popcount(optional)));
    std::vector<Spelling> written = {rule_.composition};
    written.insert(written.end(), rule_.spellings.begin(), rule_.spellings.end());
    for (uint32_t absent = optional; absent != 0; absent = (absent - 1) & optional) {
      OPFUSE_TRY(Spelling without, block(syntax_.composition, "composition", absent));
      written.push_back(without);
      rule_.alternatives.push_back(std::move(without));
      for (const SpellingSyntax& spelling : syntax_.spellings)
        OPFUSE_TRY_STATUS(add_without(spelling, absent, &written));
    }
    for (const Spelling& one : written)
      for (Spelling& other : alternatives_of(one)) rule_.alternatives.push_back(std::move(other));
    return ok_status();
  }

  Status add_without(const SpellingSyntax& spelling, uint32_t absent,
                     std::vector<Spelling>* written) {
    Lowering lowering(rule_, schemas_, {false, absent});
    if (Status status = lowering.block(spelling.block); !status.ok())
      return lowering.needs_absent() ? ok_status() : status;
    OPFUSE_TRY(Spelling without, lowering.finish(spelling.title, spelling.block.line));
    without.equivalence = spelling.equivalence;
    OPFUSE_TRY_STATUS(check_connected(without));
    written->push_back(without);
    rule_.alternatives.push_back(std::move(without));
    return ok_status();
  }

  Result<NearNeighbour> neighbour(const NearSyntax& near) {
    Lowering lowering(rule_, schemas_, {true, 0});
    if (near.substituted.empty()) {
      OPFUSE_TRY_STATUS(lowering.returns(near.formula));
    } else {
      OPFUSE_TRY_STATUS(lowering.substitute(near.substituted, near.formula));
      OPFUSE_TRY_STATUS(lowering.block(syntax_.composition));
    }
    NearNeighbour result;
    result.title = near.title;
    result.why = near.why;
    result.others = lowering.others();
    OPFUSE_TRY(result.spelling, lowering.finish(near.title, near.line));
    OPFUSE_TRY_STATUS(check_connected(result.spelling));
    OPFUSE_TRY(result.guards, guards(near.conditions, result.others));
    return result;
  }

  Result<std::vector<Guard>> guards(const std::vector<Condition>& conditions,
                                    const std::vector<std::string>& others) {
    std::vector<Guard> result;
    for (const Condition& condition : conditions) {
      Guard guard = condition.guard;
      if (guard.kind == Guard::Kind::kCompare) {
        Lowering lowering(rule_, schemas_, {});
        OPFUSE_TRY(guard.left, lowering.number_of(condition.left));
        OPFUSE_TRY(guard.right, lowering.number_of(condition.right));
      } else {
        for (const std::string& name : {guard.a, guard.b})
          if (!is_tensor(name) && std::ranges::find(others, name) == others.end())
            return at(
                condition.line,
                fmt::format("rule {}: expected a tensor parameter, found '{}'", rule_.name, name));
      }
      result.push_back(std::move(guard));
    }
    return result;
  }

  bool is_tensor(const std::string& name) const {
    auto it = std::ranges::find(rule_.parameters, name, &RuleParameter::name);
    return it != rule_.parameters.end() && it->is_tensor;
  }

  // Matching starts at the last operator and goes from value to value: everything must be within
  // reach.
  Status check_connected(const Spelling& spelling) const {
    const Graph& g = spelling.graph;
    std::vector<bool> reached(g.values.size());
    if (g.nodes.empty()) return ok_status();  // told elsewhere: a parameter is returned as it is
    bool grows = true;
    for (ValueId v : g.nodes.back().outputs)
      if (v != kNone) reached[v] = true;
    while (grows) {
      grows = false;
      for (const graph::Node& node : g.nodes) {
        std::vector<ValueId> around;
        for (ValueId v : node.outputs)
          if (v != kNone) around.push_back(v);
        for (const graph::Input& input : node.inputs)
          for (ValueId v : input.values)
            if (v != kNone && !g.values[v].meta.number) around.push_back(v);
        const auto known = [&](ValueId v) { return static_cast<bool>(reached[v]); };
        if (std::ranges::none_of(around, known) || std::ranges::all_of(around, known)) continue;
        for (ValueId v : around) reached[v] = true;
        grows = true;
      }
    }
    for (const graph::Node& node : g.nodes)
      if (!node.outputs.empty() && node.outputs[0] != kNone && !reached[node.outputs[0]])
        return at(spelling.line, fmt::format("{} computes something that shares no value with the "
                                             "rest of it",
                                             spelling.name));
    for (const graph::Node& node : g.nodes) {
      const bool used = std::ranges::any_of(node.outputs, [&](ValueId v) {
        return v != kNone &&
               (!g.users[v].empty() || std::ranges::find(g.results, v) != g.results.end());
      });
      if (!used)
        return at(spelling.line,
                  fmt::format("{} computes {}, which nothing uses", spelling.name, node.op));
    }
    return ok_status();
  }

  const RuleSyntax& syntax_;
  const graph::SchemaTable& schemas_;
  Rule rule_;
};

}  // namespace

Result<Rule> lower_rule(const RuleSyntax& syntax, const graph::SchemaTable& schemas) {
  return RuleLowering(syntax, schemas).run();
}

}  // namespace opfuse::match
