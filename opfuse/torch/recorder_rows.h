#pragma once
// Describes live tensors and arguments as rows of a Record's EventTable. In: IValues of the
// dispatcher; out: interned rows. Calls no operator and never Python. Not locked: the recorder's
// mutex guards it.

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory_resource>
#include <unordered_map>
#include <vector>

#include "opfuse/torch/python_frames.h"
#include "opfuse/torch/record.h"
#include "opfuse/torch/recorder_identity.h"
#include "opfuse/torch/recorder_log.h"

namespace opfuse::torch_bridge {

class RowBuilder {
 public:
  RowBuilder(Record* record, EventLog* log, IdentityTable* identities, uint64_t record_number)
      : record_(record), log_(log), identities_(identities), record_number_(record_number) {}

  // Row of the tensor, kNone when it is undefined. A tensor that hides what it holds (functorch and
  // Python wrappers, sparse, nested, symbolic) gets a row without shape and sets saw_opaque().
  int32_t tensor(const at::Tensor& tensor);
  // Appends the arguments of one side of an event to the log.
  LogRange arguments(c10::ArrayRef<c10::IValue> values);
  // Storage of a tensor row; kNone for no row and for tensors without storage.
  int32_t storage_of(int32_t row) const {
    return row == trace::kNone ? trace::kNone : log_->tensors[row].storage;
  }
  // Row of the innermost frame's stack; kNone when there are no frames.
  int32_t stack(const std::vector<FrameSite>& frames);

  bool saw_opaque() const { return saw_opaque_; }
  void clear_opaque() { saw_opaque_ = false; }

 private:
  struct Dimensions {
    c10::IntArrayRef sizes, strides;
  };
  int32_t storage(const c10::Storage& storage);
  int32_t intern(const LogTensor& row, const Dimensions& dimensions, int32_t hint);
  bool same_row(const LogTensor& known, const LogTensor& row, const Dimensions& dimensions) const;
  LogArgument argument(const c10::IValue& value);
  template <class Numbers>
  LogRange numbers(const Numbers& values);
  int32_t frame(const FrameSite& site);
  void decline(const char* reason);

  Record* record_;
  EventLog* log_;
  IdentityTable* identities_;
  uint64_t record_number_;
  bool saw_opaque_ = false;
  std::pmr::monotonic_buffer_resource memory_{1 << 16, MappedMemory::instance()};
  std::pmr::unordered_map<uint64_t, int32_t> tensor_rows_{&memory_};  // by hash: newest row
  std::pmr::unordered_map<uint64_t, int32_t> frame_rows_{&memory_};   // by code and lasti
  std::pmr::unordered_map<uint64_t, int32_t> stack_rows_{&memory_};   // by parent and frame
  std::vector<FrameSite> last_frames_;                                // outermost first
  std::vector<int32_t> last_stacks_;
};

// Adds a reason once.
void add_declined(Record* record, const std::string& reason);

}  // namespace opfuse::torch_bridge
