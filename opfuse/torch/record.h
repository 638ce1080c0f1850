#pragma once
// Record: one recorded step with what replaying it needs. Made by the recorder (recorder.h), read
// by the replay interpreter (replay.h). Rows of `calls` run parallel to `table.events`.

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "opfuse/graph/schema.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::torch_bridge {

class CodeTable;  // python_frames.h

// The dispatcher's side of one kOperator event.
struct Call {
  std::optional<c10::OperatorHandle> op;
  std::vector<c10::IValue> attributes;  // by argument position; tensors and tensor lists are None
  at::Generator generator;              // random operators: a clone taken before the call
  // Values mode only. Hash of the bytes of each result that this call made or wrote, by tensor row.
  std::vector<std::pair<int32_t, uint64_t>> hashes;
  std::vector<std::pair<int32_t, at::Tensor>> random_results;  // tensor row, clone
  // Storages whose bytes changed behind the recorder's back before this call: storage row, bytes.
  std::vector<std::pair<int32_t, at::Tensor>> pokes;
};

struct Record {
  trace::EventTable table;
  std::vector<Call> calls;
  std::vector<at::Tensor>
      snapshots;  // per storage row: bytes (kByte) at first sight, undefined if not external
  std::map<int32_t, c10::Device> devices;  // of storages with bytes above that are not the CPU's
  graph::SchemaTable extra_schemas;        // custom operators that the built-in table does not know
  bool with_values = false;
  bool complete = true;  // false: the cap was reached, see table.losses
  int64_t snapshot_bytes = 0;
  double seconds = 0;                 // wall time of the recorded step
  std::vector<std::string> declined;  // why the step cannot be replayed (functorch, sparse, …)
  std::vector<int32_t> frame_lasti;   // per row of table.frames: byte offset of the instruction
  std::shared_ptr<CodeTable> codes;   // holds the code objects of table.frames alive
};

// A code object met while recording and the instructions at which it was seen.
struct CodeObject {
  int32_t code = trace::kNone;    // FrameRow::code
  const void* pointer = nullptr;  // PyCodeObject, alive while the record is
  std::vector<int32_t> lasti;     // sorted
};
std::vector<CodeObject> code_objects(const Record& record);

// What Python's co_positions() says of a code object.
struct CodePosition {
  int32_t lasti = -1, line = -1, end_line = -1, column = -1, end_column = -1;
};
struct CodeDescription {
  int32_t code = trace::kNone;
  std::string file, qualname;
  std::vector<CodePosition> positions;
};
// Fills table.frames. Frames whose instruction is not described keep line -1.
void set_code_positions(Record* record, std::span<const CodeDescription> codes);

// Labels storages of the record; first: address of the StorageImpl (untyped_storage()._cdata) of a
// tensor that is alive now. Storages that the record does not know are passed over. A label that
// starts with "param:" marks the tensors on the storage as parameters. Returns how many were found.
int64_t set_storage_labels(Record* record,
                           std::span<const std::pair<const void*, std::string>> labels);

// 64-bit hash of the elements of a dense tensor (made contiguous when it is not).
uint64_t hash_tensor(const at::Tensor& tensor);

}  // namespace opfuse::torch_bridge
