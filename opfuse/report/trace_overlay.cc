#include "opfuse/report/trace_overlay.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include <fmt/format.h>

#include "opfuse/report/secrets.h"
#include "opfuse/trace/chrome_writer.h"

namespace opfuse::report {
namespace {

using trace::kNoId;
using trace::kNone;
using trace::kNoTime;

// "1719931193543.123": microseconds with the digits of the nanoseconds.
std::string microseconds(int64_t ns) {
  const char* sign = ns < 0 ? "-" : "";
  const uint64_t size = ns < 0 ? 0 - static_cast<uint64_t>(ns) : static_cast<uint64_t>(ns);
  return fmt::format("{}{}.{:03}", sign, size / 1000, size % 1000);
}

class Overlay {
 public:
  explicit Overlay(const TraceView& view) : view_(view), file_(*view.file) {}

  std::string run() {
    number_processes();
    for (size_t row = 0; row < file_.size(); ++row) add_row(row);
    add_names();
    add_findings();
    return "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n" + out_ + "\n]}\n";
  }

 private:
  // Processes that have a text in place of a number get a number that no other has.
  void number_processes() {
    std::set<int64_t> used;
    for (const trace::FileThread& t : file_.threads) used.insert(t.pid);
    int64_t next = used.empty() ? 1 : std::max<int64_t>(*used.rbegin(), 0) + 1;
    std::map<trace::StringId, int64_t> texts;
    for (const trace::FileThread& t : file_.threads) {
      if (t.pid_text != 0 && !texts.contains(t.pid_text)) texts[t.pid_text] = next++;
      pids_.push_back(t.pid_text == 0 ? t.pid : texts[t.pid_text]);
    }
    own_pid_ = next;
    for (size_t i = 0; i < file_.threads.size(); ++i)
      tids_.push_back(file_.threads[i].tid_text == 0 ? file_.threads[i].tid
                                                     : 1'000'000 + static_cast<int64_t>(i));
  }

  void put(const std::string& event) {
    if (!out_.empty()) out_ += ",\n";
    out_ += event;
  }

  std::string name_of(trace::StringId id) { return trace::json_string(mask_text(file_.text(id))); }

  void add_row(size_t row) {
    const char phase = file_.phase[row];
    if (file_.start_ns[row] == kNoTime) return;
    const int32_t thread = file_.thread[row];
    const std::string place = fmt::format("\"pid\":{},\"tid\":{},\"ts\":{}", pids_[thread],
                                          tids_[thread], microseconds(file_.start_ns[row]));
    const std::string category =
        name_of(file_.categories.empty() ? 0 : file_.categories[file_.category[row]]);
    if (file_.kind[row] == trace::FileKind::kFlow) {
      if (file_.id[row] == kNoId) return;
      put(fmt::format("{{\"ph\":\"{}\",\"cat\":{},\"name\":{},\"id\":{},{}{}}}", phase, category,
                      name_of(file_.name[row]), file_.id[row], place,
                      phase == 'f' ? ",\"bp\":\"e\"" : ""));
    } else if (phase == 'X' || phase == 'B') {
      const std::string id = file_.id[row] == kNoId
                                 ? ""
                                 : fmt::format(",\"args\":{{\"{}\":{}}}",
                                               trace::is_device_work(file_.kind[row]) ||
                                                       file_.kind[row] == trace::FileKind::kRuntime
                                                   ? "correlation"
                                                   : "External id",
                                               file_.id[row]);
      put(fmt::format("{{\"ph\":\"X\",\"cat\":{},\"name\":{},{},\"dur\":{}{}}}", category,
                      name_of(file_.name[row]), place,
                      microseconds(std::max<int64_t>(file_.dur_ns[row], 0)), id));
    }
  }

