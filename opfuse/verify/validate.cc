#include "opfuse/verify/validate.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "opfuse/graph/schema.h"
#include "opfuse/graph/text.h"
#include "opfuse/verify/value_numbering.h"

namespace opfuse::verify {
namespace {

using graph::Graph;
using graph::kNone;
using graph::Node;
using graph::NodeId;

std::string place(const Graph& graph, NodeId id) {
  const Node& node = graph.nodes[id];
  std::string text;
  if (!node.positions.empty()) {
    const graph::Position& position = graph.positions[node.positions[0]];
    if (!position.file.empty()) text = " at " + position.file + ":" + std::to_string(position.line);
  }
  return text + " (operator " + std::to_string(id + 1) + " of " +
         std::to_string(graph.nodes.size()) + ")";
}

std::string argument_name(const Node& node, size_t index) {
  if (node.schema && index < node.schema->arguments.size())
    return node.schema->arguments[index].name;
  return "argument " + std::to_string(index);
}

// Why two nodes of the same operator that stand in the same place are not equal.
std::string difference(const Node& expected, const Node& observed, bool same_reads) {
  if (expected.inputs.size() != observed.inputs.size()) return "it has other arguments";
  for (size_t i = 0; i < expected.inputs.size(); ++i) {
    const graph::Input &a = expected.inputs[i], &b = observed.inputs[i];
    if (a.kind != b.kind || a.values.size() != b.values.size())
      return "its argument " + argument_name(observed, i) + " is of another kind";
    if (a.kind == graph::InputKind::kAttr && !(a.attr == b.attr))
      return "its argument " + argument_name(observed, i) + " is " + graph::print_attr(b.attr) +
             ", expected " + graph::print_attr(a.attr);
  }
  if (expected.region != observed.region && same_reads)
    return "it runs in another region (grad mode, autocast, backward or hooks differ)";
  return "it reads other values";
}

// The unmatched expected node that should have stood where `observed` stands: one that reads the
// same values, else the first of the same operator, else the first.
const NodeTerm* counterpart(const Graph& expected, const std::vector<const NodeTerm*>& left,
                            const std::string& op, const NodeTerm& observed) {
  const auto find = [&](auto matches) -> const NodeTerm* {
    const auto at = std::find_if(left.begin(), left.end(),
                                 [&](const NodeTerm* term) { return matches(*term); });
    return at == left.end() ? nullptr : *at;
  };
  const auto same_op = [&](const NodeTerm& t) { return expected.nodes[t.node].op == op; };
  const auto same_reads = [&](const NodeTerm& t) { return t.reads == observed.reads; };
  if (const auto* term = find([&](const NodeTerm& t) { return same_op(t) && same_reads(t); }))
    return term;
  if (const auto* term = find(same_reads)) return term;
  return left.empty() ? nullptr : left.front();
}

std::string explain(const Graph& expected, const Graph& observed,
                    const std::vector<const NodeTerm*>& missing,
                    const std::vector<const NodeTerm*>& surplus) {
  if (surplus.empty()) {
    const NodeId id = missing.front()->node;
    return expected.nodes[id].op + place(expected, id) + " was expected, but did not run";
  }
  const NodeTerm& first = *surplus.front();
  const Node& node = observed.nodes[first.node];
  const std::string head = node.op + place(observed, first.node);
  const NodeTerm* other = counterpart(expected, missing, node.op, first);
  if (!other) return head + " ran, but nothing is expected there";
  const Node& wanted = expected.nodes[other->node];
  if (wanted.op == node.op)
    return head + " differs: " + difference(wanted, node, other->reads == first.reads);
  return head + " ran where " + wanted.op + place(expected, other->node) + " was expected";
}

}  // namespace

ValidationVerdict validate(const Graph& expected, const Graph& observed,
                           const ValidateOptions& options) {
  ValidationVerdict verdict;
  verdict.attempts = 1;
  const SharedNames names = shared_names(expected, observed, options.ignore_shapes);
  const Numbering left = number_values(expected, names);
  const Numbering right = number_values(observed, names);
  for (const auto& [numbering, graph] :
       {std::pair(&left, &expected), std::pair(&right, &observed)}) {
    if (numbering->refusal.empty()) continue;
    const NodeId id = numbering->refusal_node;
    verdict.reason = graph->nodes[id].op + place(*graph, id) + " " + numbering->refusal;
    return verdict;
  }

  std::unordered_map<Term, int64_t, TermHash> open;
  for (const NodeTerm& term : left.terms) ++open[term.term];
  std::vector<const NodeTerm*> surplus, missing;
  for (const NodeTerm& term : right.terms) {
    const auto at = open.find(term.term);
    if (at == open.end() || at->second == 0) {
      surplus.push_back(&term);
    } else {
      --at->second;
      ++verdict.operators_equal;
    }
  }
  for (const NodeTerm& term : left.terms) {
    int64_t& count = open[term.term];
    if (count == 0) continue;
    --count;
    missing.push_back(&term);
  }
  if (!surplus.empty() || !missing.empty()) {
    verdict.reason = explain(expected, observed, missing, surplus);
    return verdict;
  }
  for (size_t i = 0; i < expected.nodes.size(); ++i) {
    const Node& node = expected.nodes[i];
    if (node.event != kNone ||
        graph::is_engine_accumulation(expected, static_cast<graph::NodeId>(i)))
      continue;
    if (node.dur_ns == 0) continue;  // goes on with the operator before it (rewrite/splice.cc)
    const bool made_scope = node.scope != kNone && expected.scopes[node.scope].event == kNone &&
                            expected.scopes[node.scope].kind == graph::ScopeKind::kAutogradNode;
    const bool backward = made_scope || node.op.find("_backward") != std::string::npos;
    ++(backward ? verdict.backward_replaced : verdict.sites_replaced);
  }
  verdict.accepted = true;
  verdict.reason = "every operator, argument, write and data dependence is as planned";
  return verdict;
}

}  // namespace opfuse::verify
