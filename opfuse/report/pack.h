#pragma once
// EventTable -> the compact JSON that timeline.js reads: a shared string table, and per step
// columns of unsigned LEB128 numbers in base64. Events stand in order of thread, then start.
// Internal to report/; the format is private to one page, which carries its own reader.

#include "opfuse/report/fields.h"
#include "opfuse/report/marks.h"

namespace opfuse::report {

// More events than this and the shortest are left out, counted, so that the page stays small.
constexpr size_t kMaxPackedEvents = 50000;

class TimelinePacker {
 public:
  TimelinePacker();
  void add(const trace::EventTable& table, const ChainMarks& marks, const std::string& title,
           size_t max_events = kMaxPackedEvents);
  Json take();  // {"strings": […], "steps": […]}

 private:
  uint64_t string_id(std::string_view text);

  std::map<std::string, uint64_t, std::less<>> ids_;
  Json strings_ = Json::array();
  Json steps_ = Json::array();
};

std::string base64(std::string_view bytes);

}  // namespace opfuse::report
