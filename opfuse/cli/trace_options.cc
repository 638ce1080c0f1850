#include "opfuse/cli/trace_options.h"

#include <charconv>

namespace opfuse::cli {

Result<TraceOptions> trace_options(const std::string& step) {
  TraceOptions options;
  if (step.empty()) return options;
  int64_t number = 0;
  const char* last = step.data() + step.size();
  const auto [end, error] = std::from_chars(step.data(), last, number);
  if (error != std::errc() || end != last)
    return Error{"--step: expected a number, found '" + step + "'"};
  options.step = number;
  return options;
}

}  // namespace opfuse::cli
