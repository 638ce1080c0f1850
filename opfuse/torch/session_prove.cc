// The methods of a session that prove a plan and look whether the running program became it.

#include <algorithm>
#include <chrono>

#include "opfuse/base/check.h"
#include "opfuse/graph/schema.h"
#include "opfuse/torch/replay.h"
#include "opfuse/torch/replay_layout.h"
#include "opfuse/torch/session.h"
#include "opfuse/torch/session_json.h"
#include "opfuse/torch/site_proof.h"
#include "opfuse/verify/step_verdict.h"
#include "opfuse/verify/validate.h"

namespace opfuse::torch_bridge {
namespace {

template <class T>
T get_or(const Json& object, const char* key, T fallback) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return fallback;
  return found->get<T>();
}

const match::Target* target_of(const match::Rule& rule, const std::string& op) {
  for (const auto& target : rule.targets)
    if (target.op == op) return &target;
  return nullptr;
}

// What cannot be put into the graph must not take the other sites with it.
Status try_rewrite(const Analysis& analysis, const rewrite::Replacement& replacement,
                   const rewrite::MatchTraces& traces) {
  rewrite::Plan one;
  one.replacements = {replacement};
  try {
    rewrite::rewrite_graph(analysis.graph, analysis.report, analysis.sites, one, traces);
  } catch (const CheckFailed& failure) {
    return Error{std::string("the step with its target cannot be foreseen: ") + failure.what()};
  }
  return ok_status();
}

// Composites count too, which are no nodes of a graph.
int64_t calls_of(const trace::EventTable& table, const std::string& op) {
  return std::count_if(table.events.begin(), table.events.end(), [&](const trace::EventRow& row) {
    return row.kind == trace::EventKind::kOperator && graph::dotted_name(table.name(row)) == op;
  });
}

}  // namespace

Status Session::trace_site(const Step& step, const rewrite::Replacement& replacement,
                           rewrite::MatchTraces* traces) {
  const match::Site& site = step.analysis->sites[static_cast<size_t>(replacement.site)];
  const match::Target* target = target_of(*site.rule, replacement.target);
  if (!target || !needs_trace(*site.rule, *target)) return ok_status();
  try {
    for (int index : site.matches) {
      OPFUSE_TRY(rewrite::MatchTrace trace,
                 tracer_.trace(*step.record, step.analysis->graph,
                               step.analysis->report.matches[index], *target));
      traces->insert_or_assign(index, std::move(trace));
    }
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return Error{text.substr(0, text.find('\n'))};
  }
  return ok_status();
}

Result<rewrite::MatchTraces> Session::traces_of(const Step& step, const rewrite::Plan& plan) {
  rewrite::MatchTraces traces;
  for (const auto& replacement : plan.replacements)
    OPFUSE_TRY_STATUS(trace_site(step, replacement, &traces));
  return traces;
}

Result<rewrite::Plan> Session::plan_for(const Analysis& analysis) const {
  rewrite::Plan plan = plan_;
  for (auto& replacement : plan.replacements) {
    const std::string& key = site_keys_.at(replacement.site);
    const auto found =
        std::find_if(analysis.sites.begin(), analysis.sites.end(),
                     [&](const match::Site& site) { return site_key(analysis, site) == key; });
    if (found == analysis.sites.end())
      return Error{"site " + std::to_string(replacement.site) + " (" + replacement.rule + " at " +
                   replacement.file + ":" + std::to_string(replacement.line) +
                   "): expected in every recorded step, but this one does not run it"};
    replacement.site = found->id;
  }
  return plan;
}

ReplayLimits Session::replay_limits(const Record& record) const {
  ReplayLimits limits;
  limits.max_bytes = get_or<int64_t>(config_, "verify_memory_bytes", -1);
  if (limits.max_bytes >= 0)  // the snapshots are still there
    limits.max_bytes = std::max<int64_t>(limits.max_bytes - record.snapshot_bytes, 0);
  return limits;
}

