#pragma once
// Who called whom in a trace file: the tree of the host's rows on each thread, and for each row of
// the device the launch and the operator that it came from.
//
// A row is inside another when it starts before the other's end; ends may differ by 1 us, because
// profilers round them. One that ends later than that is still a child, is counted
// (CrossingSlices), and its parent is not made longer. Device rows are joined to launches by
// correlation (0 is unknown), never by the launch's name; launches to operators by enclosing time,
// else by external id. In a file of several ranks each device keeps to its process (id_index.h).

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "opfuse/trace/trace_file.h"

namespace opfuse::trace {

struct Calls {
  std::vector<int32_t> host;         // rows of the host with a time, by thread, then start
  std::vector<int32_t> parent;       // by file row: the row around it, or kNone
  std::vector<int32_t> launch;       // by file row of the device: the launch's row, or kNone
  std::vector<int32_t> operator_of;  // by file row of the device: the operator's row, or kNone
  // By file row of the device: the time up to the next one's start on its stream, where that is
  // earlier than its own end. Sums count this; the row keeps what the file says.
  std::unordered_map<int32_t, int64_t> clipped_ns;
  int64_t orphans = 0;         // kernels without an operator
  int64_t graph_launches = 0;  // launches of more than one kernel (captured graphs)
};

Calls find_calls(const TraceFile& file, LossLog* losses);

bool is_host(FileKind kind);
bool is_device_work(FileKind kind);

}  // namespace opfuse::trace
