#pragma once
// Why a place that looks like a rule is not one: the sentence for the best mismatch of a rule
// there, or the named neighbour that the rule's author foresaw.

#include <optional>

#include "opfuse/match/context.h"
#include "opfuse/match/solver.h"

namespace opfuse::match {

// The mismatch in words, with the row of docs/legality.md when it is one: 5, 6 (the same view at
// another version), 16 (a cast), 29 (a constant), else 0. Nothing when it is not worth telling: too
// few operators matched.
std::optional<NearMiss> describe_mismatch(const Context& context, const Pattern& pattern,
                                          const Mismatch& mismatch);

// The neighbour that `solver` has just bound, or nothing when its guards do not hold.
std::optional<NearMiss> describe_neighbour(const Context& context, const Pattern& pattern,
                                           const Solver& solver);

}  // namespace opfuse::match
