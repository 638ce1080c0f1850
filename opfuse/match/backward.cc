// Joins a forward chain with the backward operators that it causes: by the sequence number of the
// custom Function, or by those of the autograd nodes that its operators made.

#include <algorithm>
#include <set>

#include "opfuse/match/context.h"

namespace opfuse::match {

using graph::kNone;
using graph::NodeId;
using graph::ScopeKind;
using graph::ValueId;

namespace {

std::set<int64_t> sequences(const Context& context, const Match& match) {
  std::set<int64_t> result;
  if (match.function_scope != kNone) {
    int64_t sequence = context.graph.scopes[match.function_scope].sequence;
    if (sequence >= 0) result.insert(sequence);
    return result;
  }
  for (NodeId id : match.nodes)
    if (context.node(id).forward_sequence >= 0) result.insert(context.node(id).forward_sequence);
  return result;
}

std::set<ValueId> forward_values(const Context& context, const Match& match) {
  std::set<ValueId> values(match.inputs.begin(), match.inputs.end());
  for (NodeId id : match.nodes)
    for (ValueId v : context.node(id).outputs) values.insert(v);
  return values;
}

// What enters from outside, beside values of the forward chain: the cotangents.
std::set<ValueId> entering(const Context& context, const Match& match) {
  std::set<ValueId> saved = forward_values(context, match), result;
  std::set<NodeId> inside(match.backward.nodes.begin(), match.backward.nodes.end());
  for (NodeId id : match.backward.nodes)
    for (ValueId v : context.operands(id))
      if (!saved.contains(v) && !context.is_number(v) &&
          !inside.contains(context.value(v).producer))
        result.insert(v);
  return result;
}

std::vector<ValueId> leaving(const Context& context, const BackwardChain& chain) {
  std::set<NodeId> inside(chain.nodes.begin(), chain.nodes.end());
  std::vector<ValueId> result;
  for (NodeId id : chain.nodes)
    for (ValueId v : context.node(id).outputs) {
      if (v == kNone || context.value(v).producer != id) continue;
      const std::vector<NodeId>& readers = context.graph.users[v];
      bool outside = std::ranges::any_of(readers, [&](NodeId r) { return !inside.contains(r); });
      bool is_result = std::ranges::find(context.graph.results, v) != context.graph.results.end();
      if (outside || readers.empty() || is_result) result.push_back(v);
    }
  return result;
}

// The backward of a sum of equal shapes runs no operator: it hands the gradient on. So does that of
// a difference from which a number is taken.
bool hands_on(const Context& context, const Match& match, int64_t sequence) {
  return match.function_scope == kNone && std::ranges::any_of(match.nodes, [&](NodeId id) {
           const graph::Node& node = context.node(id);
           return node.forward_sequence == sequence &&
                  (node.op.starts_with("aten.add.") || node.op.starts_with("aten.sub."));
         });
}

bool is_inside(const std::set<NodeId>& nodes, const Context& context, ValueId value) {
  return nodes.contains(context.value(value).producer);
}

// The scope in which the engine evaluates one autograd node: that node's own scope is inside it.
int32_t evaluation_of(const Context& context, NodeId id) {
  const int32_t node = enclosing_scope(context.graph, id, ScopeKind::kAutogradNode);
  return node == kNone ? kNone : context.graph.scopes[node].parent;
}

// What the engine itself runs after an autograd node: it sums a gradient to the shape of an input
// that was broadcast.
bool is_reduction(const Context& context, NodeId id) {
  const graph::Node& node = context.node(id);
  return (node.op == "aten.sum.dim_IntList" || node.op == "aten.view") && node.scope != kNone &&
         context.graph.scopes[node.scope].name.find("evaluate_function") != std::string::npos;
}

// The engine's reductions after the chain's autograd nodes, those after nodes that hand the
// cotangent on without an operator among them.
void add_reductions(const Context& context, ValueId cotangent, bool hands_on,
                    BackwardChain* chain) {
  std::set<NodeId> inside(chain->nodes.begin(), chain->nodes.end());
  std::set<int32_t> evaluations;
  for (NodeId id : chain->nodes) evaluations.insert(evaluation_of(context, id));
  evaluations.erase(kNone);
  constexpr NodeId kAfter = 4;  // a sum and a view for each of two inputs
  const NodeId from = cotangent == kNone
                          ? chain->nodes.front()
                          : std::min(chain->nodes.front(), context.value(cotangent).producer + 1);
  const NodeId last = std::min<NodeId>(chain->nodes.back() + kAfter,
                                       static_cast<NodeId>(context.graph.nodes.size()) - 1);
  int32_t handing = kNone;  // the one evaluation that reduces the cotangent for this chain
  for (NodeId id = std::max<NodeId>(from, 0); id <= last; ++id) {
    if (inside.contains(id) || !is_reduction(context, id)) continue;
    const int32_t scope = context.node(id).scope;
    const ValueId operand = context.operands(id)[0];
    const bool own = evaluations.contains(scope) && is_inside(inside, context, operand);
    const bool of_cotangent =
        hands_on && operand == cotangent && (handing == kNone || handing == scope);
    if (of_cotangent) handing = scope;
    if (own || of_cotangent || (scope == handing && is_inside(inside, context, operand)))
      inside.insert(id);
  }
  chain->nodes.assign(inside.begin(), inside.end());
}

// The engine's sums of contributions to an inner value: made of the chain's values alone, and read
// by an operator of the chain.
void add_inner_sums(const Context& context, BackwardChain* chain) {
  std::set<NodeId> inside(chain->nodes.begin(), chain->nodes.end());
  std::vector<NodeId> sums;
  for (NodeId id = chain->nodes.front(); id <= chain->nodes.back(); ++id) {
    if (inside.contains(id) || !graph::is_engine_accumulation(context.graph, id)) continue;
    const bool own = std::ranges::all_of(context.operands(id),
                                         [&](ValueId v) { return is_inside(inside, context, v); });
    if (!own) continue;
    inside.insert(id);
    sums.push_back(id);
  }
  for (size_t i = sums.size(); i-- > 0;) {
    bool needed = false;
    for (ValueId v : context.node(sums[i]).outputs)
      needed = needed || (v != kNone && std::ranges::any_of(context.graph.users[v], [&](NodeId r) {
                            return r > sums[i] && inside.contains(r);
                          }));
    if (!needed) inside.erase(sums[i]);
  }
  chain->nodes.assign(inside.begin(), inside.end());
}

int32_t whole_function(const Context& context, const Match& match) {
  int32_t scope = enclosing_scope(context.graph, match.nodes[0], ScopeKind::kFunction);
  if (scope == kNone) return kNone;
  for (NodeId id : match.nodes)
    if (enclosing_scope(context.graph, id, ScopeKind::kFunction) != scope) return kNone;
  bool whole = context.function_sizes[scope] == static_cast<int32_t>(match.nodes.size());
  return whole ? scope : kNone;
}

// What the engine runs between and after the autograd nodes of the chain.
void join_engine(const Context& context, bool some_hand_on, Match* match) {
  BackwardChain& chain = match->backward;
  add_reductions(context, kNone, false, &chain);
  add_inner_sums(context, &chain);
  add_reductions(context, kNone, false, &chain);
  const std::set<ValueId> cotangents = entering(context, *match);
  if (cotangents.size() == 1 && some_hand_on)
    add_reductions(context, *cotangents.begin(), true, &chain);
}

}  // namespace

void join_backward(const Context& context, Match* match) {
  match->function_scope = whole_function(context, *match);
  BackwardChain& chain = match->backward;
  bool all_found = true, some_hand_on = false;
  for (int64_t sequence : sequences(context, *match)) {
    auto it = context.backward_nodes.find(sequence);
    if (it == context.backward_nodes.end()) {
      const bool on = hands_on(context, *match, sequence);
      all_found = all_found && on;
      some_hand_on = some_hand_on || on;
      continue;
    }
    chain.nodes.insert(chain.nodes.end(), it->second.begin(), it->second.end());
  }
  if (chain.nodes.empty()) return;
  std::ranges::sort(chain.nodes);
  if (match->function_scope == kNone) join_engine(context, some_hand_on, match);
  std::set<ValueId> cotangents = entering(context, *match);
  if (!cotangents.empty()) chain.grad_output = *cotangents.begin();
  chain.grad_inputs = leaving(context, chain);
  chain.complete = all_found && cotangents.size() == 1 && !chain.grad_inputs.empty();
}

}  // namespace opfuse::match
