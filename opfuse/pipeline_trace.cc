#include "opfuse/pipeline_trace.h"

#include "opfuse/graph/build.h"
#include "opfuse/report/candidates.h"

namespace opfuse {

namespace {

// Formats that hold tensor ids: the graph of a recorded step.
Status graph_with_ids(TraceAnalysis* analysis) {
  OPFUSE_TRY(analysis->inferred.graph,
             graph::build_graph(analysis->events.table, graph::SchemaTable::builtin()));
  analysis->inferred.kernels.assign(analysis->inferred.graph.nodes.size(), 0);
  for (const graph::Node& node : analysis->inferred.graph.nodes)
    for (const graph::Input& input : node.inputs)
      analysis->inferred.edges[3] += static_cast<int64_t>(input.values.size());
  analysis->inferred.has_shapes = analysis->inferred.has_memory = true;
  return ok_status();
}

}  // namespace

Result<TraceAnalysis> analyze_trace(const std::string& path, const TraceOptions& options,
                                    const match::Rulebook& rulebook, StageLog* log) {
  trace::TraceFile file;
  OPFUSE_TRY_STATUS(run_stage("read", log, [&]() -> Status {
    OPFUSE_TRY(file, trace::read_trace(path, {.threads = options.threads}));
    return ok_status();
  }));
  return analyze_trace_file(std::move(file), options, rulebook, log);
}

Result<TraceAnalysis> analyze_trace_file(trace::TraceFile file, const TraceOptions& options,
                                         const match::Rulebook& rulebook, StageLog* log) {
  TraceAnalysis analysis;
  analysis.file = std::move(file);
  OPFUSE_TRY_STATUS(run_stage("calls", log, [&]() -> Status {
    if (analysis.file.table) {
      if (options.step)
        return Error{analysis.file.path + ": this format has no steps to choose from"};
      analysis.events.table = std::move(*analysis.file.table);
      analysis.file.table.emplace();  // says which kind of graph follows
      return ok_status();
    }
    analysis.calls = trace::find_calls(analysis.file, &analysis.file.losses);
    OPFUSE_TRY(analysis.events, trace::file_events(analysis.file, analysis.calls, options.step));
    return ok_status();
  }));
  OPFUSE_TRY_STATUS(run_stage("graph", log, [&]() -> Status {
    if (analysis.file.table) return graph_with_ids(&analysis);
    OPFUSE_TRY(analysis.inferred,
               graph::infer_graph(analysis.events.table, graph::SchemaTable::builtin()));
    return ok_status();
  }));
  OPFUSE_TRY_STATUS(run_stage("match", log, [&]() -> Status {
    analysis.matches =
        match::find_matches(analysis.inferred.graph, rulebook, {.assume_unknown = true});
    return ok_status();
  }));
  OPFUSE_TRY_STATUS(run_stage("report", log, [&]() -> Status {
    analysis.report = report::report_trace(analysis.file, analysis.calls, analysis.events.table,
                                           analysis.inferred, analysis.matches);
    const graph::Graph& graph = analysis.inferred.graph;
    analysis.report.candidates = report::candidates_of(
        graph, match::find_candidates(graph, analysis.matches,
                                      {.least_share = report::kLeastCandidateShare}));
    return ok_status();
  }));
  return analysis;
}

}  // namespace opfuse
