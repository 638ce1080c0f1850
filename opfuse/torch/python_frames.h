#pragma once
// The Python call stack of the current thread through the public C API, found with dlsym in the
// host process: nothing links libpython. Needs Python 3.11 or newer (PyFrame_GetLasti). In: the
// calling thread; out: (code id, instruction offset) pairs. A CodeTable owns one strong reference
// to each code object that it has numbered and gives them back under the GIL when it dies.

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace opfuse::torch_bridge {

struct FrameSite {
  int32_t code = -1;   // id in the CodeTable
  int32_t lasti = -1;  // byte offset of the running instruction
  bool operator==(const FrameSite&) const = default;
};

class CodeTable {
 public:
  CodeTable() = default;
  ~CodeTable();
  CodeTable(const CodeTable&) = delete;
  CodeTable& operator=(const CodeTable&) = delete;

  // The PyCodeObject numbered `code`.
  const void* pointer(int32_t code) const;
  size_t size() const;

 private:
  friend bool gather_python_frames(CodeTable* codes, std::vector<FrameSite>* frames);
  // Takes over one strong reference; the caller holds the GIL.
  int32_t adopt(void* code);

  mutable std::mutex mutex_;  // never held while waiting for the GIL
  std::vector<void*> pointers_;
  std::unordered_map<const void*, int32_t> ids_;
};

// The table that records share: ids are equal in all records that are alive at the same time, so
// that a function keeps its id from one recorded step to the next.
std::shared_ptr<CodeTable> shared_code_table();

// True when the host process has Python 3.11 or newer.
bool python_frames_available();

// Appends the frames of the calling thread to `frames`, innermost first, at most 64. Takes the GIL:
// the caller must hold no lock. False, and nothing appended, when there is no Python or the thread
// has never run it.
bool gather_python_frames(CodeTable* codes, std::vector<FrameSite>* frames);

}  // namespace opfuse::torch_bridge
