#pragma once
// Facts about this machine from /proc and the affinity mask. Internal to report/.

#include <string_view>

#include "opfuse/report/report.h"

namespace opfuse::report {

Machine this_machine();
// From the text of /proc/cpuinfo: the processor's name, the number of processors, the ISA level.
void read_cpuinfo(std::string_view text, Machine* machine);

}  // namespace opfuse::report
