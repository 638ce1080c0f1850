#include "opfuse/trace/chrome_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <map>
#include <unordered_map>
#include <utility>

namespace opfuse::trace {
namespace {

constexpr int kStackFrames = 6;
constexpr int64_t kChainThread = 1'000'000'000;  // beyond the kernel's largest thread id

const char* category(EventKind kind) {
  switch (kind) {
    case EventKind::kOperator:
      return "cpu_op";
    case EventKind::kAutogradNode:
      return "autograd";
    case EventKind::kFunction:
      return "function";
    case EventKind::kUserScope:
      return "user_annotation";
    case EventKind::kKernel:
      return "kernel";
    default:
      return "other";
  }
}

// Frames of the framework say where torch is, not where the user is.
bool is_framework(std::string_view file) {
  return file.find("/torch/") != file.npos || file.starts_with("<");
}

struct ChainSlice {
  std::string chain;
  int32_t site = -1;
  int32_t thread = 0;
  int64_t start = 0, end = 0;
  int operators = 0;
};

class ChromeWriter {
 public:
  ChromeWriter(const EventTable& table, const ChromeOptions& options)
      : table_(table), options_(options) {}

  std::string run() {
    find_range();
    index_marks();
    out_ = "{\n\"schemaVersion\": 1,\n\"displayTimeUnit\": \"ms\",\n";
    write_other_data();
    out_ += "\"traceEvents\": [";
    write_metadata();
    for (size_t row = 0; row < table_.events.size(); ++row) write_event(static_cast<int32_t>(row));
    write_flows();
    write_chains();
    out_ += "\n]}\n";
    return std::move(out_);
  }

 private:
  auto appender() { return std::back_inserter(out_); }

  void begin() {
    out_ += first_ ? "\n" : ",\n";
    first_ = false;
  }

  void find_range() {
    for (const EventRow& event : table_.events) {
      if (event.start_ns < first_ns_ || first_ns_ < 0) first_ns_ = event.start_ns;
      last_ns_ = std::max(last_ns_, event.start_ns + std::max<int64_t>(event.dur_ns, 0));
    }
  }

  // Integer nanoseconds as microseconds with three decimals.
  std::string microseconds(int64_t ns) const {
    const bool negative = ns < 0;
    const uint64_t n = negative ? 0 - static_cast<uint64_t>(ns) : static_cast<uint64_t>(ns);
    return fmt::format("{}{}.{:03}", negative ? "-" : "", n / 1000, n % 1000);
  }
  std::string at(int64_t ns) const { return microseconds(ns - first_ns_); }
  int64_t duration(const EventRow& event) const {
    return event.dur_ns >= 0 ? event.dur_ns : std::max<int64_t>(last_ns_ - event.start_ns, 0);
  }

  ThreadRow thread(int32_t row) const {
    return row >= 0 && row < static_cast<int64_t>(table_.threads.size()) ? table_.threads[row]
                                                                         : ThreadRow{};
  }

  void write_other_data() {
    out_ += "\"otherData\": {\"source\": " + json_string(table_.source);
    fmt::format_to(appender(), ", \"wall_start_unix_ns\": {}, \"losses\": {{",
                   table_.wall_start_unix_ns);
    bool first = true;
    for (const auto& [name, count] : table_.losses) {
      fmt::format_to(appender(), "{}{}: {}", first ? "" : ", ", json_string(name), count);
      first = false;
    }
    out_ += "}},\n";
  }

  void write_name(const char* what, const ThreadRow& thread, int64_t tid, std::string_view name) {
    begin();
    fmt::format_to(appender(),
                   R"({{"ph": "M", "name": "{}", "pid": {}, "tid": {}, "args": {{"name": {}}}}})",
                   what, thread.pid, tid, json_string(name));
  }

  void write_metadata() {
    std::map<int64_t, bool> processes;
    for (const ThreadRow& thread : table_.threads) {
      if (!processes[thread.pid]) {
        processes[thread.pid] = true;
        write_name("process_name", thread, thread.tid,
                   options_.process_name.empty() ? "recorded step" : options_.process_name);
      }
      std::string name(table_.strings.get(thread.name));
      if (name.empty())
        name = thread.tid == thread.pid ? "main thread" : fmt::format("thread {}", thread.tid);
      write_name("thread_name", thread, thread.tid, name);
    }
  }

  // ---- slices

