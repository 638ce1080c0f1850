#pragma once
// Two traces side by side. Aligned by structure: the operators of both in order, as a shortest edit
// script, so that "sigmoid, mul became silu at 49 places" is seen without names of places. Then
// counts and times by operator and by module, and TIME of a step where both have steps.

#include <cstdint>
#include <string>
#include <vector>

#include "opfuse/graph/infer.h"
#include "opfuse/report/trace_report.h"
#include "opfuse/trace/trace_file.h"

namespace opfuse::report {

struct TraceSide {
  const trace::TraceFile* file = nullptr;
  const graph::InferredGraph* inferred = nullptr;
  const TraceReport* report = nullptr;
};

// The same exchange of operators, at `places`.
struct TraceEdit {
  std::vector<std::string> removed, added;
  int64_t places = 0;
  int64_t removed_ns = 0, added_ns = 0;
};

struct TraceChange {  // of one operator or module
  std::string name;
  int64_t calls_before = 0, calls_after = 0;
  int64_t ns_before = 0, ns_after = 0;
};

struct TraceComparison {
  bool aligned = false;          // false: the two differ in more places than are worth aligning
  int64_t same = 0;              // operators in both
  std::vector<TraceEdit> edits;  // by time, largest first
  std::vector<TraceChange> operators;  // by difference of time, largest first; equal ones left out
  std::vector<TraceChange> modules;
  std::vector<TraceChange> chains;  // of small operators, by rule: gone where they were replaced
  double step_before_s = 0, step_after_s = 0;  // median of ProfilerStep rows; 0: none
};

TraceComparison compare_traces(const TraceSide& before, const TraceSide& after);
std::string comparison_text(const TraceComparison& comparison, const TraceReport& before,
                            const TraceReport& after, double batch, size_t top);

}  // namespace opfuse::report
