#include "opfuse/torch/record.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <unordered_map>

#include "opfuse/torch/host_memory.h"
#include "opfuse/torch/python_frames.h"
#include "opfuse/torch/recorder_hash.h"
#include "opfuse/torch/recorder_values.h"

namespace opfuse::torch_bridge {
namespace {

// Elements of a strided tensor in row-major order.
void gather(const at::Tensor& tensor, uint8_t* out) {
  const int64_t item = tensor.element_size();
  const auto* data = static_cast<const uint8_t*>(tensor.const_data_ptr());
  const int64_t rank = tensor.dim();
  std::vector<int64_t> index(rank, 0);
  const int64_t inner = rank == 0 ? 1 : tensor.size(rank - 1);
  const int64_t inner_stride = rank == 0 ? 0 : tensor.stride(rank - 1) * item;
  const int64_t rows = inner == 0 ? 0 : tensor.numel() / inner;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t offset = 0;
    for (int64_t d = 0; d + 1 < rank; ++d) offset += index[d] * tensor.stride(d) * item;
    const uint8_t* from = data + offset;
    if (inner_stride == item) {
      std::memcpy(out, from, inner * item);
      out += inner * item;
    } else {
      for (int64_t i = 0; i < inner; ++i, from += inner_stride, out += item)
        std::memcpy(out, from, item);
    }
    for (int64_t d = rank - 2; d >= 0 && ++index[d] == tensor.size(d); --d) index[d] = 0;
  }
}

}  // namespace

uint64_t hash_tensor(const at::Tensor& given) {
  if (!given.defined()) return 0;
  const at::Tensor tensor = on_host(given);
  const int64_t bytes = tensor.numel() * tensor.element_size();
  if (bytes == 0) return hash_bytes(nullptr, 0);
  if (tensor.is_non_overlapping_and_dense()) return hash_bytes(tensor.const_data_ptr(), bytes);
  std::vector<uint8_t> elements(bytes);
  gather(tensor, elements.data());
  return hash_bytes(elements.data(), bytes);
}

at::Tensor copy_tensor(const at::Tensor& given) {
  const at::Tensor tensor = on_host(given);
  const bool dense = tensor.is_non_overlapping_and_dense();
  at::Tensor copy(
      dense ? at::detail::empty_strided_cpu(tensor.sizes(), tensor.strides(), tensor.scalar_type())
            : at::detail::empty_cpu(tensor.sizes(), tensor.options()));
  if (tensor.numel() == 0) return copy;
  if (dense)
    std::memcpy(copy.mutable_data_ptr(), tensor.const_data_ptr(),
                tensor.numel() * tensor.element_size());
  else
    gather(tensor, static_cast<uint8_t*>(copy.mutable_data_ptr()));
  return copy;
}

std::vector<CodeObject> code_objects(const Record& record) {
  std::map<int32_t, std::set<int32_t>> sites;
  for (size_t row = 0; row < record.table.frames.size(); ++row)
    sites[record.table.frames[row].code].insert(record.frame_lasti[row]);
  std::vector<CodeObject> objects;
  for (const auto& [code, lasti] : sites)
    objects.push_back(
        {code, record.codes ? record.codes->pointer(code) : nullptr, {lasti.begin(), lasti.end()}});
  return objects;
}

void set_code_positions(Record* record, std::span<const CodeDescription> codes) {
  trace::EventTable& table = record->table;
  struct Known {
    trace::StringId file, function;
    std::unordered_map<int32_t, const CodePosition*> positions;
  };
  std::unordered_map<int32_t, Known> known;
  for (const CodeDescription& code : codes) {
    Known& entry = known[code.code];
    entry.file = table.strings.intern(code.file);
    entry.function = table.strings.intern(code.qualname);
    for (const CodePosition& position : code.positions) entry.positions[position.lasti] = &position;
  }
  for (size_t row = 0; row < table.frames.size(); ++row) {
    trace::FrameRow& frame = table.frames[row];
    auto code = known.find(frame.code);
    if (code == known.end()) continue;
    frame.file = code->second.file;
    frame.function = code->second.function;
    auto position = code->second.positions.find(record->frame_lasti[row]);
    if (position == code->second.positions.end()) continue;
    frame.line = position->second->line;
    frame.end_line = position->second->end_line;
    frame.column = position->second->column;
    frame.end_column = position->second->end_column;
  }
}

}  // namespace opfuse::torch_bridge
