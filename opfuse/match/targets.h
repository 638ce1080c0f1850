#pragma once
// Which targets of a rule may be taken where, and in which order.

#include <string>
#include <string_view>
#include <vector>

#include "opfuse/match/rule.h"

namespace opfuse::match {

// 0 native, 1 ours, 2 a vendor's: the order in which targets are tried.
int target_kind(const Target& target);

// Whether a target may be taken on a device. Ours run small operators where they have no kernel:
// they win nothing there.
bool runs_on(const Target& target, std::string_view device);

// The targets that an edit could call on this device, in the order in which they are tried.
std::vector<const Target*> targets_on(const Rule& rule, std::string_view device);

// "torch_npu": the package that a vendor's target is called by; "" for native ones and ours.
std::string vendor_of(const Target& target);

// What `opfuse rules --device` prints: a line a target, and how many rules have none.
std::vector<std::string> targets_table(const Rulebook& book, std::string_view device);

}  // namespace opfuse::match
