#include "opfuse/torch/recorder_values.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "opfuse/graph/build.h"
#include "opfuse/torch/recorder_hash.h"

namespace opfuse::torch_bridge {
namespace {

constexpr std::array<std::string_view, 14> kOverwriting = {
    "copy_",       "fill_",          "zero_",          "uniform_",     "normal_",
    "bernoulli_",  "random_",        "cauchy_",        "exponential_", "geometric_",
    "log_normal_", "_foreach_copy_", "_foreach_zero_", "set_"};

bool overwrites_self(std::string_view name) {
  return std::find(kOverwriting.begin(), kOverwriting.end(), name) != kOverwriting.end();
}

// True when a CPU kernel, autograd formula or explicit composite exists beside the implicit one.
bool is_composite(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  return op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(DispatchKey::CPU) &&
         !op.hasKernelForDispatchKey(DispatchKey::AutogradCPU) &&
         !op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd);
}

template <class Visit>
void visit_tensors(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector())
      if (tensor.defined()) visit(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const auto& tensor : value.toOptionalTensorVector())
      if (tensor && tensor->defined()) visit(*tensor);
  }
}

}  // namespace

OperatorInfo describe_operator(const c10::OperatorHandle& handle) {
  OperatorInfo info;
  info.handle = handle;
  const c10::OperatorName& name = handle.operator_name();
  info.name = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
  info.is_aten = name.name.compare(0, 6, "aten::") == 0;
  if (!handle.hasSchema()) return info;
  const c10::FunctionSchema& schema = handle.schema();
  if (is_composite(handle)) info.flags |= trace::kComposite;
  if (handle.hasTag(at::Tag::nondeterministic_seeded)) info.flags |= trace::kRandom;
  info.has_autocast_kernel = handle.hasKernelForDispatchKey(c10::DispatchKey::AutocastCPU) ||
                             handle.hasKernelForDispatchKey(c10::DispatchKey::AutocastCUDA);
  std::string_view base = name.name;
  base.remove_prefix(base.find("::") + 2);
  info.is_clone = base == "clone";
  info.leaves_uninitialised =
      base.starts_with("empty") || base.starts_with("new_empty") || base.starts_with("resize");
  info.adopts_storage = name.overload_name.starts_with("source_Storage");
  info.arguments = schema.arguments().size();
  info.returns = schema.returns().size();
  for (const c10::Argument& argument : schema.arguments()) {
    bool writes = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    info.writes.push_back(writes);
    info.overwrites.push_back(writes && (argument.is_out() || overwrites_self(base)));
  }
  const graph::Schema* known = graph::SchemaTable::builtin().find(graph::dotted_name(info.name));
  if (known == nullptr || !known->writes_undeclared) return info;
  info.write_condition = graph::write_condition(*known);
  for (size_t k = 0; k < info.writes.size() && k < known->arguments.size(); ++k)
    if (known->arguments[k].is_write) info.writes[k] = true;
  return info;
}

void ValueCapture::stop_values(const std::string& reason) {
  values_ = false;
  record_->with_values = false;
  add_declined(record_, reason);
  for (at::Tensor& snapshot : record_->snapshots) snapshot = at::Tensor();
  log_->pokes.clear();
}

at::Tensor ValueCapture::copy_storage(const HostBytes& from) {
  const int64_t bytes = static_cast<int64_t>(from.size);
  if (max_bytes_ >= 0 && record_->snapshot_bytes + bytes > max_bytes_) {
    stop_values("snapshots need more than the " + std::to_string(max_bytes_) + " bytes allowed");
    return {};
  }
  record_->snapshot_bytes += bytes;
  at::Tensor copy = snapshots_.allocate(bytes);
  if (bytes > 0) std::memcpy(copy.mutable_data_ptr(), from.data, from.size);
  return copy;
}

HostBytes ValueCapture::readable_bytes(const c10::StorageImpl& impl) {
  HostBytes bytes = host_bytes(impl);
  if (!bytes.readable()) stop_values("a tensor without memory on " + impl.device().str());
  return bytes;
}

void ValueCapture::note_device(int32_t storage, const c10::StorageImpl& impl) {
  if (!impl.device().is_cpu()) record_->devices.insert_or_assign(storage, impl.device());
}

