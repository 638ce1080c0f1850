#include "opfuse/pipeline.h"

#include <algorithm>
#include <chrono>

#include "opfuse/base/check.h"
#include "opfuse/graph/build.h"
#include "opfuse/graph/validate.h"

namespace opfuse {
namespace {

bool path_ends_with(const std::string& path, const std::string& tail) {
  return path == tail || path.ends_with("/" + tail);
}

bool site_is(const Analysis& analysis, const match::Site& site, const std::string& word) {
  if (site.rule && site.rule->name == word) return true;
  return std::any_of(site.positions.begin(), site.positions.end(), [&](int32_t row) {
    return path_ends_with(analysis.graph.positions[row].file, word);
  });
}

void refuse(Analysis* analysis, const match::Site& site, const std::string& reason) {
  for (int index : site.matches)
    analysis->report.matches[index].refusals.push_back({0, reason, graph::kNone});
}

}  // namespace

Status run_stage(const std::string& name, StageLog* log, const std::function<Status()>& body) {
  if (std::find(log->off.begin(), log->off.end(), name) != log->off.end())
    return Error{name + ": switched off"};
  const auto start = std::chrono::steady_clock::now();
  Status status = ok_status();
  try {
    status = body();
  } catch (const CheckFailed& failure) {
    status = Error{std::string("internal check failed: ") + failure.what()};
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  log->seconds.emplace_back(name, elapsed.count());
  if (!status.ok()) return Error{name + ": " + status.error().message};
  return status;
}

Result<Analysis> analyze(const trace::EventTable& table, const graph::SchemaTable* extra,
                         const match::Rulebook& rulebook, StageLog* log) {
  Analysis analysis;
  OPFUSE_TRY_STATUS(run_stage("graph", log, [&]() -> Status {
    OPFUSE_TRY(analysis.graph, graph::build_graph(table, graph::SchemaTable::builtin(), extra));
    return graph::validate_graph(analysis.graph);
  }));
  OPFUSE_TRY_STATUS(run_stage("match", log, [&]() -> Status {
    analysis.report = match::find_matches(analysis.graph, rulebook);
    analysis.sites = match::group_sites(analysis.graph, analysis.report);
    return ok_status();
  }));
  return analysis;
}

void select_sites(Analysis* analysis, const std::vector<std::string>& only,
                  const std::vector<std::string>& exclude) {
  for (const auto& site : analysis->sites) {
    const auto matches = [&](const std::string& word) { return site_is(*analysis, site, word); };
    if (!only.empty() && std::none_of(only.begin(), only.end(), matches))
      refuse(analysis, site, "left out by --only");
    for (const auto& word : exclude)
      if (matches(word)) refuse(analysis, site, "left out by --exclude " + word);
  }
}

}  // namespace opfuse
