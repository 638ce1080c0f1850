#pragma once
// The fused operators as the program knows them, from the embedded opfuse/ops/NAME/NAME.json.

#include <string>
#include <vector>

#include "opfuse/base/result.h"

namespace opfuse::cli {

struct OperatorInfo {
  std::string name, formula, found_in, saves, layouts, equivalence;
  std::string text;  // the whole file
};

// All operators, by name.
Result<std::vector<OperatorInfo>> read_operators();

}  // namespace opfuse::cli