  void write_event(int32_t row) {
    const EventRow& event = table_.events[row];
    const ThreadRow on = thread(event.thread);
    std::string_view full = table_.name(event), name = full;
    if (event.kind == EventKind::kOperator) name = name.substr(0, name.find('.'));
    begin();
    fmt::format_to(appender(),
                   R"({{"ph": "X", "cat": "{}", "name": {}, "pid": {}, "tid": {}, "ts": {}, )"
                   R"("dur": {}, "args": {{"event": {})",
                   category(event.kind), json_string(name), on.pid, on.tid, at(event.start_ns),
                   microseconds(duration(event)), row);
    if (name.size() != full.size()) out_ += ", \"operator\": " + json_string(full);
    write_tensors(event);
    if (event.sequence >= 0) fmt::format_to(appender(), ", \"sequence\": {}", event.sequence);
    if (event.forward_sequence >= 0)
      fmt::format_to(appender(), ", \"forward_sequence\": {}", event.forward_sequence);
    write_source(event);
    if (event.flags & kUnfinished) out_ += ", \"unfinished\": true";
    if (auto mark = marks_.find(row); mark != marks_.end())
      fmt::format_to(appender(), ", \"chain\": {}, \"site\": {}", json_string(mark->second->chain),
                     mark->second->site);
    out_ += "}}";
  }

  template <class Describe>
  void write_list(const char* key, const EventRow& event, Describe describe) {
    fmt::format_to(appender(), ", \"{}\": [", key);
    bool first = true;
    for (const ArgumentRow& argument : event.inputs)
      for (int32_t tensor : argument.tensors) {
        if (tensor == kNone) continue;
        if (!std::exchange(first, false)) out_ += ", ";
        describe(table_.tensors[tensor]);
      }
    out_ += "]";
  }

  void write_tensors(const EventRow& event) {
    const auto any = [](const ArgumentRow& argument) { return !argument.tensors.empty(); };
    if (std::none_of(event.inputs.begin(), event.inputs.end(), any)) return;
    write_list("shapes", event, [&](const TensorRow& tensor) {
      if (tensor.shape_known)
        fmt::format_to(appender(), "[{}]", fmt::join(tensor.shape, ", "));
      else
        out_ += "null";
    });
    write_list("dtypes", event, [&](const TensorRow& tensor) {
      fmt::format_to(appender(), "\"{}\"", dtype_name(tensor.dtype));
    });
  }

  std::string source_of(const FrameRow& frame) const {
    std::string text(table_.strings.get(frame.file));
    if (frame.line >= 0) text += fmt::format(":{}", frame.line);
    if (frame.line >= 0 && frame.column >= 0) {
      text += fmt::format(":{}", frame.column);
      if (frame.end_line == frame.line) text += fmt::format("-{}", frame.end_column);
    }
    return text;
  }

  void write_source(const EventRow& event) {
    if (event.stack == kNone) return;
    std::vector<const FrameRow*> users;
    for (int32_t row = event.stack; row != kNone; row = table_.stacks[row].parent) {
      const FrameRow& frame = table_.frames[table_.stacks[row].frame];
      if (frame.file != 0 && !is_framework(table_.strings.get(frame.file))) users.push_back(&frame);
      if (users.size() == kStackFrames) break;
    }
    if (users.empty()) return;
    out_ += ", \"source\": " + json_string(source_of(*users[0])) + ", \"stack\": [";
    for (size_t i = 0; i < users.size(); ++i) {
      if (i > 0) out_ += ", ";
      out_ += json_string(
          fmt::format("{} ({})", table_.strings.get(users[i]->function), source_of(*users[i])));
    }
    out_ += "]";
  }

  // ---- arrows

  // The call that made the node of each sequence number: a Function by its name, else the innermost
  // operator that returned the node.
  std::unordered_map<int64_t, int32_t> makers() const {
    std::unordered_map<int64_t, int32_t> made;
    for (size_t row = 0; row < table_.events.size(); ++row)
      if (int64_t s = table_.events[row].forward_sequence; s >= 0)
        made[s] = static_cast<int32_t>(row);
    return made;
  }

  std::unordered_multimap<int64_t, int32_t> functions() const {
    std::unordered_multimap<int64_t, int32_t> found;
    for (size_t row = 0; row < table_.events.size(); ++row)
      if (table_.events[row].kind == EventKind::kFunction && table_.events[row].sequence >= 0)
        found.emplace(table_.events[row].sequence, static_cast<int32_t>(row));
    return found;
  }

