#pragma once
// The stages in order, each run through one wrapper that names it, times it, can switch it off and
// validates what it made. Read this file first.
//
//   record -> trace -> graph -> match -> price -> rewrite -> verify -> report
//
// In: the EventTable of a step. Out: the graph, what matched, the sites, the plan. Torch-free; the
// recording, the proof and the live switching around it are driven by opfuse/torch/session.cc.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "opfuse/base/result.h"
#include "opfuse/graph/graph.h"
#include "opfuse/graph/schema.h"
#include "opfuse/match/match.h"
#include "opfuse/match/rule.h"
#include "opfuse/rewrite/facts.h"
#include "opfuse/rewrite/plan.h"
#include "opfuse/trace/event_table.h"

namespace opfuse {

// Seconds by stage, in order of first run; also the switches (a name in `off` is not run).
struct StageLog {
  std::vector<std::pair<std::string, double>> seconds;
  std::vector<std::string> off;
};

// Runs one stage: skipped when switched off, timed, its error prefixed with its name; our own
// failed checks become an error of the stage, so that the caller can roll back.
Status run_stage(const std::string& name, StageLog* log, const std::function<Status()>& body);

// What one recorded step contains.
struct Analysis {
  graph::Graph graph;
  match::MatchReport report;
  std::vector<match::Site> sites;
};

// trace -> graph -> match, with the built-in schemas and then `extra` (custom operators; may be
// null), which must outlive the result. Validates the graph.
Result<Analysis> analyze(const trace::EventTable& table, const graph::SchemaTable* extra,
                         const match::Rulebook& rulebook, StageLog* log);

// Sites by --only and --exclude: a word is a rule's name or the tail of a path. Refused sites stay,
// with the reason.
void select_sites(Analysis* analysis, const std::vector<std::string>& only,
                  const std::vector<std::string>& exclude);

}  // namespace opfuse
