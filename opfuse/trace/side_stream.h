#pragma once
// One more flag of an event (EventFlag of event_table.h): the stream in which it ran.

#include <cstdint>

namespace opfuse::trace {

// Of an operator: the current stream of its first input's device was not the default one.
constexpr uint16_t kSideStream = 1 << 12;

}  // namespace opfuse::trace
