#pragma once
// One HTML file with the timeline of trace files: every row of the host's threads and the device's
// streams on one time axis, chains marked, and what was found above it. No network access.

#include <string>
#include <vector>

#include "opfuse/report/trace_report.h"
#include "opfuse/trace/file_events.h"

namespace opfuse::report {

// More rows than this and the shortest are left out, counted.
constexpr size_t kMaxViewEvents = 250000;

struct TraceView {
  const trace::TraceFile* file = nullptr;
  const trace::Calls* calls = nullptr;
  const trace::FileEvents* events = nullptr;
  const TraceReport* report = nullptr;
};

std::string render_trace_html(const std::vector<TraceView>& views);

}  // namespace opfuse::report
