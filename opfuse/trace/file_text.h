#pragma once
// A TraceFile as lines of text, for tests and for looking at what a reader made of a file:
//   X operator aten::mul [10, +5] pid/tid id=7
// Times in nanoseconds; what is not known is left out.

#include <string>

#include "opfuse/trace/trace_file.h"

namespace opfuse::trace {

std::string_view file_kind_name(FileKind kind);
std::string print_events(const TraceFile& file);
// "event-cut 1 @ 120", one line each.
std::string print_losses(const LossLog& losses);

}  // namespace opfuse::trace
