#pragma once
// The rows of legality by subject: legality.cc has those on use, memory and surroundings,
// legality_types.cc those on dtypes, shapes, layouts and devices.

#include <map>
#include <optional>
#include <set>
#include <string>

#include <fmt/format.h>

#include "opfuse/match/context.h"
#include "opfuse/match/legality.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::match {

using graph::kNone;
using graph::NodeId;
using graph::ScopeKind;
using graph::ValueId;
using Verdict = std::optional<Refusal>;

inline Verdict refuse(int row, std::string reason, NodeId node) {
  return Refusal{row, std::move(reason), node};
}

// One match, with the sets that the rows ask for.
struct Chain {
  Chain(const Context& c, const Match& m)
      : context(c),
        match(m),
        nodes(m.nodes.begin(), m.nodes.end()),
        backward(m.backward.nodes.begin(), m.backward.nodes.end()) {
    for (ValueId v : m.inputs)
      if (v != kNone) inputs.insert(v);
    for (ValueId v : m.outputs) outputs.insert(v);
    for (NodeId id : m.nodes)
      for (ValueId v : c.node(id).outputs)
        if (v != kNone && !outputs.contains(v) && !inputs.contains(v)) inner.insert(v);
    first = m.nodes.front();
    last = m.nodes.back();
  }

  bool reads_or_makes_storage(int32_t storage) const {
    for (const std::set<ValueId>* values : {&inputs, &inner, &outputs})
      for (ValueId v : *values)
        if (storage != kNone && context.value(v).storage == storage) return true;
    return false;
  }
  std::string at(NodeId node) const { return where(context.graph, node); }

  const Context& context;
  const Match& match;
  std::set<NodeId> nodes, backward;
  std::set<ValueId> inputs, inner, outputs;  // inner: made by the chain and not a result
  NodeId first, last;
};

inline std::string name_of(const Chain& c, ValueId v) {
  NodeId producer = c.context.value(v).producer;
  return producer == kNone ? "an inner value" : "the result of " + c.at(producer);
}

Verdict dtypes(const Chain& chain);
Verdict inner_casts(const Chain& chain);
Verdict random_inside(const Chain& chain);
Verdict no_kernel(const Chain& chain);
Verdict broadcast(const Chain& chain);
Verdict layout(const Chain& chain);
Verdict plain_tensors(const Chain& chain);
// What is not replaced yet whatever the place.
Verdict not_replaced_yet(const Chain& chain);

}  // namespace opfuse::match
