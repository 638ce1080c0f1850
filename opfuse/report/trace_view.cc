#include "opfuse/report/trace_view.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>
#include <unordered_map>

#include <fmt/format.h>

#include "opfuse/report/format.h"
#include "opfuse/report/pack.h"
#include "opfuse/report/page.h"
#include "opfuse/report/secrets.h"

namespace opfuse::report {
namespace {

using trace::FileKind;
using trace::kNone;

// The rows of the file as an EventTable that the timeline can show, with the marks of chains.
class ViewTable {
 public:
  explicit ViewTable(const TraceView& view) : view_(view), file_(*view.file) {}

  void run() {
    add_threads();
    event_of_row_.assign(file_.size(), kNone);
    const std::vector<int32_t>& rows = view_.events->row_of;
    for (size_t event = 0; event < rows.size(); ++event)
      event_of_row_[rows[event]] = static_cast<int32_t>(event);
    table.frames = view_.events->table.frames;
    table.stacks = view_.events->table.stacks;
    table.tensors = view_.events->table.tensors;
    table.strings = view_.events->table.strings;  // of frames; rows add theirs
    find_range();
    for (size_t row = 0; row < file_.size(); ++row) add(static_cast<int32_t>(row));
    marks.site_of.assign(table.events.size(), kNone);
    mark_findings();
  }

  trace::EventTable table;
  ChainMarks marks;

 private:
  void add_threads() {
    for (const trace::FileThread& t : file_.threads) {
      std::string name(file_.text(t.name != 0 ? t.name : t.tid_text));
      const std::string_view process = file_.text(t.process != 0 ? t.process : t.pid_text);
      if (name.empty()) name = fmt::format("thread {}", t.tid);
      if (!process.empty()) name = fmt::format("{}: {}", process, name);
      names_.push_back(name);
    }
  }

  // What was analysed: everything, or what began in a step.
  void find_range() {
    if (view_.events->whole) {
      from_ = std::numeric_limits<int64_t>::min() + 1;
      to_ = std::numeric_limits<int64_t>::max();
      return;
    }
    const trace::EventTable& events = view_.events->table;
    for (const trace::EventRow& event : events.events) cover(event.start_ns, event.dur_ns);
    for (const trace::KernelRow& kernel : events.kernels) cover(kernel.start_ns, kernel.dur_ns);
  }
  void cover(int64_t start, int64_t dur) {
    from_ = std::min(from_, start);
    to_ = std::max(to_, start + std::max<int64_t>(dur, 0));
  }

  void add(int32_t row) {
    const char phase = file_.phase[row];
    if ((phase != 'X' && phase != 'B') || file_.start_ns[row] < from_ ||
        file_.start_ns[row] > to_ || file_.kind[row] == FileKind::kSpan)
      return;
    trace::EventRow event;
    if (event_of_row_[row] != kNone) {
      const trace::EventRow& known = view_.events->table.events[event_of_row_[row]];
      event.inputs = known.inputs;
      event.kind = known.kind;
      event.stack = known.stack;
      event.sequence = known.sequence;
      event.forward_sequence = known.forward_sequence;
    } else {
      event.kind = trace::is_device_work(file_.kind[row]) ? trace::EventKind::kKernel
                   : file_.kind[row] == FileKind::kPython ? trace::EventKind::kUserScope
                                                          : trace::EventKind::kOther;
    }
    event.name = masked_name(file_.name[row]);
    event.thread = file_.thread[row];
    event.start_ns = file_.start_ns[row];
    event.dur_ns = std::max<int64_t>(file_.dur_ns[row], 0);
    view_row_[row] = static_cast<int32_t>(table.events.size());
    table.events.push_back(std::move(event));
    while (table.threads.size() < names_.size()) {
      const size_t next = table.threads.size();
      table.threads.push_back({file_.threads[next].pid, file_.threads[next].tid,
                               table.strings.intern(mask_text(names_[next]))});
    }
  }

  trace::StringId masked_name(trace::StringId name) {
    constexpr trace::StringId kNotYet = ~trace::StringId{0};
    if (masked_.empty()) masked_.assign(file_.strings.size(), kNotYet);
    if (masked_[name] == kNotYet) masked_[name] = table.strings.intern(mask_text(file_.text(name)));
    return masked_[name];
  }

  void mark_findings() {
    std::vector<int32_t> site_of_row(file_.size(), kNone);
    for (size_t site = 0; site < view_.report->findings.size(); ++site) {
      const TraceFinding& finding = view_.report->findings[site];
      const size_t operators = finding.operators.size();
      for (size_t i = 0; i < finding.events.size(); ++i) {
        if (operators > 0 && i % operators == 0)
          marks.calls.push_back({static_cast<int>(site), {}, {}});
        const int32_t row = view_.events->row_of[finding.events[i]];
        site_of_row[row] = static_cast<int32_t>(site);
        const auto at = view_row_.find(row);
        if (at == view_row_.end()) continue;
        marks.site_of[at->second] = static_cast<int32_t>(site);
        (finding.backward ? marks.calls.back().backward : marks.calls.back().forward)
            .push_back(at->second);
      }
    }
    for (size_t row = 0; row < file_.size(); ++row) {
      if (!trace::is_device_work(file_.kind[row])) continue;
      int32_t op = view_.calls->operator_of[row];
      while (op != kNone && site_of_row[op] == kNone) op = view_.calls->parent[op];
      const auto at = view_row_.find(static_cast<int32_t>(row));
      if (op != kNone && at != view_row_.end()) marks.site_of[at->second] = site_of_row[op];
    }
    std::ranges::sort(marks.calls, {}, [&](const ChainCall& call) {
      const auto& rows = call.forward.empty() ? call.backward : call.forward;
      return rows.empty() ? 0 : table.events[rows[0]].start_ns;
    });
  }

  const TraceView& view_;
  const trace::TraceFile& file_;
  std::vector<std::string> names_;
  std::vector<int32_t> event_of_row_;
  std::vector<trace::StringId> masked_;            // by name of the file
  std::unordered_map<int32_t, int32_t> view_row_;  // by file row
  int64_t from_ = std::numeric_limits<int64_t>::max();
  int64_t to_ = std::numeric_limits<int64_t>::min();
};

}  // namespace

std::string render_trace_html(const std::vector<TraceView>& views) {
  TimelinePacker packer;
  std::string reports, text, title = "opfuse view";
  for (const TraceView& view : views) {
    ViewTable table(view);
    table.run();
    const std::string name = file_name(mask_text(view.report->path));
    packer.add(table.table, table.marks, name, kMaxViewEvents);
    reports += (reports.empty() ? "" : ",") + trace_json(*view.report);
    text += trace_text(*view.report, {});
    title += " " + name;
  }
  const std::string timeline = packer.take().dump(-1, ' ', false, Json::error_handler_t::replace);
  return fill_page("trace.html", [&](std::string_view name, std::string* value) {
    if (name == "title")
      *value = html_escaped(title);
    else if (name == "text")
      *value = html_escaped(text);
    else if (name == "reports")
      *value = script_safe("[" + reports + "]");
    else if (name == "timeline")
      *value = script_safe(timeline);
    else
      return false;
    return true;
  });
}

}  // namespace opfuse::report
