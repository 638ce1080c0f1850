#pragma once
// For an edit in an installed package, which is not ours to write into: a small Python module that
// applies the edit when it is imported before the package's module. Internal to report/.

#include <vector>

#include "opfuse/report/report.h"

namespace opfuse::report {

// One for each diff in an installed package.
std::vector<PatchModule> patch_modules(const std::vector<Diff>& diffs);

}  // namespace opfuse::report
