#pragma once
// What the verbs that read trace files have in common.

#include <string>

#include "opfuse/base/result.h"
#include "opfuse/pipeline_trace.h"

namespace opfuse::cli {

// `step` as --step gives it, "" for the whole file.
Result<TraceOptions> trace_options(const std::string& step);

}  // namespace opfuse::cli
