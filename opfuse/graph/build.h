#pragma once
// EventTable -> Graph: cuts the call tree at the level that replays exactly, assigns storage
// versions and values, fills defaults from schemas. The replay interpreter runs the nodes in order;
// Node::event names the recorded call, Graph::storages has the rows of EventTable::storages.
//
// The cut descends into composites without a kernel of their own, into operators that call
// themselves (autocast, dispatch modes) and into operators on wrapped tensors. Composites that
// called nothing returned their argument and leave no node.
//
// Values. One ValueId per (storage, version, offset, shape, strides, dtype), so a `detach` or
// `view` that gives an equal view while no gradient is at stake returns its input's id. Where
// autograd tells two equal views apart (the result of `detach` in grad mode, `.data`), they get two
// ids. A value with a producer and output -1 has no result of its own: after the producer ran it is
// the view at its offset, shape and strides of what the storage then holds. A version without a
// producer above 0 was written from outside (EventTable::outside_writes).
//
// Hidden products. In-place operators such as silu_ clone themselves for backward inside the leaf.
// When such a clone is read later, it becomes a node of its own, placed before the operator that
// made it and flagged hidden_product; running the nodes in order is right without further care.

#include "opfuse/base/result.h"
#include "opfuse/graph/graph.h"
#include "opfuse/graph/schema.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::graph {

// The position of the bool argument without which an operator of undeclared writes writes nothing
// ("training" of native_batch_norm), or -1.
int write_condition(const Schema& schema);

// `extra`: schemas of the record's custom operators, looked up after `schemas`; may be null.
// Both tables must outlive the graph.
Result<Graph> build_graph(const trace::EventTable& table, const SchemaTable& schemas,
                          const SchemaTable* extra = nullptr);

}  // namespace opfuse::graph
