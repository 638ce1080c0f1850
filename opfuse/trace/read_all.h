#pragma once
// Every trace that a path stands for: a file, a folder of ranks (searched with what is below it),
// or a tar archive, compressed or not. One after another, so that only one is held.

#include <functional>
#include <string>

#include "opfuse/trace/read.h"

namespace opfuse::trace {

using UseTrace = std::function<Status(TraceFile)>;

// Calls `use` for each trace in the order of their names, numbers compared as numbers. Files of a
// folder or archive that are no traces are passed over; an error when none is one.
Status for_each_trace(const std::string& path, const ReadOptions& options, const UseTrace& use);

// Names as people sort them: rank2 before rank10.
bool natural_less(std::string_view a, std::string_view b);

// The same for several paths in their order. Slices of one timeline ("x_slice_0_T.json",
// "x_slice_1_T.json", …) are one trace; a number that is missing is counted (SliceMissing).
Status for_each_trace_of(const std::vector<std::string>& paths, const ReadOptions& options,
                         const UseTrace& use);

}  // namespace opfuse::trace