  void write_flows() {
    const auto made = makers();
    const auto by_function = functions();
    int64_t id = 0;
    for (const EventRow& node : table_.events) {
      if (node.kind != EventKind::kAutogradNode || node.sequence < 0) continue;
      int32_t maker = kNone;
      if (auto it = made.find(node.sequence); it != made.end()) maker = it->second;
      auto [from, to] = by_function.equal_range(node.sequence);
      for (auto it = from; it != to; ++it)
        if (fmt::format("{}Backward", table_.name(table_.events[it->second])) == table_.name(node))
          maker = it->second;
      if (maker == kNone || table_.events[maker].start_ns > node.start_ns) continue;
      write_flow("s", table_.events[maker], id);
      write_flow("f", node, id);
      ++id;
    }
  }

  void write_flow(const char* phase, const EventRow& event, int64_t id) {
    const ThreadRow on = thread(event.thread);
    begin();
    fmt::format_to(appender(),
                   R"({{"ph": "{}", "id": {}, "cat": "fwdbwd", "name": "fwdbwd", "pid": {}, )"
                   R"("tid": {}, "ts": {}{}}})",
                   phase, id, on.pid, on.tid, at(event.start_ns),
                   *phase == 'f' ? R"(, "bp": "e")" : "");
  }

  // ---- chains

  void index_marks() {
    for (const Mark& mark : options_.marks)
      if (mark.event >= 0 && mark.event < static_cast<int64_t>(table_.events.size()))
        marks_.emplace(mark.event, &mark);
  }

  std::vector<ChainSlice> chain_slices() const {
    std::vector<ChainSlice> slices;
    const Mark* last = nullptr;
    for (const Mark& mark : options_.marks) {
      if (mark.event < 0 || mark.event >= static_cast<int64_t>(table_.events.size())) continue;
      const EventRow& event = table_.events[mark.event];
      const int64_t end = event.start_ns + duration(event);
      bool same = last != nullptr && last->site == mark.site && last->call == mark.call &&
                  slices.back().thread == event.thread;
      if (same && mark.call < 0) same = table_.events[last->event].parent == event.parent;
      if (!same) slices.push_back({mark.chain, mark.site, event.thread, event.start_ns, end, 0});
      slices.back().start = std::min(slices.back().start, event.start_ns);
      slices.back().end = std::max(slices.back().end, end);
      ++slices.back().operators;
      last = &mark;
    }
    std::sort(slices.begin(), slices.end(),
              [](const auto& a, const auto& b) { return a.start < b.start; });
    return slices;
  }

  void write_chains() {
    std::map<int64_t, std::vector<int64_t>> lane_ends;  // per process: when each row is free
    for (const ChainSlice& slice : chain_slices()) {
      const ThreadRow on = thread(slice.thread);
      std::vector<int64_t>& ends = lane_ends[on.pid];
      size_t lane = 0;
      while (lane < ends.size() && ends[lane] > slice.start) ++lane;
      const int64_t tid = kChainThread + static_cast<int64_t>(lane);
      if (lane == ends.size()) {
        ends.push_back(0);
        write_name("thread_name", on, tid,
                   lane == 0 ? "opfuse chains" : fmt::format("opfuse chains {}", lane + 1));
        begin();
        fmt::format_to(appender(),
                       R"({{"ph": "M", "name": "thread_sort_index", "pid": {}, "tid": {}, )"
                       R"("args": {{"sort_index": {}}}}})",
                       on.pid, tid, static_cast<int64_t>(lane) - 100);
      }
      ends[lane] = slice.end;
      begin();
      fmt::format_to(appender(),
                     R"({{"ph": "X", "cat": "opfuse", "name": {}, "pid": {}, "tid": {}, "ts": {}, )"
                     R"("dur": {}, "args": {{"site": {}, "operators": {}}}}})",
                     json_string(slice.chain), on.pid, tid, at(slice.start),
                     microseconds(slice.end - slice.start), slice.site, slice.operators);
    }
  }

  const EventTable& table_;
  const ChromeOptions& options_;
  std::unordered_map<int32_t, const Mark*> marks_;
  int64_t first_ns_ = -1, last_ns_ = 0;
  bool first_ = true;
  std::string out_;
};

}  // namespace

std::string chrome_trace(const EventTable& table, const ChromeOptions& options) {
  return ChromeWriter(table, options).run();
}

Status write_chrome_trace(const EventTable& table, const ChromeOptions& options,
                          const std::string& path) {
  std::string text = chrome_trace(table, options);
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr)
    return Error{path + ": expected a file that can be written: " + std::strerror(errno)};
  bool whole = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  whole = std::fclose(file) == 0 && whole;
  if (!whole) return Error{path + ": expected room for the trace: " + std::strerror(errno)};
  return ok_status();
}

}  // namespace opfuse::trace
