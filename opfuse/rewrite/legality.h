#pragma once
// Legality that the source decides: rows 3, 4, 25, 26, 33, 36, 37, 38, 43 and 44 of
// docs/legality.md. First what Python says of the code around the span, then the proof that the
// span is the rule's composition for every call, not only for the recorded ones.

#include <optional>
#include <string>
#include <vector>

#include "opfuse/graph/graph.h"
#include "opfuse/match/match.h"
#include "opfuse/rewrite/facts.h"

namespace opfuse::rewrite {

// The first row that forbids an edit of this code, or nothing.
std::optional<match::Refusal> refusal_from_facts(const SiteFacts& facts);

// What the proof gives: the source text of each parameter of the rule ("" for an absent one).
struct SpanProof {
  std::optional<match::Refusal> refusal;
  std::vector<std::string> parameters;
  // Parameters that are expressions of their own, in the order of their evaluation.
  std::vector<int> expressions;
};

// Each recorded operator of `match` is one operation of the span, in order, with the same callee
// and the same values; inputs are names that cannot change between their reads.
SpanProof prove_span(const graph::Graph& graph, const match::Match& match, const SiteFacts& facts);

// An operator that ran at one of the span's operations although it belongs to no match of the site
// (the edit would replace it too), or a match that came through another place (it would stay).
std::optional<match::Refusal> foreign_operator(const graph::Graph& graph,
                                               const match::MatchReport& report,
                                               const match::Site& site, const SiteFacts& facts);

}  // namespace opfuse::rewrite
