#pragma once
// Chains that no rule knows, as a report holds them. In: what match/candidates.h found in `graph`.

#include <vector>

#include "opfuse/match/candidates.h"
#include "opfuse/report/report.h"

namespace opfuse::report {

// Smaller ones are not worth a line.
constexpr double kLeastCandidateShare = 0.01;

std::vector<Candidate> candidates_of(const graph::Graph& graph,
                                     const std::vector<match::CandidateChain>& chains);

}  // namespace opfuse::report
