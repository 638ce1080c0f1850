#pragma once
// TraceFile: what stands in one trace file, as columns, one row an event in the order of the file.
// Filled by the readers of trace/; turned into calls with kernels by trace/calls.h and into an
// EventTable by trace/file_events.h. Times are int64 nanoseconds from the digits of the file. What
// the file does not say is kNone, -1 or the empty string, never a default.

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "opfuse/trace/event_table.h"
#include "opfuse/trace/losses.h"

namespace opfuse::trace {

// What an event is, from its category and phase.
enum class FileKind : uint8_t {
  kOther,
  kOperator,    // cpu_op: dispatcher calls and autograd nodes
  kAnnotation,  // user_annotation: ProfilerStep#3, Optimizer.step#SGD.step
  kPython,      // python_function: frames and modules
  kRuntime,     // launch calls of the host: cudaLaunchKernel, cuLaunchKernelEx, …
  kKernel,      // work of the device
  kMemcpy,
  kMemset,
  kDeviceAnnotation,  // host ranges mirrored on the device's row; never counted as work
  kMemory,            // allocation (bytes > 0) or release (< 0)
  kFlow,              // one end of an arrow
  kQueue,             // Ascend enqueue and dequeue
  kHost,              // Ascend CANN layers
  kSpan,              // the profiler's own rows
};

constexpr int64_t kNoTime = std::numeric_limits<int64_t>::min();
constexpr int64_t kNoId = std::numeric_limits<int64_t>::min();

// Arguments of an operator. Lists are the text that the file has (JSON, or Ascend's lines), each
// text once: parsed when they are needed.
struct OperatorDetail {
  StringId dims = 0, strides = 0, types = 0, values = 0;  // "Concrete Inputs"
  StringId call_stack = 0, module = 0;
  int64_t sequence = -1, forward_thread = 0;
  int64_t external = kNoId;  // "External id", which launches refer to
  int64_t record_id = -1;    // "Record function id", which execution traces refer to
};

// A launch call or its work on the device.
struct DeviceDetail {
  int64_t external = kNoId;
  int64_t bytes = -1;
  int32_t stream = -1, device = -1;
  int32_t shapes = kNone;  // row of `device_shapes`
};

// What Ascend's kernel_details.csv says of a kernel, as text of the file.
struct DeviceShapes {
  StringId type = 0;  // "Mul", "Sigmoid"
  StringId dims = 0, types = 0, output_dims = 0, output_types = 0;
};

struct MemoryDetail {
  int64_t bytes = 0;
  int32_t device_type = -1, device = -1;  // 0 cpu, 1 cuda, 6 hip, 20 privateuse1
};

struct PythonDetail {
  int64_t parent = -1, module = -1;  // Python ids
};

struct FileThread {
  int64_t pid = 0, tid = 0;
  StringId pid_text = 0, tid_text = 0;  // where the file has text in place of a number
  StringId process = 0, name = 0;       // from metadata events
};

struct TraceFile {
  StringPool strings;
  std::vector<StringId> name;
  std::vector<FileKind> kind;
  std::vector<uint8_t> category;          // row of `categories`
  std::vector<char> phase;                // as in the file: X i s f C M …
  std::vector<int32_t> thread;            // row of `threads`
  std::vector<int64_t> start_ns, dur_ns;  // kNoTime; -1
  std::vector<int64_t> id;  // operator: external id; runtime and device: correlation; flow: its id;
                            // Python: its id; memory: address; kNoId
  std::vector<int32_t> detail;  // row of the table of its kind, or kNone

  std::vector<OperatorDetail> operators;
  std::vector<DeviceDetail> devices;
  std::vector<DeviceShapes> device_shapes;
  std::vector<MemoryDetail> memory;
  std::vector<PythonDetail> python;
  std::vector<FileThread> threads;
  std::vector<StringId> categories;
  std::map<std::string, std::string> header;  // top-level members that are known, as JSON text
  LossLog losses;
  // Formats that hold tensor ids (execution traces, our own records) fill this instead of rows.
  std::optional<EventTable> table;
  std::string path, format;
  int64_t bytes = 0;    // of the text, inflated
  int32_t rank = -1;    // distributedInfo.rank
  int64_t base_ns = 0;  // baseTimeNanoseconds

  size_t size() const { return table ? table->events.size() : name.size(); }
  size_t column_bytes() const;
  // Exchanges the rows, the header and the losses; texts, threads and categories stay.
  void swap_rows(TraceFile* other);
  std::string_view text(StringId id) const { return strings.get(id); }
};

// Which rows of a file the texts, threads and categories of another one are.
struct RowsInFile {
  std::vector<StringId> texts;
  std::vector<int32_t> threads;
  std::vector<uint8_t> categories;
};

// Files whose texts came one behind the other, joined to one.
class FileJoiner {
 public:
  explicit FileJoiner(TraceFile* file);

  // What is new in a part since the last call with the same `rows`; threads that are known may
  // come again for their names. Ids of texts are those of the part.
  void add_texts(const std::vector<std::string_view>& texts, RowsInFile* rows);
  void add_thread(int32_t row, const FileThread& thread, RowsInFile* rows);
  void add_categories(const std::vector<StringId>& categories, RowsInFile* rows);
  // Appends the rows, the header and the losses of `part` and takes them out of it; the memory of
  // its columns stays for the next ones.
  void append(TraceFile* part, const RowsInFile& rows);
  // A whole file.
  void append(TraceFile* part);

 private:
  using Key = std::array<int64_t, 4>;  // pid, tid, and their texts
  static Key key_of(const FileThread& thread);
  void append_details(TraceFile* part, const RowsInFile& rows);

  TraceFile& file_;
  std::map<Key, int32_t> threads_;
};

}  // namespace opfuse::trace
