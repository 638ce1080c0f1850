#pragma once
// A rule in words, for `opfuse rules` and `opfuse explain`.

#include <string>
#include <vector>

#include "opfuse/match/rule.h"

namespace opfuse::match {

// The composition as written, one line a step.
std::vector<std::string> formula_lines(const Rule& rule);
// "torch.nn.functional.silu, torch_npu.npu_silu on npu".
std::string targets_text(const Rule& rule);
// Why chains of this kind are found and never replaced; "" when they are, after proof.
std::string found_only(const Rule& rule);
// The same, or that no target of the rule on this device can be called by an edit; "" any device.
std::string never_replaced(const Rule& rule, std::string_view device = "");
// A target is for chains that torch.compile captured (opfuse.backend).
bool replaced_in_captured_graphs(const Rule& rule);
// Replaced with --allow E2 alone: the target gives another infinity or NaN where the inputs hold
// infinities or numbers near the dtype's largest.
bool needs_permission(const Rule& rule);
// What it computes, what it becomes, how else it may be written, what it is not.
std::vector<std::string> describe_rule(const Rule& rule);

}  // namespace opfuse::match
