#pragma once
// EventTable -> trace JSON that chrome://tracing and Perfetto open: one row a thread with
// operators, autograd nodes, Functions and user scopes; arrows from forward operators to the
// backward nodes that they made; marked chains as rows of their own. Strict JSON; times in
// microseconds with the digits of the nanoseconds.

#include <cstdint>
#include <string>
#include <vector>

#include "opfuse/base/result.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::trace {

// An operator that belongs to a chain. Marks of one call of a chain become one slice: those with
// the same `call`, or, where it is not given, neighbours in the list of equal site and parent
// event.
struct Mark {
  int32_t event = kNone;
  std::string chain;  // "silu"
  int32_t site = -1;
  int32_t call = -1;  // number of the call; forward and backward are different calls
};

struct ChromeOptions {
  std::vector<Mark> marks;
  std::string process_name;  // "python main.py"; a default when empty
};

std::string chrome_trace(const EventTable& table, const ChromeOptions& options);
Status write_chrome_trace(const EventTable& table, const ChromeOptions& options,
                          const std::string& path);

// A JSON string with its quotes: control characters escaped, invalid UTF-8 replaced by U+FFFD.
std::string json_string(std::string_view text);

}  // namespace opfuse::trace
