#pragma once
// Describes live tensors and arguments as rows of a Record's EventTable. In: IValues of the
// dispatcher; out: interned rows. Calls no operator and never Python. Not locked: the recorder's
// mutex guards it.

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "opfuse/torch/python_frames.h"
#include "opfuse/torch/record.h"
#include "opfuse/torch/recorder_identity.h"

namespace opfuse::torch_bridge {

class RowBuilder {
 public:
  RowBuilder(Record* record, IdentityTable* identities, uint64_t record_number)
      : record_(record), identities_(identities), record_number_(record_number) {}

  // Row of the tensor, kNone when it is undefined. A tensor that hides what it holds (functorch and
  // Python wrappers, sparse, nested, symbolic) gets a row without shape and sets saw_opaque().
  int32_t tensor(const at::Tensor& tensor);
  trace::ArgumentRow argument(const c10::IValue& value);
  // Row of the innermost frame's stack; kNone when there are no frames.
  int32_t stack(const std::vector<FrameSite>& frames);

  bool saw_opaque() const { return saw_opaque_; }
  void clear_opaque() { saw_opaque_ = false; }

 private:
  int32_t storage(const c10::Storage& storage);
  int32_t intern(const trace::TensorRow& row, int32_t hint);
  int32_t frame(const FrameSite& site);
  void decline(const char* reason);

  Record* record_;
  IdentityTable* identities_;
  uint64_t record_number_;
  bool saw_opaque_ = false;
  trace::TensorRow scratch_;
  std::unordered_map<uint64_t, std::vector<int32_t>> tensor_rows_;  // by hash of the row
  std::unordered_map<uint64_t, int32_t> frame_rows_;                // by code and lasti
  std::unordered_map<uint64_t, int32_t> stack_rows_;                // by parent and frame
  std::vector<FrameSite> last_frames_;                              // outermost first
  std::vector<int32_t> last_stacks_;
};

// Adds a reason once.
void add_declined(Record* record, const std::string& reason);

}  // namespace opfuse::torch_bridge
