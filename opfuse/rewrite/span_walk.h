#pragma once
// Goes through the operations of a source expression beside the recorded operators of a match, and
// says with which names, numbers and constants of the source the rule's parameters are met at every
// call, not only at the recorded ones.

#include "opfuse/graph/graph.h"
#include "opfuse/match/match.h"
#include "opfuse/rewrite/facts.h"
#include "opfuse/rewrite/legality.h"

namespace opfuse::rewrite {

// SpanProof::parameters: source text by parameter; "" where it is absent, or a number that stands
// in no place of its own.
SpanProof walk_span(const graph::Graph& graph, const match::Match& match, const SiteFacts& facts);

}  // namespace opfuse::rewrite
