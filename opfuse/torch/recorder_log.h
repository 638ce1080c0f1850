#pragma once
// What the callbacks write while a step runs: flat arrays in memory mapped apart from the heap.
// Small blocks that stay in the heap between the step's big ones would keep those from being used
// again, and the recorded step would need far more memory than a plain one. fill_record() turns the
// log into the rows of a Record when the step has ended. Not locked: the recorder's mutex guards
// it.

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <utility>
#include <vector>

#include "opfuse/torch/record.h"

namespace opfuse::torch_bridge {

// Whole pages from mmap.
class MappedMemory : public std::pmr::memory_resource {
 public:
  static MappedMemory* instance();

 private:
  void* do_allocate(size_t bytes, size_t alignment) override;
  void do_deallocate(void* memory, size_t bytes, size_t alignment) override;
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

// Byte tensors cut from mapped blocks, for copies that outlive the step. A block is unmapped when
// the last tensor on it is gone.
class SnapshotMemory {
 public:
  at::Tensor allocate(int64_t bytes);

 private:
  static constexpr size_t kBlock = 4 << 20;
  std::shared_ptr<char> block_;
  size_t used_ = 0, size_ = 0;
};

// An array that grows without moving its elements. T needs no destructor.
template <class T>
class MappedArray {
 public:
  MappedArray() = default;
  ~MappedArray() {
    for (T* chunk : chunks_) MappedMemory::instance()->deallocate(chunk, kChunk * sizeof(T));
  }
  MappedArray(const MappedArray&) = delete;
  MappedArray& operator=(const MappedArray&) = delete;

  size_t size() const { return size_; }
  T& operator[](size_t i) { return chunks_[i / kChunk][i % kChunk]; }
  const T& operator[](size_t i) const { return chunks_[i / kChunk][i % kChunk]; }
  T& back() { return (*this)[size_ - 1]; }
  void push_back(const T& value) {
    if (size_ == chunks_.size() * kChunk)
      chunks_.push_back(
          static_cast<T*>(MappedMemory::instance()->allocate(kChunk * sizeof(T), alignof(T))));
    new (&(*this)[size_++]) T(value);
  }

 private:
  static constexpr size_t kChunk = 1 << 13;
  std::pmr::vector<T*> chunks_{MappedMemory::instance()};
  size_t size_ = 0;
};

// A run of `numbers`.
struct LogRange {
  uint64_t first = 0;
  uint32_t count = 0;
};

struct LogArgument {
  trace::ArgumentKind kind = trace::ArgumentKind::kUnknown;
  trace::StringId text = 0;
  LogRange values;  // tensor rows, integers, or the bits of doubles
};

struct LogTensor {
  int32_t tensor = trace::kNone, storage = trace::kNone;
  int64_t offset = 0, torch_version = -1;
  double number = 0;
  DType dtype = DType::kUnknown;
  int8_t device = -1;
  bool shape_known = false;
  uint16_t flags = 0;
  LogRange dimensions;          // sizes, then strides
  int32_t next = trace::kNone;  // row with the same hash
};

struct LogEvent {
  trace::StringId name = 0;
  trace::EventKind kind = trace::EventKind::kOther;
  uint16_t flags = 0;
  int32_t thread = 0, parent = trace::kNone, stack = trace::kNone;
  int64_t start_ns = 0, dur_ns = -1, sequence = -1, forward_sequence = -1;
  LogRange inputs, outputs;  // runs of `arguments`
  const struct OperatorInfo* op = nullptr;
};

struct LogHash {
  int32_t event, row;
  uint64_t hash;
};

struct EventLog {
  MappedArray<LogEvent> events;
  MappedArray<LogArgument> arguments;
  MappedArray<LogTensor> tensors;
  MappedArray<int64_t> numbers;
  MappedArray<LogHash> hashes;
  // Few, and tensors themselves live where tensors live.
  struct EventTensor {
    int32_t event, row;  // row of a tensor or, of a poke, of a storage
    at::Tensor tensor;
  };
  std::vector<EventTensor> pokes, random_results;
  std::vector<std::pair<int32_t, at::Generator>> generators;
};

// Moves the log into record->table.events, .tensors and record->calls.
void fill_record(EventLog* log, Record* record);

}  // namespace opfuse::torch_bridge