void ValueCapture::take_snapshot(int32_t storage, const c10::StorageImpl& impl) {
  StorageState& state = states_[storage];
  state.known = true;
  record_->table.storages[storage].external = true;
  if (!values_) return;
  const HostBytes bytes = readable_bytes(impl);
  if (!values_) return;
  at::Tensor copy = copy_storage(bytes);
  if (!copy.defined()) return;
  note_device(storage, impl);
  state.hash = hash_bytes(copy.const_data_ptr(), bytes.size);
  state.hash_known = true;
  state.epoch = epoch_;
  record_->snapshots[storage] = std::move(copy);
}

void ValueCapture::note_outside_write(int32_t event, int32_t storage,
                                      const c10::StorageImpl& impl) {
  if (values_) {
    const HostBytes bytes = readable_bytes(impl);
    at::Tensor copy = values_ ? copy_storage(bytes) : at::Tensor();
    if (copy.defined()) note_device(storage, impl);
    if (copy.defined()) log_->pokes.push_back({event, storage, std::move(copy)});
  }
  record_->table.outside_writes.push_back({event, storage});
}

void ValueCapture::note_new_storages(int32_t event, bool inside_leaf) {
  const std::vector<trace::StorageRow>& storages = record_->table.storages;
  while (states_.size() < storages.size()) {
    StorageState state;
    state.first_event = event;
    state.inside_leaf = inside_leaf;
    state.bytes = static_cast<size_t>(storages[states_.size()].bytes);
    states_.push_back(state);
  }
}

bool ValueCapture::is_given_to_leaf(const c10::IValue& value) {
  bool found = false;
  visit_tensors(value, [&](const at::Tensor& tensor) {
    int32_t storage = rows_->storage_of(rows_->tensor(tensor));
    found |= std::find(seen_.begin(), seen_.end(), storage) != seen_.end();
  });
  return found;
}

void ValueCapture::note_clone(int32_t event, c10::ArrayRef<c10::IValue> outputs) {
  for (const c10::IValue& output : outputs)
    visit_tensors(output, [&](const at::Tensor& tensor) {
      int32_t storage = rows_->storage_of(rows_->tensor(tensor));
      if (storage != trace::kNone && states_[storage].first_event >= event)
        states_[storage].clone_result = true;
    });
}

void ValueCapture::see_input(int32_t event, const at::Tensor& tensor, bool overwritten) {
  int32_t row = rows_->tensor(tensor);
  int32_t storage = rows_->storage_of(row);
  if (storage == trace::kNone) return;
  if (std::find(seen_.begin(), seen_.end(), storage) != seen_.end()) return;
  seen_.push_back(storage);
  const c10::StorageImpl& impl = *tensor.storage().unsafeGetStorageImpl();
  StorageState& state = states_[storage];
  const size_t bytes = impl.nbytes();
  const bool first_sight = !state.known;
  const bool hidden_product = first_sight && state.inside_leaf && state.clone_result;
  if (first_sight) {
    state.bytes = bytes;
    if (!state.inside_leaf) return take_snapshot(storage, impl);
  }
  state.known = true;
  // Made inside a leaf in a way that its operators do not show: to the others it came from outside.
  if (first_sight && !hidden_product) note_outside_write(event, storage, impl);
  if (!values_) return;
  if (state.bytes != bytes) {
    add_declined(record_, "a storage that was resized outside an operator");
    state.bytes = bytes;
  } else if (state.epoch == epoch_ || bytes == 0 || (!state.hash_known && overwritten)) {
    return;
  }
  const HostBytes now = readable_bytes(impl);
  if (!values_) return;
  const uint64_t hash = hash_bytes(now.data, now.size);
  const bool changed = !first_sight && (!state.hash_known || hash != state.hash);
  state.hash = hash;
  state.hash_known = true;
  state.epoch = epoch_;
  if (changed) note_outside_write(event, storage, impl);
}