Result<Json> Session::prove(const Json& request) {
  OPFUSE_TRY(Step * step, this->step(request));
  if (!step->record->with_values) return Error{"prove: expected a record with values"};
  OPFUSE_TRY(Analysis * analysis, analysis_of(step));
  OPFUSE_TRY(rewrite::Plan plan, plan_for(*analysis));
  const ReplayLimits limits = replay_limits(*step->record);
  Json sites = Json::array();
  Json step_verdict;
  const auto begin = std::chrono::steady_clock::now();
  OPFUSE_TRY_STATUS(run_stage("prove", &log_, [&]() -> Status {
    std::vector<SiteCalls> calls;
    for (const auto& replacement : plan.replacements) {
      const match::Site& site = analysis->sites[static_cast<size_t>(replacement.site)];
      SiteCalls one;
      one.site = site.id;
      one.target = target_of(*site.rule, replacement.target);
      for (int index : site.matches) one.calls.push_back(&analysis->report.matches[index]);
      calls.push_back(std::move(one));
    }
    SiteProofOptions options;
    options.limits = limits;
    SiteProofs proofs = prove_sites(*step->record, analysis->graph, calls, options);
    std::vector<verify::SiteVerdict>& verdicts = proofs.verdicts;
    rewrite::MatchTraces traces;
    for (size_t i = 0; i < verdicts.size(); ++i) {
      if (verdicts[i].accepted) {
        Status traced = trace_site(*step, plan.replacements[i], &traces);
        if (traced.ok()) traced = try_rewrite(*analysis, plan.replacements[i], traces);
        if (!traced.ok()) {
          verdicts[i].accepted = false;
          verdicts[i].reason = traced.error().message;
        }
      }
      verdicts[i].site = plan_.replacements[i].site;  // numbered as in the plan
      sites.push_back(site_verdict_json(verdicts[i]));
    }
    // What failed leaves the plan, so the step is proved without it.
    rewrite::Plan proved = plan;
    proved.replacements.clear();
    for (size_t i = 0; i < verdicts.size(); ++i)
      if (verdicts[i].accepted) proved.replacements.push_back(plan.replacements[i]);
    const graph::Graph rewritten =
        rewrite::rewrite_graph(analysis->graph, analysis->report, analysis->sites, proved, traces);
    rewrite::Plan in_fp64 = proved;
    std::erase_if(in_fp64.replacements, [&](const rewrite::Replacement& replacement) {
      const match::Site& site = analysis->sites[static_cast<size_t>(replacement.site)];
      const match::Target* target = target_of(*site.rule, replacement.target);
      return target && !target->device.empty() && target->device != "cpu";  // fp64 is the CPU's
    });
    const graph::Graph rewritten_fp64 =
        rewrite::rewrite_graph(analysis->graph, analysis->report, analysis->sites, in_fp64, traces);
    std::unique_ptr<verify::Evaluator> evaluator = make_evaluator(*step->record, limits);
    verify::StepProofOptions step_options;
    if (in_fp64.replacements.size() != proved.replacements.size())
      step_options.rewritten_fp64 = &rewritten_fp64;
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
    step_options.seconds = get_or<double>(request, "seconds", 1e9) - spent.count();
    step_verdict = step_verdict_json(verify::prove_step(*evaluator, analysis->graph, rewritten,
                                                        step_options, std::move(proofs.exact)));
    return ok_status();
  }));
  return Json{{"sites", sites}, {"step", step_verdict}, {"seconds", log_.seconds.back().second}};
}

Result<Json> Session::prove_layout(const Json& request) {
  OPFUSE_TRY(Step * step, this->step(request));
  if (!step->record->with_values) return Error{"prove_layout: expected a record with values"};
  OPFUSE_TRY(Analysis * analysis, analysis_of(step));
  const ReplayLimits limits = replay_limits(*step->record);
  Json verdict;
  OPFUSE_TRY_STATUS(run_stage("prove", &log_, [&]() -> Status {
    verdict = step_verdict_json(torch_bridge::prove_layout(
        *step->record, analysis->graph, limits, get_or<double>(request, "seconds", 1e9)));
    return ok_status();
  }));
  return verdict;
}

Result<Json> Session::validate(const Json& request) {
  OPFUSE_TRY(Step * after, this->step(request, "after"));
  OPFUSE_TRY(Analysis * observed, analysis_of(after));
  verify::ValidationVerdict verdict;
  if (request.contains("before")) {
    OPFUSE_TRY(Step * before, this->step(request, "before"));
    OPFUSE_TRY(Analysis * original, analysis_of(before));
    OPFUSE_TRY(rewrite::Plan plan, plan_for(*original));
    OPFUSE_TRY(const rewrite::MatchTraces traces, traces_of(*before, plan));
    const graph::Graph expected =
        rewrite::rewrite_graph(original->graph, original->report, original->sites, plan, traces);
    verify::ValidateOptions options;
    options.ignore_shapes = get_or(request, "ignore_shapes", false);
    verdict = verify::validate(expected, observed->graph, options);
  } else {
    // A plan applied before the first step has no step to compare with: its targets must be there.
    verdict.accepted = true;
    for (const auto& replacement : plan_.replacements) {
      const int64_t seen = calls_of(after->record->table, replacement.target);
      verdict.sites_replaced += std::min<int64_t>(seen, replacement.calls);
      if (seen >= replacement.calls) continue;
      verdict.accepted = false;
      verdict.reason = replacement.target + ": expected " + std::to_string(replacement.calls) +
                       " calls in the step, found " + std::to_string(seen);
    }
  }
  return validation_json(verdict);
}

}  // namespace opfuse::torch_bridge
