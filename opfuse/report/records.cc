// The page with the records of a run directory.
#include <filesystem>

#include "opfuse/report/html.h"
#include "opfuse/trace/record_file.h"

namespace opfuse::report {

std::string render_html(const Report& report, const std::string& run_dir) {
  Report shown = report;
  StepRecords records;
  const auto read = [&](const char* name, std::optional<trace::EventTable>* into) {
    const auto found = report.files.find(name);
    if (found == report.files.end()) return;
    const auto path = std::filesystem::path(run_dir) / "state" / found->second;
    auto record = trace::read_record(path.string());
    if (record.ok()) {
      *into = std::move(record.value());
    } else {
      shown.trouble.push_back("timeline: " + record.error().message);
    }
  };
  read("step_before", &records.before);
  read("step_after", &records.after);
  return render_html(shown, records);
}

}  // namespace opfuse::report
