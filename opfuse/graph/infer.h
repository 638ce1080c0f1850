#pragma once
// EventTable of a trace file -> Graph: such a file says which operator ran on which shapes, and not
// on which tensors. Which value an input is, is inferred, and every edge says how:
//   P2  from allocation events: the value's memory was alive, has the right size, and either died
//       after this operator without another possible reader, or no other live value fits
//   P1  no other recent value has this shape and dtype (or P2's memory fits several: the newest)
//   P0  several recent values fit: the newest
// An input that nothing fits is external. Attributes and numbers that the file does not hold are
// unknown. The graph is for finding and pricing, never for replacing.

#include <array>

#include "opfuse/base/result.h"
#include "opfuse/graph/graph.h"
#include "opfuse/graph/schema.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::graph {

struct InferredGraph {
  Graph graph;
  std::vector<int32_t> kernels;        // by node: device work that it launched
  std::vector<NodeId> node_of_kernel;  // by row of EventTable::kernels; kNone: of no node
  std::array<int64_t, 4> edges{};      // by Proof
  bool has_shapes = false, has_memory = false;
};

// Node::dur_ns is the time on the device, where the table has kernels, else on the host.
// `schemas` must outlive the result.
Result<InferredGraph> infer_graph(const trace::EventTable& table, const SchemaTable& schemas);

}  // namespace opfuse::graph
