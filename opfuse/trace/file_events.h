#pragma once
// TraceFile -> EventTable: operators with their arguments, autograd nodes, Functions, user scopes
// and modules as events; Python frames as stacks; kernels and memory as tables of their own. What
// the file does not hold stays unknown: no tensor ids, no results, Python numbers without a value.

#include <cstdint>
#include <optional>

#include "opfuse/base/result.h"
#include "opfuse/trace/calls.h"
#include "opfuse/trace/event_table.h"
#include "opfuse/trace/trace_file.h"

namespace opfuse::trace {

struct FileEvents {
  EventTable table;
  std::vector<int32_t> row_of;  // by event: its row in the file
  bool whole = true;            // not one step of it
};

// `step`: only what began inside the annotation ProfilerStep#<step>; an error names those there
// are.
Result<FileEvents> file_events(const TraceFile& file, const Calls& calls,
                               std::optional<int64_t> step = std::nullopt);

// Steps of the file (ProfilerStep#N) in order.
std::vector<int64_t> steps_of(const TraceFile& file);

}  // namespace opfuse::trace
