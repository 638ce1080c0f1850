#pragma once
// The nodes of an inferred graph: the leaves of the call tree in order of start, with schemas,
// attributes, scopes and device times. Each tensor input has a value of its own, which says only
// how it looks. Internal to graph/.

#include "opfuse/graph/graph.h"
#include "opfuse/graph/schema.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::graph {

struct InferredNodes {
  Graph graph;
  std::vector<int32_t> kernels;        // by node
  std::vector<NodeId> node_of_kernel;  // by row of EventTable::kernels
};

InferredNodes infer_nodes(const trace::EventTable& table, const SchemaTable& schemas);

}  // namespace opfuse::graph
