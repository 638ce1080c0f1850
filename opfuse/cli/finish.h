#pragma once
// Makes the files of the report directory from what the processes left, and prints the table.

#include <optional>
#include <string>

#include "opfuse/cli/launch.h"
#include "opfuse/cli/watch.h"
#include "opfuse/report/report.h"

namespace opfuse::cli {

// Writes report.html, report.json, plan.json, changes.diff and the traces; prints the table when
// `watcher` has not seen it yet. `end` is empty while the script still runs. Returns the outcome as
// a code (0 tuned, 3 nothing found, 4 not faster, 5 refused, 7 undecided).
int finish_run(const LaunchOptions& options, const std::string& run_dir,
               const std::optional<report::RunEnd>& end, StateWatcher* watcher);

// Removes a run directory in which nothing was recorded.
void remove_empty_run(const std::string& run_dir);

bool use_color(const std::string& when);

}  // namespace opfuse::cli
