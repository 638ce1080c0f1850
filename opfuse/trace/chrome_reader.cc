#include "opfuse/trace/chrome_reader.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "opfuse/trace/chrome_event.h"
#include "opfuse/trace/chrome_parallel.h"
#include "opfuse/trace/file_kind.h"

namespace opfuse::trace {
namespace {

// A single row at time 0 can be the first of a trace with relative times.
constexpr int64_t kFewestZeroStamps = 2;
// Fewer whole microseconds than this are chance.
constexpr int64_t kFewestTimed = 16;

class Finisher {
 public:
  explicit Finisher(TraceFile* file) : file_(*file) {}

  void run() {
    spread_process_names();
    name_kinds();
    pair_begin_and_end();
    drop_zero_stamps();
    note_resolution();
    note_phases();
    note_arrows();
    note_window_end();
    if (file_.size() == 0) file_.losses.add(LossKind::kFileEmpty);
  }

 private:
  void spread_process_names() {
    std::map<std::pair<int64_t, StringId>, StringId> names;
    for (const FileThread& t : file_.threads)
      if (t.process != 0) names[{t.pid, t.pid_text}] = t.process;
    for (FileThread& t : file_.threads) {
      const auto it = names.find({t.pid, t.pid_text});
      if (it != names.end()) t.process = it->second;
    }
  }

  // Rows without a category: Ascend's layers, and PyTorch built without Kineto.
  void name_kinds() {
    std::vector<FileKind> kinds;
    for (const FileThread& t : file_.threads) {
      FileKind kind = kind_of_process(file_.text(t.process));
      if (kind == FileKind::kOther) kind = kind_of_process(file_.text(t.pid_text));
      kinds.push_back(kind);
    }
    for (size_t i = 0; i < file_.size(); ++i) {
      if (file_.kind[i] != FileKind::kOther || file_.phase[i] != 'X') continue;
      if (file_.categories[file_.category[i]] != 0) continue;
      const FileKind kind = kinds[file_.thread[i]];
      if (kind == FileKind::kOther) continue;
      set_kind(i, kind);
    }
  }

  void set_kind(size_t i, FileKind kind) {
    const int64_t id = file_.id[i];
    file_.kind[i] = kind;
    if (kind == FileKind::kOperator) {
      file_.detail[i] = static_cast<int32_t>(file_.operators.size());
      file_.operators.emplace_back().external = id;
    } else {
      file_.detail[i] = static_cast<int32_t>(file_.devices.size());
      file_.devices.emplace_back();
    }
  }

  void pair_begin_and_end() {
    std::map<int32_t, std::vector<size_t>> open;
    for (size_t i = 0; i < file_.size(); ++i) {
      if (file_.phase[i] == 'B') {
        open[file_.thread[i]].push_back(i);
      } else if (file_.phase[i] == 'E') {
        std::vector<size_t>& begun = open[file_.thread[i]];
        if (begun.empty()) {
          file_.losses.add(LossKind::kUnpairedEnd);
          continue;
        }
        const size_t begin = begun.back();
        begun.pop_back();
        if (file_.start_ns[i] == kNoTime || file_.start_ns[begin] == kNoTime) continue;
        file_.dur_ns[begin] = std::max<int64_t>(file_.start_ns[i] - file_.start_ns[begin], 0);
      }
    }
    for (const auto& [thread, begun] : open)
      file_.losses.add(LossKind::kUnpairedBegin, -1, {}, static_cast<int64_t>(begun.size()));
  }

  void drop_zero_stamps() {
    std::vector<size_t> zero;
    bool others = false;
    for (size_t i = 0; i < file_.size(); ++i) {
      if (file_.phase[i] != 'X') continue;
      if (file_.start_ns[i] == 0 && file_.dur_ns[i] == 0)
        zero.push_back(i);
      else
        others = true;
    }
    if (!others || static_cast<int64_t>(zero.size()) < kFewestZeroStamps) return;
    for (size_t i : zero) file_.start_ns[i] = kNoTime;
    file_.losses.add(LossKind::kTimeZero, -1, {}, static_cast<int64_t>(zero.size()));
  }

  void note_resolution() {
    int64_t timed = 0;
    for (size_t i = 0; i < file_.size(); ++i) {
      if (file_.phase[i] != 'X' || file_.start_ns[i] == kNoTime) continue;
      if (file_.start_ns[i] % 1000 != 0 || file_.dur_ns[i] % 1000 > 0) return;
      ++timed;
    }
    if (timed >= kFewestTimed) file_.losses.add(LossKind::kWholeMicroseconds);
  }

