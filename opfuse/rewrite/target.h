#pragma once
// Which target of its rule a chain becomes here, or why none.

#include <optional>
#include <string_view>
#include <vector>

#include "opfuse/rewrite/plan.h"

namespace opfuse::rewrite {

// The target that Python calls from this vendor's package ("torch_npu"); null when there is none.
const match::Target* vendor_target(const match::Rule& rule, std::string_view vendor);

// What Python passes to it, in call order.
const std::vector<std::string>& called_with(const match::Target& target);

// The target that runs here; null and a refusal when there is none.
const match::Target* choose_target(const graph::Graph& graph, const match::MatchReport& report,
                                   const match::Site& site, const PlanOptions& options,
                                   std::optional<match::Refusal>* refusal);

// What the graph forbids, and classes that were not allowed. `weakest` becomes the weakest class.
std::optional<match::Refusal> refusal_from_matches(const match::MatchReport& report,
                                                   const match::Site& site,
                                                   const PlanOptions& options,
                                                   match::Equivalence* weakest);

}  // namespace opfuse::rewrite