  void metadata(const char* what, int64_t pid, int64_t tid, const std::string& name) {
    put(fmt::format(
        "{{\"ph\":\"M\",\"name\":\"{}\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":{}}}}}", what,
        pid, tid, name));
  }

  void add_names() {
    std::set<int64_t> named;
    for (size_t i = 0; i < file_.threads.size(); ++i) {
      const trace::FileThread& t = file_.threads[i];
      const trace::StringId process = t.process != 0 ? t.process : t.pid_text;
      if (process != 0 && named.insert(pids_[i]).second)
        metadata("process_name", pids_[i], 0, name_of(process));
      const trace::StringId thread = t.name != 0 ? t.name : t.tid_text;
      if (thread != 0) metadata("thread_name", pids_[i], tids_[i], name_of(thread));
    }
  }

  // One slice a call, from its first to its last event: where the host calls it, and where the
  // device works.
  void add_findings() {
    const auto& findings = view_.report->findings;
    if (findings.empty()) return;
    metadata("process_name", own_pid_, 0, "\"opfuse: chains\"");
    put(
        fmt::format("{{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":{},\"tid\":0,\"args\":"
                    "{{\"sort_index\":-1}}}}",
                    own_pid_));
    std::map<int32_t, std::pair<int64_t, int64_t>> device;  // by event: its kernels
    for (const trace::KernelRow& kernel : view_.events->table.kernels) {
      if (kernel.event == kNone) continue;
      const int64_t end = kernel.start_ns + std::max<int64_t>(kernel.dur_ns, 0);
      const auto [it, is_new] = device.try_emplace(kernel.event, kernel.start_ns, end);
      it->second.first = std::min(it->second.first, kernel.start_ns);
      it->second.second = std::max(it->second.second, end);
    }
    spread_to_parents(&device);
    for (size_t i = 0; i < findings.size(); ++i) {
      const TraceFinding& finding = findings[i];
      const auto lane = static_cast<int64_t>(2 * i);
      const std::string name = trace::json_string(mask_text(finding.rule));
      metadata("thread_name", own_pid_, lane, trace::json_string(finding.rule + ": host"));
      bool on_device = false;
      const size_t length = finding.operators.size();
      for (size_t first = 0; length > 0 && first + length <= finding.events.size();
           first += length) {
        Span host, work;
        for (size_t k = first; k < first + length; ++k) {
          const trace::EventRow& event = view_.events->table.events[finding.events[k]];
          host.cover(event.start_ns, event.start_ns + std::max<int64_t>(event.dur_ns, 0));
          const auto at = device.find(finding.events[k]);
          if (at != device.end()) work.cover(at->second.first, at->second.second);
        }
        add_slice(name, finding, lane, host);
        on_device = on_device || work.known();
        if (work.known()) add_slice(name, finding, lane + 1, work);
      }
      if (on_device)
        metadata("thread_name", own_pid_, lane + 1, trace::json_string(finding.rule + ": device"));
    }
  }

  struct Span {
    int64_t from = std::numeric_limits<int64_t>::max(), to = std::numeric_limits<int64_t>::min();
    void cover(int64_t begin, int64_t end) {
      from = std::min(from, begin);
      to = std::max(to, end);
    }
    bool known() const { return from <= to; }
  };

  // A kernel belongs to every operator around the one that launched it.
  void spread_to_parents(std::map<int32_t, std::pair<int64_t, int64_t>>* device) const {
    const std::vector<trace::EventRow>& events = view_.events->table.events;
    const auto own = *device;
    for (const auto& [event, span] : own)
      for (int32_t up = events[event].parent; up != kNone; up = events[up].parent) {
        const auto [it, is_new] = device->try_emplace(up, span);
        it->second.first = std::min(it->second.first, span.first);
        it->second.second = std::max(it->second.second, span.second);
      }
  }

  void add_slice(const std::string& name, const TraceFinding& finding, int64_t lane, Span span) {
    put(
        fmt::format("{{\"ph\":\"X\",\"cat\":\"opfuse\",\"name\":{},\"pid\":{},\"tid\":{},\"ts\":{},"
                    "\"dur\":{},\"args\":{{\"becomes\":{},\"shapes\":{},\"proof\":\"P{}\"}}}}",
                    name, own_pid_, lane, microseconds(span.from),
                    microseconds(span.to - span.from), trace::json_string(finding.target),
                    trace::json_string(finding.shapes), static_cast<int>(finding.proof)));
  }

  const TraceView& view_;
  const trace::TraceFile& file_;
  std::vector<int64_t> pids_, tids_;  // by row of threads
  int64_t own_pid_ = 0;
  std::string out_;
};

}  // namespace

std::string trace_overlay(const TraceView& view) { return Overlay(view).run(); }

}  // namespace opfuse::report
