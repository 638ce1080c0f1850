#pragma once
// The tensors of a replay. A value of the graph lives in a slot: storage, offset, sizes, strides
// and dtype; views of one storage share its memory, as in the recorded step. Externals come from
// the record's snapshots, raised to fp64 or moved by one ulp on request.

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "opfuse/graph/graph.h"
#include "opfuse/torch/record.h"
#include "opfuse/verify/evaluator.h"

namespace opfuse::torch_bridge {

// A failure of one replay, as a sentence; turned into an Error where the replay ends.
struct ReplayFailure {
  std::string message;
};

struct Slot {
  int32_t storage = graph::kNone;
  int64_t offset = 0;
  std::vector<int64_t> sizes, strides;
  c10::ScalarType dtype = c10::kFloat;
  bool wrapped = false;
  std::optional<double> number;

  auto key() const { return std::tie(storage, offset, sizes, strides, dtype, wrapped); }
  bool operator<(const Slot& other) const { return key() < other.key(); }
};

// Does the tensor lie where the slot says?
bool same_layout(const at::Tensor& tensor, const Slot& slot);
int64_t extent(const Slot& slot);  // elements that a storage needs to hold the view

class ReplayValues {
 public:
  // `graph` and `record` must outlive it.
  ReplayValues(const Record& record, const graph::Graph& graph,
               const verify::ReplayOptions& options);

  at::Tensor value(graph::ValueId id);
  at::Tensor get(int slot);
  at::Tensor bind(int slot, at::Tensor tensor);
  void release(int32_t storage);

  // kNone for what has no known storage or shape.
  int slot_of(graph::ValueId id) const { return slot_of_value_[id]; }
  int slot_for_row(int32_t row);
  const Slot& slot(int id) const { return slots_[id]; }
  // Is there memory of the slot's storage already, or a snapshot to make it from?
  bool has_memory(const Slot& slot) const;
  // Has something of this run been put into the storage?
  bool is_placed(int32_t storage) const {
    return !bound_by_storage_[storage].empty() || bases_[storage].defined();
  }

  // Replaces the bytes of an external storage.
  void overwrite(int32_t storage, const at::Tensor& bytes);
  // As the replay stores it: raised in fp64.
  c10::ScalarType stored_dtype(c10::ScalarType dtype) const;
  // Where the replay puts an external storage: where it was; in fp64, on the CPU.
  c10::Device device_of(int32_t storage) const;

 private:
  int slot_for(const graph::Value& value);
  int slot_for(Slot slot);
  at::Tensor number(const Slot& slot) const;
  bool changes_layout(const Slot& slot) const;
  bool has_snapshot(int32_t storage) const;
  at::Tensor base_of(const Slot& slot);
  at::Tensor from_bytes(const at::Tensor& bytes, c10::ScalarType dtype, bool copy) const;
  c10::ScalarType dtype_of_storage(int32_t storage) const;

  const Record& record_;
  const graph::Graph& graph_;
  const verify::ReplayOptions& options_;
  std::vector<Slot> slots_;
  std::map<Slot, int> slot_ids_;
  std::vector<int> slot_of_value_;
  std::vector<at::Tensor> bound_;                   // per slot
  std::vector<std::vector<int>> bound_by_storage_;  // slots that are bound
  std::vector<at::Tensor> bases_;                   // externals: flat
  std::vector<bool> written_;
};

// Storages that some node of the graph writes.
std::vector<bool> written_storages(const graph::Graph& graph);

}  // namespace opfuse::torch_bridge
