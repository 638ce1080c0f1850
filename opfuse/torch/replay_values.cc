#include "opfuse/torch/replay_values.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>

#include "opfuse/torch/replay_operation.h"

namespace opfuse::torch_bridge {
namespace {

using graph::Graph;
using graph::kNone;
using graph::Node;
using graph::Value;
using graph::ValueId;

[[noreturn]] void fail(std::string message) { throw ReplayFailure{std::move(message)}; }

// Moves each finite value by one unit in the last place, up or down by the bits of a generator.
template <class Bits>
void move_by_one(Bits* values, int64_t n, Bits infinity, uint64_t seed) {
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  constexpr Bits kSign = static_cast<Bits>(Bits{1} << (sizeof(Bits) * 8 - 1));
  for (int64_t i = 0; i < n; ++i) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    const Bits magnitude = values[i] & static_cast<Bits>(~kSign);
    if (magnitude >= static_cast<Bits>(infinity - 1)) continue;
    const bool up = magnitude == 0 || (state >> 40 & 1);
    values[i] = static_cast<Bits>(up ? values[i] + 1 : values[i] - 1);
  }
}

void perturb(const at::Tensor& flat, uint64_t seed) {
  void* data = flat.mutable_data_ptr();
  const int64_t n = flat.numel();
  switch (flat.scalar_type()) {
    case c10::kDouble:
      return move_by_one(static_cast<uint64_t*>(data), n, uint64_t{0x7ff} << 52, seed);
    case c10::kFloat:
      return move_by_one(static_cast<uint32_t*>(data), n, 0x7f800000u, seed);
    case c10::kHalf:
      return move_by_one(static_cast<uint16_t*>(data), n, uint16_t{0x7c00}, seed);
    case c10::kBFloat16:
      return move_by_one(static_cast<uint16_t*>(data), n, uint16_t{0x7f80}, seed);
    default:
      return;
  }
}

}  // namespace

bool same_layout(const at::Tensor& tensor, const Slot& slot) {
  if (tensor.sizes() != c10::IntArrayRef(slot.sizes)) return false;
  if (tensor.numel() == 0) return true;
  if (tensor.storage_offset() != slot.offset) return false;
  for (size_t i = 0; i < slot.sizes.size(); ++i)
    if (slot.sizes[i] > 1 && tensor.strides()[i] != slot.strides[i]) return false;
  return true;
}

int64_t extent(const Slot& slot) {  // elements that a storage needs to hold the view
  int64_t last = slot.offset;
  for (size_t i = 0; i < slot.sizes.size(); ++i) {
    if (slot.sizes[i] == 0) return slot.offset;
    last += (slot.sizes[i] - 1) * slot.strides[i];
  }
  return last + 1;
}

ReplayValues::ReplayValues(const Record& record, const Graph& graph,
                           const verify::ReplayOptions& options)
    : record_(record), graph_(graph), options_(options), written_(written_storages(graph)) {
  bound_by_storage_.resize(graph_.storages.size());
  bases_.resize(graph_.storages.size());
  slot_of_value_.reserve(graph_.values.size());
  for (const Value& value : graph_.values) slot_of_value_.push_back(slot_for(value));
}

int ReplayValues::slot_for(const Value& value) {
  if (value.storage == kNone || !value.meta.shape_known) return kNone;
  Slot slot;
  slot.storage = value.storage;
  slot.offset = value.meta.offset;
  slot.sizes = value.meta.shape;
  slot.strides = value.meta.strides;
  slot.dtype = static_cast<c10::ScalarType>(value.meta.dtype);
  slot.wrapped = value.meta.flags & trace::kWrappedNumber;
  slot.number = value.meta.number;
  return slot_for(std::move(slot));
}

int ReplayValues::slot_for(Slot slot) {
  const auto [at, fresh] = slot_ids_.emplace(std::move(slot), static_cast<int>(slots_.size()));
  if (fresh) {
    slots_.push_back(at->first);
    bound_.emplace_back();
  }
  return at->second;
}

int ReplayValues::slot_for_row(int32_t row) {
  const trace::TensorRow& tensor = record_.table.tensors[row];
  if (tensor.storage == kNone) return kNone;
  Slot slot{tensor.storage,
            tensor.offset,
            tensor.shape,
            tensor.strides,
            static_cast<c10::ScalarType>(tensor.dtype),
            (tensor.flags & trace::kWrappedNumber) != 0,
            {}};
  return slot_for(std::move(slot));
}

at::Tensor ReplayValues::value(ValueId id) {
  if (id == kNone) return {};
  const int slot = slot_of_value_[id];
  if (slot == kNone)
    fail("a value of " +
         (graph_.values[id].producer == kNone ? std::string("the step's inputs")
                                              : describe_node(graph_, graph_.values[id].producer)) +
         " has no known storage or shape");
  return get(slot);
}

at::Tensor ReplayValues::get(int id) {
  if (bound_[id].defined()) return bound_[id];
  const Slot& slot = slots_[id];
  if (slot.wrapped && slot.number && !has_snapshot(slot.storage)) return bind(id, number(slot));
  if (options_.channels_last && !bound_by_storage_[slot.storage].empty())
    fail("the step reads " + graph_.storages[slot.storage].label +
         " as a view that none of its operators made");
  const at::Tensor base = base_of(slot);
  at::Tensor tensor;
  if (base.scalar_type() == stored_dtype(slot.dtype)) {
    tensor = at::as_strided(base, slot.sizes, slot.strides, slot.offset);
  } else {  // the same bytes read as another dtype
    if (options_.f64) fail("the step reads the bytes of a tensor as another dtype: no fp64 replay");
    tensor = at::empty({0}, base.options().dtype(slot.dtype));
    tensor.set_(base.storage(), slot.offset, slot.sizes, slot.strides);
  }
  if (slot.wrapped) tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  if (options_.channels_last && changes_layout(slot))
    tensor = tensor.clone(c10::MemoryFormat::ChannelsLast);
  return bind(id, std::move(tensor));
}

