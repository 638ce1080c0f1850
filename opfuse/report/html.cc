#include "opfuse/report/html.h"

#include "opfuse/report/pack.h"
#include "opfuse/report/page.h"

namespace opfuse::report {
namespace {

std::string timeline_json(const Report& report, const StepRecords& records) {
  TimelinePacker packer;
  if (records.before)
    packer.add(*records.before, mark_chains(*records.before, report, Side::kBefore),
               records.after ? "before" : "recorded");
  if (records.after)
    packer.add(*records.after, mark_chains(*records.after, report, Side::kAfter), "after");
  return packer.take().dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool value_of(std::string_view name, const Report& report, const StepRecords& records,
              std::string* value) {
  if (name == "title")
    *value = html_escaped(verdict_sentence(report));
  else if (name == "text")
    *value = html_escaped(terminal_text(report));
  else if (name == "report")
    *value = script_safe(report_to_json(report));
  else if (name == "timeline")
    *value = script_safe(timeline_json(report, records));
  else
    return false;
  return true;
}

}  // namespace

std::string render_html(const Report& report, const StepRecords& records) {
  return fill_page("page.html", [&](std::string_view name, std::string* value) {
    return value_of(name, report, records, value);
  });
}

}  // namespace opfuse::report
