#pragma once
// A recorded argument that is no tensor, as an attribute of a node. Internal to graph/.

#include "opfuse/graph/graph.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::graph {

Attr attr_of(const trace::EventTable& table, const trace::ArgumentRow& argument);

}  // namespace opfuse::graph
