#pragma once
// The cut through a recorded call tree: which events become nodes. See build.h for the rules.
// Internal to graph/.

#include <cstdint>
#include <vector>

#include "opfuse/graph/schema.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::graph {

// A node to be: an event, and whether it is a hidden product of the next one.
struct CutEvent {
  int32_t event = trace::kNone;
  bool hidden_product = false;
};

struct Cut {
  std::vector<CutEvent> nodes;         // in the order of the graph
  std::vector<const Schema*> schemas;  // per event, null when unknown or not an operator
  std::vector<char> external;          // per storage: read before any node made it
};

Cut cut_call_tree(const trace::EventTable& table, const SchemaTable& schemas,
                  const SchemaTable* extra);

// Calls visit(tensor row) for every tensor of the arguments.
template <class Visit>
void for_each_tensor(const std::vector<trace::ArgumentRow>& arguments, Visit visit) {
  for (const trace::ArgumentRow& argument : arguments)
    for (int32_t row : argument.tensors)
      if (row != trace::kNone) visit(row);
}

}  // namespace opfuse::graph
