#pragma once
// A trace with what was found in it as rows of its own, for chrome://tracing and Perfetto: every
// slice, arrow and name of the file that was read, as strict JSON, and a process "opfuse" with one
// row a chain on the host and one on the device. Names are masked for secrets; of the arguments
// only what joins rows is kept.

#include <string>
#include <vector>

#include "opfuse/base/result.h"
#include "opfuse/report/trace_view.h"

namespace opfuse::report {

std::string trace_overlay(const TraceView& view);

}  // namespace opfuse::report
