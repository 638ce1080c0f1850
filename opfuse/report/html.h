#pragma once
// report.html: one file without network access, for a reader who was not there. In: the Report and,
// where they can be read, the records of the step before and after (Report::files). Out: the text.

#include <optional>
#include <string>

#include "opfuse/report/report.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::report {

// The recorded steps that the timeline shows; each may be missing.
struct StepRecords {
  std::optional<trace::EventTable> before, after;
};

std::string render_html(const Report& report, const StepRecords& records);

// Reads the records below `run_dir`; one that cannot be read is named on the page instead.
std::string render_html(const Report& report, const std::string& run_dir);

}  // namespace opfuse::report
