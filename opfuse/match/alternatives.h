#pragma once
// Other ways of writing a spelling that follow from algebra, as a table of rows. They are made once
// for each rule, on the small graph of the pattern, so that the graph of a step keeps every value
// that some other pattern may look for.

#include <span>
#include <vector>

#include "opfuse/graph/canonical.h"
#include "opfuse/match/rule.h"

namespace opfuse::match {

// Name, exactness and an example of each row.
std::span<const graph::CanonicalRow> alternative_rows();

// All that the rows make of `spelling` and of what they made, without `spelling` itself; at most
// kMaxAlternatives, the nearest first.
constexpr int kMaxAlternatives = 96;
std::vector<Spelling> alternatives_of(const Spelling& spelling);

}  // namespace opfuse::match
