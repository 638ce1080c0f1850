#pragma once
// Proves sites: the recorded operators of each call (forward and backward chain) against the rule's
// composition and its gradient in fp64, and the target operator against both in the run's dtype, on
// the captured values of every call and on generated inputs. One exact replay serves all sites, and
// the proof of the whole step after them. Calls no user code, never takes the GIL.

#include <memory>
#include <span>
#include <vector>

#include "opfuse/graph/graph.h"
#include "opfuse/match/match.h"
#include "opfuse/match/rule.h"
#include "opfuse/torch/record.h"
#include "opfuse/torch/replay.h"
#include "opfuse/verify/evaluator.h"
#include "opfuse/verify/verdict.h"

namespace opfuse::torch_bridge {

// One site: its calls in the graph of the record with values, and the operator that shall replace
// them. All calls have the same rule.
struct SiteCalls {
  int site = -1;
  std::vector<const match::Match*> calls;
  const match::Target* target = nullptr;
};

struct SiteProofOptions {
  ReplayLimits limits;
  bool generated = true;
};

struct SiteProofs {
  std::vector<verify::SiteVerdict> verdicts;  // one per site, in order
  std::unique_ptr<verify::Evaluation> exact;  // for verify::prove_step; none if a replay failed
};

SiteProofs prove_sites(const Record& record, const graph::Graph& graph,
                       std::span<const SiteCalls> sites, const SiteProofOptions& options = {});

verify::SiteVerdict prove_site(const Record& record, const graph::Graph& graph,
                               const SiteCalls& site, const SiteProofOptions& options = {});

}  // namespace opfuse::torch_bridge
