#pragma once
// Trace files name operators without their overload: which one it was, by the arguments.
// Internal to graph/.

#include "opfuse/graph/schema.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::graph {

// The overload of `name` ("aten::mul") that takes these arguments; null when there is none. With
// an overload in the name it is that one.
const Schema* find_overload(const SchemaTable& schemas, std::string_view name,
                            const std::vector<trace::ArgumentRow>& inputs);

}  // namespace opfuse::graph
