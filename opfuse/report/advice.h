#pragma once
// What would have to change where no replacement is legal, with the most that it could gain:
// predicted from times of the recorded step, never measured.

#include <string>
#include <vector>

#include "opfuse/report/report.h"

namespace opfuse::report {

struct Advice {
  std::string text;
  double at_most = 1;  // old time / new time, if what the text names cost nothing any more
};

// The largest first. Nothing below 1.1x.
std::vector<Advice> advice_of(const Report& report);

}  // namespace opfuse::report
