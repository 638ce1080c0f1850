#pragma once
// The rows of docs/legality.md that the graph decides. Each looks at one match on the original
// graph and either has nothing to say or refuses, with a sentence and the operator that stopped it.

#include <string_view>
#include <vector>

#include "opfuse/match/context.h"

namespace opfuse::match {

// How the reason begins where chains of this kind are not replaced yet.
constexpr std::string_view kFoundOnly = "found, not replaced: ";

// Every refusal of the match by itself, in the order of the rows.
std::vector<Refusal> check_legality(const Context& context, const Match& match);

// Row 32 needs all matches: a recomputed chain whose forward ran before the record began.
void refuse_lone_recomputations(const Context& context, std::vector<Match>* matches);

}  // namespace opfuse::match