  // Counters and marks of a moment are read and are no work.
  void note_phases() {
    constexpr std::string_view kRead = "XBEMiIRCstf";
    std::array<int64_t, 256> counts{};
    for (const char phase : file_.phase) ++counts[static_cast<unsigned char>(phase)];
    int64_t other = 0;
    for (size_t phase = 1; phase < counts.size(); ++phase)
      if (kRead.find(static_cast<char>(phase)) == kRead.npos) other += counts[phase];
    file_.losses.add(LossKind::kPhaseUnknown, -1, {}, other);
  }

  // Calls that launch nothing may end an arrow that nothing begins.
  void note_arrows() {
    std::vector<std::tuple<uint8_t, int64_t, char>> ends;
    for (size_t i = 0; i < file_.size(); ++i)
      if (file_.kind[i] == FileKind::kFlow && file_.phase[i] != 't')
        ends.emplace_back(file_.category[i], file_.id[i], file_.phase[i]);
    std::ranges::sort(ends);
    int64_t lone = 0;
    for (size_t i = 0, last = 0; i < ends.size(); i = last) {
      const auto arrow = [&](size_t k) {
        return std::pair(std::get<0>(ends[k]), std::get<1>(ends[k]));
      };
      while (last < ends.size() && arrow(last) == arrow(i)) ++last;
      if (std::get<2>(ends[i]) == std::get<2>(ends[last - 1]))
        lone += static_cast<int64_t>(last - i);
    }
    file_.losses.add(LossKind::kFlowUnpaired, -1, {}, lone);
  }

  // A mark of the profiler, which some of them wrote with a time from another clock.
  void note_window_end() {
    constexpr int64_t kFarNs = 86'000'000'000;  // what PyTorch's TensorBoard plugin left out
    StringId name = 0;
    if (!file_.strings.find("Record Window End", &name)) return;
    int64_t last = kNoTime, end = kNoTime;
    for (size_t i = 0; i < file_.size(); ++i) {
      if (file_.phase[i] == 'X') last = std::max(last, file_.start_ns[i]);
      if (file_.phase[i] == 'i' && file_.name[i] == name) end = std::max(end, file_.start_ns[i]);
    }
    if (last != kNoTime && end - kFarNs > last) file_.losses.add(LossKind::kWindowEndFar);
  }

  TraceFile& file_;
};

int64_t header_number(const TraceFile& file, const char* key, int64_t missing) {
  const auto it = file.header.find(key);
  int64_t value = missing;
  if (it != file.header.end()) parse_integer(it->second, &value);
  return value;
}

// "rank": 3 inside distributedInfo.
int32_t rank_of(const TraceFile& file) {
  const auto it = file.header.find("distributedInfo");
  if (it == file.header.end()) return -1;
  const size_t key = it->second.find("\"rank\"");
  if (key == std::string::npos) return -1;
  const size_t digit = it->second.find_first_of("0123456789", key);
  if (digit == std::string::npos) return -1;
  return static_cast<int32_t>(std::strtol(it->second.c_str() + digit, nullptr, 10));
}

}  // namespace

JsonWalker::MakeReader chrome_events_of(TraceFile* file) {
  return [file](std::string_view, const JsonWindow* window) {
    return std::make_unique<ChromeEvents>(window, file);
  };
}

void reserve_columns(TraceFile* file, int64_t read, int64_t expected) {
  if (read <= 0 || expected <= read || file->size() == 0) return;
  const double factor = static_cast<double>(expected) / static_cast<double>(read) * 1.05;
  const auto grow = [factor](auto* column) {
    column->reserve(static_cast<size_t>(static_cast<double>(column->size()) * factor));
  };
  grow(&file->name), grow(&file->kind), grow(&file->category), grow(&file->phase);
  grow(&file->thread), grow(&file->start_ns), grow(&file->dur_ns), grow(&file->id);
  grow(&file->detail), grow(&file->operators), grow(&file->devices), grow(&file->memory);
  grow(&file->python);
}

void read_chrome(ByteSource* source, const ChromeReadOptions& options, TraceFile* file) {
  if (options.threads > 1) return read_chrome_parallel(source, options, file);
  JsonWalker walker(source, 0, &file->losses, &file->header, chrome_events_of(file));
  constexpr int64_t kSample = 4 << 20;
  bool reserved = false;
  walker.on_progress = [&](int64_t read) {
    if (reserved || read < kSample) return;
    reserve_columns(file, read, options.expected_bytes);
    reserved = true;
  };
  walker.run(JsonWalker::Place::kStart, false, true);
  file->bytes += walker.done_offset();
  file->losses.merge(source->losses());
}

void finish_trace_file(TraceFile* file) {
  if (file->categories.empty()) file->categories.push_back(0);
  file->rank = rank_of(*file);
  for (const FileThread& t : file->threads)
    if (file->format == "chrome" && file->text(t.process).starts_with("Ascend Hardware"))
      file->format = "ascend timeline";
  file->base_ns = header_number(*file, "baseTimeNanoseconds", 0);
  Finisher(file).run();
}

}  // namespace opfuse::trace
