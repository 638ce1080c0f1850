#pragma once
// EventTable -> Graph: cuts the call tree at the level that replays exactly, assigns storage
// versions and values, fills defaults from schemas. The same cut and the same node order are used by
// the replay interpreter (Node::event names the recorded call).

#include "opfuse/base/result.h"
#include "opfuse/graph/graph.h"
#include "opfuse/graph/schema.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::graph {

Result<Graph> build_graph(const trace::EventTable& table, const SchemaTable& schemas);

}  // namespace opfuse::graph
