#pragma once
// Which events of a record belong to the chain of a site, or to the operator that replaced it: by
// operator, source position and autograd sequence number. Internal to report/.

#include <cstdint>
#include <vector>

#include "opfuse/report/report.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::report {

// One execution of a site: rows of the outermost events of its forward and of its backward pass.
struct ChainCall {
  int site = 0;
  std::vector<int32_t> forward, backward;
};

struct ChainMarks {
  std::vector<int32_t> site_of;  // per event: the site's id, or trace::kNone
  std::vector<ChainCall> calls;  // in order of execution
};

enum class Side : uint8_t { kBefore, kAfter };

ChainMarks mark_chains(const trace::EventTable& table, const Report& report, Side side);

}  // namespace opfuse::report