// What Python named as the model's or the optimizer's, as a whole.
bool ReplayValues::changes_layout(const Slot& slot) const {
  const std::string& label = graph_.storages[slot.storage].label;
  const bool named =
      label.starts_with("param:") || label.starts_with("grad:") || label.starts_with("state:");
  return named && slot.sizes.size() == 4;
}

at::Tensor ReplayValues::number(const Slot& slot) const {
  at::Tensor tensor = c10::isIntegralType(slot.dtype, true)
                          ? at::scalar_tensor(static_cast<int64_t>(*slot.number), slot.dtype)
                          : at::scalar_tensor(*slot.number, stored_dtype(slot.dtype));
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

c10::ScalarType ReplayValues::stored_dtype(c10::ScalarType dtype) const {
  return options_.f64 ? raised(dtype) : dtype;
}

c10::Device ReplayValues::device_of(int32_t storage) const {
  const auto found = record_.devices.find(storage);
  return options_.f64 || found == record_.devices.end() ? c10::Device(c10::kCPU) : found->second;
}

bool ReplayValues::has_snapshot(int32_t storage) const {
  return static_cast<size_t>(storage) < record_.snapshots.size() &&
         record_.snapshots[storage].defined();
}

bool ReplayValues::has_memory(const Slot& slot) const {
  return is_placed(slot.storage) || has_snapshot(slot.storage);
}

// Some tensor on the slot's storage: one that is bound, else the snapshot.
at::Tensor ReplayValues::base_of(const Slot& slot) {
  const std::vector<int>& bound = bound_by_storage_[slot.storage];
  if (!bound.empty()) return bound_[bound.front()];
  at::Tensor& base = bases_[slot.storage];
  if (!base.defined()) {
    if (!has_snapshot(slot.storage))
      fail("the record holds no bytes of storage " + std::to_string(slot.storage) + " " +
           graph_.storages[slot.storage].label + " that the step reads");
    const c10::Device device = device_of(slot.storage);
    const bool copy = written_[slot.storage] && device.is_cpu();
    base = from_bytes(record_.snapshots[slot.storage], slot.dtype, copy);
    if (options_.perturb_seed != 0 && !slot.wrapped && c10::isFloatingType(slot.dtype)) {
      if (!options_.f64 && !copy) base = base.clone();
      perturb(base, static_cast<uint64_t>(options_.perturb_seed) * 1000003 + slot.storage);
    }
    if (!device.is_cpu()) base = base.to(device);
  }
  return base;
}

// A flat tensor of the bytes, raised in fp64. Without `copy` it may share the record's memory.
at::Tensor ReplayValues::from_bytes(const at::Tensor& bytes, c10::ScalarType dtype,
                                    bool copy) const {
  const int64_t n = bytes.numel() / static_cast<int64_t>(c10::elementSize(dtype));
  at::Tensor flat = at::empty({0}, bytes.options().dtype(dtype));
  flat.set_(bytes.storage(), 0, {n}, {1});
  if (options_.f64 && raised(dtype) != dtype) return flat.to(raised(dtype));
  return copy || options_.f64 ? flat.clone() : flat;
}

at::Tensor ReplayValues::bind(int id, at::Tensor tensor) {
  if (!bound_[id].defined()) bound_by_storage_[slots_[id].storage].push_back(id);
  bound_[id] = std::move(tensor);
  return bound_[id];
}

void ReplayValues::release(int32_t storage) {
  for (int slot : bound_by_storage_[storage]) bound_[slot] = at::Tensor();
  bound_by_storage_[storage].clear();
  bases_[storage] = at::Tensor();
}

void ReplayValues::overwrite(int32_t storage, const at::Tensor& bytes) {
  if (static_cast<size_t>(storage) >= bases_.size()) return;
  const std::vector<int>& bound = bound_by_storage_[storage];
  const auto moved = [&](int slot) { return !same_layout(bound_[slot], slots_[slot]); };
  if (options_.channels_last && std::any_of(bound.begin(), bound.end(), moved))
    fail("storage " + std::to_string(storage) + " " + graph_.storages[storage].label +
         " is written from outside while the step runs");
  const at::Tensor fresh = from_bytes(bytes, dtype_of_storage(storage), true);
  if (bound.empty()) {
    bases_[storage] = fresh.to(device_of(storage));
  } else {
    at::as_strided(bound_[bound.front()], {fresh.numel()}, {1}, 0).copy_(fresh);
  }
}

c10::ScalarType ReplayValues::dtype_of_storage(int32_t storage) const {
  for (const Slot& slot : slots_)
    if (slot.storage == storage) return slot.dtype;
  return c10::kByte;
}

std::vector<bool> written_storages(const Graph& graph) {
  std::vector<bool> written(graph.storages.size());
  for (const Node& node : graph.nodes)
    for (ValueId value : node.writes)
      if (value != kNone && graph.values[value].storage != kNone)
        written[graph.values[value].storage] = true;
  return written;
}

}  // namespace opfuse::torch_bridge