void ValueCapture::before_leaf(int32_t event, const OperatorInfo& op,
                               c10::ArrayRef<c10::IValue> inputs, std::vector<HeldTensor>* held) {
  seen_.clear();
  const bool hold_all = values_ && !op.is_aten;
  const bool may_write =
      op.write_condition < 0 || static_cast<size_t>(op.write_condition) >= inputs.size() ||
      !inputs[op.write_condition].isBool() || inputs[op.write_condition].toBool();
  for (size_t k = 0; k < inputs.size(); ++k) {
    const bool writes = may_write && k < op.writes.size() && op.writes[k];
    const bool overwritten = k < op.overwrites.size() && op.overwrites[k];
    visit_tensors(inputs[k], [&](const at::Tensor& tensor) {
      see_input(event, tensor, overwritten);
      if (values_ && (writes || hold_all)) held->push_back({tensor, writes});
    });
  }
  if (values_ && (op.flags & trace::kRandom)) {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    for (const c10::IValue& input : inputs)
      if (input.isGenerator() && input.toGenerator().defined()) generator = input.toGenerator();
    std::lock_guard lock(generator.mutex());
    log_->generators.emplace_back(event, generator.clone());
  }
}

void ValueCapture::see_result(int32_t event, const OperatorInfo& op, const at::Tensor& tensor,
                              bool written) {
  int32_t row = rows_->tensor(tensor);
  int32_t storage = rows_->storage_of(row);
  if (storage == trace::kNone) return;
  note_new_storages(event, false);
  StorageState& state = states_[storage];
  const bool fresh = !state.known || state.first_event >= event;
  if (!fresh && !written) return;
  const c10::StorageImpl& impl = *tensor.storage().unsafeGetStorageImpl();
  if (op.adopts_storage) return state.known ? void() : take_snapshot(storage, impl);
  state.known = true;
  if (!values_) return;
  state.bytes = impl.nbytes();
  if (op.leaves_uninitialised) {
    state.hash_known = false;
    return;
  }
  const bool whole = tensor.storage_offset() == 0 && tensor.is_non_overlapping_and_dense() &&
                     tensor.numel() * tensor.element_size() == static_cast<int64_t>(impl.nbytes());
  if (std::find(seen_.begin(), seen_.end(), storage) == seen_.end()) {
    const HostBytes made = readable_bytes(impl);
    if (!values_) return;
    seen_.push_back(storage);
    state.hash = hash_bytes(made.data, made.size);
    state.hash_known = true;
    state.epoch = epoch_;
  }
  MappedArray<LogHash>& hashes = log_->hashes;
  for (size_t i = hashes.size(); i > 0 && hashes[i - 1].event == event; --i)
    if (hashes[i - 1].row == row) return;
  hashes.push_back({event, row, whole ? state.hash : torch_bridge::hash_tensor(tensor)});
  if (op.flags & trace::kRandom) note_device(storage, impl);
  if (op.flags & trace::kRandom) log_->random_results.push_back({event, row, copy_tensor(tensor)});
}

void ValueCapture::find_undeclared_write(int32_t event, const at::Tensor& tensor) {
  int32_t row = rows_->tensor(tensor);
  int32_t storage = rows_->storage_of(row);
  if (storage == trace::kNone || std::find(seen_.begin(), seen_.end(), storage) != seen_.end())
    return;
  seen_.push_back(storage);
  StorageState& state = states_[storage];
  const c10::StorageImpl& impl = *tensor.storage().unsafeGetStorageImpl();
  if (!state.hash_known || impl.nbytes() == 0) return;
  const HostBytes bytes = readable_bytes(impl);
  if (!values_) return;
  const uint64_t hash = hash_bytes(bytes.data, bytes.size);
  if (hash == state.hash) return;
  state.hash = hash;
  state.epoch = epoch_;
  record_->table.undeclared_writes.push_back({event, storage});
  log_->hashes.push_back({event, row, torch_bridge::hash_tensor(tensor)});
}

void ValueCapture::after_leaf(int32_t event, const OperatorInfo& op,
                              c10::ArrayRef<c10::IValue> outputs,
                              const std::vector<HeldTensor>& held) {
  seen_.clear();
  for (const c10::IValue& output : outputs)
    visit_tensors(output, [&](const at::Tensor& tensor) { see_result(event, op, tensor, false); });
  for (const HeldTensor& argument : held)
    if (argument.declared_write) see_result(event, op, argument.tensor, true);
  if (!values_) return;
  for (const HeldTensor& argument : held)
    if (!argument.declared_write) find_undeclared_write(event, argument.tensor);
}

}  // namespace opfuse::torch_bridge
