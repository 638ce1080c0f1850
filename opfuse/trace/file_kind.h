#pragma once
// What an event of a trace file is, by the name of its category. Internal to trace/.

#include <string_view>

#include "opfuse/trace/trace_file.h"

namespace opfuse::trace {

FileKind kind_of_category(std::string_view category);

// Ascend writes host layers and device rows without a category: known by their process's name.
FileKind kind_of_process(std::string_view process);

}  // namespace opfuse::trace
