#pragma once
// What the session answers to Python, as JSON: the torch-free half of the boundary. Field names are
// those of docs/architecture.md ("state files").

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "opfuse/match/match.h"
#include "opfuse/pipeline.h"
#include "opfuse/rewrite/plan.h"
#include "opfuse/verify/statistics.h"
#include "opfuse/verify/verdict.h"

namespace opfuse::torch_bridge {

using Json = nlohmann::ordered_json;

Json sites_json(const Analysis& analysis);
Json near_misses_json(const Analysis& analysis);
// Chains that no rule knows, with their share of the step.
Json candidates_json(const Analysis& analysis);
std::pair<std::string, double> low_precision_of(const graph::Graph& graph);
// Sites with what the plan makes of them (status, becomes, refusal).
Json planned_sites_json(const rewrite::Plan& plan);  // of a plan from a file
Json planned_sites_json(const Analysis& analysis, const rewrite::Plan& plan);

Json site_verdict_json(const verify::SiteVerdict& verdict);
Json step_verdict_json(const verify::StepVerdict& verdict);
Json validation_json(const verify::ValidationVerdict& verdict);
Json ab_json(const verify::AbTest& test, const std::vector<verify::StepSample>& samples);

std::string phase_name(verify::AbPhase phase);
std::string outcome_name(verify::AbOutcome outcome);

// A site's identity across records: rule, enclosing Function and source positions of its chain.
std::string site_key(const Analysis& analysis, const match::Site& site);

}  // namespace opfuse::torch_bridge
