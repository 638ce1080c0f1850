#pragma once
// Rows of the host by the id that rows of the device name them with: launches by correlation,
// operators by external id. A profiler counts both from 1 in each process, so in a file that was
// merged from several ranks one id has several rows. Which process a device belongs to is then
// learned from the order of the file: a profiler writes a launch near its kernel. Internal to
// trace/.

#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>

#include "opfuse/trace/trace_file.h"

namespace opfuse::trace {

class IdIndex {
 public:
  // Rows of `kind` with an id above 0. `file` must outlive it.
  IdIndex(const TraceFile& file, FileKind kind);

  // Learns the processes from rows of the device and the ids that they name.
  void learn(std::span<const std::pair<int32_t, int64_t>> ids_of_rows);
  bool shared(int64_t id) const { return more_.contains(id); }
  // Is any id shared? In a file of one process none is, and there is nothing to learn.
  bool ambiguous() const { return !more_.empty(); }
  // The row that `device_row` means with `id`: of several ones the last of its process that began
  // before it. kNone where there is none.
  int32_t find(int64_t id, int32_t device_row) const;

 private:
  using Process = std::pair<int64_t, StringId>;  // pid, its text
  Process process_of(int32_t row) const {
    const FileThread& thread = file_.threads[file_.thread[row]];
    return {thread.pid, thread.pid_text};
  }
  template <class Visit>
  void for_each(int64_t id, Visit visit) const;

  const TraceFile& file_;
  std::unordered_map<int64_t, int32_t> first_;      // by id
  std::unordered_multimap<int64_t, int32_t> more_;  // the rows after the first
  std::map<Process, Process> host_of_;              // by the device's process
};

}  // namespace opfuse::trace
