#include "opfuse/torch/recorder_log.h"

#include <ATen/ops/from_blob.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <new>

#include "opfuse/torch/recorder_values.h"

namespace opfuse::torch_bridge {
namespace {

using trace::ArgumentKind;
using trace::ArgumentRow;
using trace::EventRow;

constexpr size_t kPage = 4096;

size_t whole_pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

bool holds_doubles(ArgumentKind kind) {
  return kind == ArgumentKind::kDouble || kind == ArgumentKind::kDoubleList ||
         kind == ArgumentKind::kComplex;
}

bool holds_tensors(ArgumentKind kind) {
  return kind == ArgumentKind::kTensor || kind == ArgumentKind::kTensorList ||
         kind == ArgumentKind::kOptionalTensorList;
}

ArgumentRow argument_row(const EventLog& log, const LogArgument& from) {
  ArgumentRow row;
  row.kind = from.kind;
  row.text = from.text;
  for (uint64_t i = 0; i < from.values.count; ++i) {
    const int64_t value = log.numbers[from.values.first + i];
    if (holds_tensors(from.kind))
      row.tensors.push_back(static_cast<int32_t>(value));
    else if (holds_doubles(from.kind))
      row.doubles.push_back(std::bit_cast<double>(value));
    else
      row.ints.push_back(value);
  }
  return row;
}

std::vector<ArgumentRow> argument_rows(const EventLog& log, const LogRange& range) {
  std::vector<ArgumentRow> rows;
  rows.reserve(range.count);
  for (uint64_t i = 0; i < range.count; ++i)
    rows.push_back(argument_row(log, log.arguments[range.first + i]));
  return rows;
}

trace::TensorRow tensor_row(const EventLog& log, const LogTensor& from) {
  trace::TensorRow row;
  row.tensor = from.tensor;
  row.storage = from.storage;
  row.offset = from.offset;
  row.dtype = from.dtype;
  row.device = from.device;
  row.flags = from.flags;
  row.shape_known = from.shape_known;
  row.torch_version = from.torch_version;
  row.number = from.number;
  const uint32_t rank = from.dimensions.count / 2;
  row.shape.reserve(rank);
  row.strides.reserve(rank);
  for (uint32_t d = 0; d < rank; ++d) {
    row.shape.push_back(log.numbers[from.dimensions.first + d]);
    row.strides.push_back(log.numbers[from.dimensions.first + rank + d]);
  }
  return row;
}

EventRow event_row(const EventLog& log, const LogEvent& from) {
  EventRow row;
  row.name = from.name;
  row.kind = from.kind;
  row.flags = from.flags;
  row.thread = from.thread;
  row.parent = from.parent;
  row.start_ns = from.start_ns;
  row.dur_ns = from.dur_ns;
  row.sequence = from.sequence;
  row.forward_sequence = from.forward_sequence;
  row.stack = from.stack;
  row.inputs = argument_rows(log, from.inputs);
  row.outputs = argument_rows(log, from.outputs);
  return row;
}

// None for tensors and for what cannot be given to an operator again.
c10::IValue attribute(const trace::StringPool& strings, const ArgumentRow& row) {
  switch (row.kind) {
    case ArgumentKind::kBool:
      return row.ints[0] != 0;
    case ArgumentKind::kInt:
      return row.ints[0];
    case ArgumentKind::kDouble:
      return row.doubles[0];
    case ArgumentKind::kComplex:
      return c10::complex<double>(row.doubles[0], row.doubles[1]);
    case ArgumentKind::kIntList:
      return row.ints;
    case ArgumentKind::kDoubleList:
      return row.doubles;
    case ArgumentKind::kString:
      return std::string(strings.get(row.text));
    case ArgumentKind::kDevice:
      return c10::Device(std::string(strings.get(row.text)));
    case ArgumentKind::kBoolList: {
      c10::List<bool> list;
      for (int64_t element : row.ints) list.push_back(element != 0);
      return list;
    }
    default:
      return {};
  }
}

}  // namespace

MappedMemory* MappedMemory::instance() {
  static MappedMemory* memory = new MappedMemory;  // used until the process ends
  return memory;
}

void* MappedMemory::do_allocate(size_t bytes, size_t) {
  void* memory =
      mmap(nullptr, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return memory;
}

void MappedMemory::do_deallocate(void* memory, size_t bytes, size_t) {
  munmap(memory, whole_pages(bytes));
}

at::Tensor SnapshotMemory::allocate(int64_t bytes) {
  constexpr size_t kAlignment = 64;
  const size_t needed = (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
  if (block_ == nullptr || size_ - used_ < needed) {
    size_ = std::max(needed, kBlock);
    block_ = std::shared_ptr<char>(
        static_cast<char*>(MappedMemory::instance()->allocate(size_)),
        [size = size_](char* memory) { MappedMemory::instance()->deallocate(memory, size); });
    used_ = 0;
  }
  char* data = block_.get() + used_;
  used_ += needed;
  return at::from_blob(data, {bytes}, [block = block_](void*) {}, c10::TensorOptions(c10::kByte));
}

void fill_record(EventLog* log, Record* record) {
  trace::EventTable& table = record->table;
  table.tensors.reserve(log->tensors.size());
  for (size_t row = 0; row < log->tensors.size(); ++row)
    table.tensors.push_back(tensor_row(*log, log->tensors[row]));
  table.events.reserve(log->events.size());
  record->calls.resize(log->events.size());
  for (size_t row = 0; row < log->events.size(); ++row) {
    const LogEvent& event = log->events[row];
    table.events.push_back(event_row(*log, event));
    if (event.op == nullptr) continue;
    Call& call = record->calls[row];
    call.op = event.op->handle;
    if (!record->with_values) continue;
    call.attributes.reserve(event.inputs.count);
    for (const ArgumentRow& input : table.events.back().inputs)
      call.attributes.push_back(attribute(table.strings, input));
  }
  for (size_t i = 0; i < log->hashes.size(); ++i)
    record->calls[log->hashes[i].event].hashes.emplace_back(log->hashes[i].row,
                                                            log->hashes[i].hash);
  for (auto& poke : log->pokes)
    record->calls[poke.event].pokes.emplace_back(poke.row, std::move(poke.tensor));
  for (auto& result : log->random_results)
    record->calls[result.event].random_results.emplace_back(result.row, std::move(result.tensor));
  for (auto& [event, generator] : log->generators)
    record->calls[event].generator = std::move(generator);
}

}  // namespace opfuse::torch_bridge
