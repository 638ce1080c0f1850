#pragma once
// The stages for a trace file: read -> calls -> events -> inferred graph -> matches -> prices. In:
// a path. Out: everything that the reports of `opfuse analyze`, `compare` and `view` show.

#include <optional>
#include <string>
#include <vector>

#include "opfuse/base/result.h"
#include "opfuse/graph/infer.h"
#include "opfuse/match/match.h"
#include "opfuse/pipeline.h"
#include "opfuse/report/trace_report.h"
#include "opfuse/trace/file_events.h"
#include "opfuse/trace/read.h"

namespace opfuse {

struct TraceOptions {
  int threads = 0;              // as trace::ReadOptions
  std::optional<int64_t> step;  // ProfilerStep#N
};

struct TraceAnalysis {
  trace::TraceFile file;
  trace::Calls calls;
  trace::FileEvents events;
  graph::InferredGraph inferred;
  match::MatchReport matches;
  report::TraceReport report;
};

// The stages behind reading, for a file that is read.
Result<TraceAnalysis> analyze_trace_file(trace::TraceFile file, const TraceOptions& options,
                                         const match::Rulebook& rulebook, StageLog* log);

Result<TraceAnalysis> analyze_trace(const std::string& path, const TraceOptions& options,
                                    const match::Rulebook& rulebook, StageLog* log);

}  // namespace opfuse
