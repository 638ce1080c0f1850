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

// The backward of a sum of equal shapes runs no operator: it hands the gradient on.
bool hands_on(const Context& context, const Match& match, int64_t sequence) {
  return match.function_scope == kNone && std::ranges::any_of(match.nodes, [&](NodeId id) {
           const graph::Node& node = context.node(id);
           return node.forward_sequence == sequence && node.op == "aten.add.Tensor";
         });
}

int32_t whole_function(const Context& context, const Match& match) {
  int32_t scope = enclosing_scope(context.graph, match.nodes[0], ScopeKind::kFunction);
  if (scope == kNone) return kNone;
  for (NodeId id : match.nodes)
    if (enclosing_scope(context.graph, id, ScopeKind::kFunction) != scope) return kNone;
  bool whole = context.function_sizes[scope] == static_cast<int32_t>(match.nodes.size());
  return whole ? scope : kNone;
}

}  // namespace

void join_backward(const Context& context, Match* match) {
  match->function_scope = whole_function(context, *match);
  BackwardChain& chain = match->backward;
  bool all_found = true;
  for (int64_t sequence : sequences(context, *match)) {
    auto it = context.backward_nodes.find(sequence);
    if (it == context.backward_nodes.end()) {
      all_found = all_found && hands_on(context, *match, sequence);
      continue;
    }
    chain.nodes.insert(chain.nodes.end(), it->second.begin(), it->second.end());
  }
  if (chain.nodes.empty()) return;
  std::ranges::sort(chain.nodes);
  std::set<ValueId> cotangents = entering(context, *match);
  if (!cotangents.empty()) chain.grad_output = *cotangents.begin();
  chain.grad_inputs = leaving(context, chain);
  chain.complete = all_found && cotangents.size() == 1 && !chain.grad_inputs.empty();
}

}  // namespace opfuse::match
