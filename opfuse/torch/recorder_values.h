#pragma once
// Which storages existed before the step, and (values mode) what they held: snapshots at first
// sight, hashes of what each leaf operator made or wrote, bytes that changed behind the recorder's
// back. Fed by the recorder with the leaf operators that are not inside another leaf. Reads memory
// of CPU tensors directly, of others by a copy; calls no operator that anybody sees. Not locked:
// the recorder's mutex guards it.

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "opfuse/torch/host_memory.h"
#include "opfuse/torch/record.h"
#include "opfuse/torch/recorder_rows.h"

namespace opfuse::torch_bridge {

// What the recorder knows of an operator, looked up once.
struct OperatorInfo {
  std::optional<c10::OperatorHandle> handle;
  std::string name;  // "aten::mul.Tensor"
  trace::StringId name_id = 0;
  uint16_t flags = 0;  // kComposite, kRandom
  bool is_aten = false;
  bool has_autocast_kernel = false;
  bool is_clone = false;              // its result may be a hidden product
  bool leaves_uninitialised = false;  // aten::empty and its kin
  bool adopts_storage = false;  // aten::set_ of a Storage: made elsewhere, by a loader's worker
  size_t arguments = 0, returns = 0;
  std::vector<char> writes, overwrites;  // per argument: is written; its whole old value is lost
  int write_condition = -1;              // bool argument without which nothing is written, or -1
};
OperatorInfo describe_operator(const c10::OperatorHandle& handle);

// Tensors of one call that must be looked at again when it has ended.
struct HeldTensor {
  at::Tensor tensor;
  bool declared_write = false;
};

class ValueCapture {
 public:
  ValueCapture(Record* record, EventLog* log, RowBuilder* rows, bool values, int64_t max_bytes)
      : record_(record), log_(log), rows_(rows), values_(values), max_bytes_(max_bytes) {}

  // After rows of an event's inputs or outputs were made: storages seen for the first time.
  void note_new_storages(int32_t event, bool inside_leaf);
  // True for a tensor on a storage of the last leaf's arguments.
  bool is_given_to_leaf(const c10::IValue& value);
  // Results of a clone of such: in-place operators keep one for the backward pass.
  void note_clone(int32_t event, c10::ArrayRef<c10::IValue> outputs);
  // Python may have run since the last operator: bytes must be looked at again.
  void python_may_have_run() { ++epoch_; }

  void before_leaf(int32_t event, const OperatorInfo& op, c10::ArrayRef<c10::IValue> inputs,
                   std::vector<HeldTensor>* held);
  void after_leaf(int32_t event, const OperatorInfo& op, c10::ArrayRef<c10::IValue> outputs,
                  const std::vector<HeldTensor>& held);

 private:
  struct StorageState {
    int32_t first_event = trace::kNone;
    bool inside_leaf = false;   // first seen inside a leaf
    bool clone_result = false;  // … as the result of a clone
    bool known = false;         // external, or made by a leaf
    bool hash_known = false;    // false: uninitialised memory
    uint64_t hash = 0;
    uint64_t epoch = 0;  // when `hash` was last compared
    size_t bytes = 0;
  };

  void see_input(int32_t event, const at::Tensor& tensor, bool overwritten);
  void see_result(int32_t event, const OperatorInfo& op, const at::Tensor& tensor, bool written);
  void take_snapshot(int32_t storage, const c10::StorageImpl& impl);
  void note_outside_write(int32_t event, int32_t storage, const c10::StorageImpl& impl);
  void find_undeclared_write(int32_t event, const at::Tensor& tensor);
  at::Tensor copy_storage(const HostBytes& from);
  HostBytes readable_bytes(const c10::StorageImpl& impl);  // else ends the capture of values
  void note_device(int32_t storage, const c10::StorageImpl& impl);
  void stop_values(const std::string& reason);

  Record* record_;
  EventLog* log_;
  RowBuilder* rows_;
  SnapshotMemory snapshots_;
  bool values_;
  int64_t max_bytes_;
  uint64_t epoch_ = 1;
  std::vector<StorageState> states_;  // per storage row
  std::vector<int32_t> seen_;         // storages of the current call
};

// Elements on the host with the same strides when the tensor is dense, else contiguous.
at::Tensor copy_tensor(const at::Tensor& tensor);

}  // namespace opfuse::torch_bridge
