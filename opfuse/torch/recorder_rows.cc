#include "opfuse/torch/recorder_rows.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace opfuse::torch_bridge {
namespace {

using trace::ArgumentKind;
using trace::ArgumentRow;
using trace::TensorRow;

bool is_wrapper(const c10::TensorImpl& impl) {
  c10::DispatchKeySet keys = impl.key_set();
  return keys.has(c10::DispatchKey::Python) || keys.has(c10::DispatchKey::FuncTorchBatched) ||
         keys.has(c10::DispatchKey::FuncTorchGradWrapper) ||
         keys.has(c10::DispatchKey::Functionalize);
}

// Asked of wrappers only after is_wrapper(): their layout() may call Python.
const char* why_opaque(const at::Tensor& tensor) {
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (is_wrapper(impl)) return "a tensor subclass or functorch wrapper";
  if (impl.has_symbolic_sizes_strides()) return "a tensor with symbolic sizes";
  if (impl.is_nested()) return "a nested tensor";
  if (impl.layout() != c10::kStrided) return "a sparse or otherwise not strided tensor";
  if (!impl.has_storage()) return "a tensor without storage";
  return nullptr;
}

bool has_hooks(const torch::autograd::AutogradMeta& meta) {
  if (!meta.hooks_.empty() || meta.retains_grad_ || meta.post_acc_grad_hooks_ != nullptr)
    return true;
  if (meta.cpp_hooks_list_ != nullptr) return true;
  const auto& node = meta.grad_fn_;
  return node && (!node->pre_hooks().empty() || !node->post_hooks().empty() ||
                  !node->tensor_pre_hooks().empty() || !node->retains_grad_hooks().empty());
}

uint16_t tensor_flags(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  uint16_t flags = 0;
  if (tensor.requires_grad()) flags |= trace::kRequiresGrad;
  auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  if (meta == nullptr || !meta->grad_fn_) flags |= trace::kLeaf;
  if (meta != nullptr && has_hooks(*meta)) flags |= trace::kHasHooks;
  if (impl.is_wrapped_number()) flags |= trace::kWrappedNumber;
  if (tensor.is_inference()) flags |= trace::kInference;
  c10::DispatchKeySet keys = impl.key_set();
  if (keys.has(c10::DispatchKey::Conjugate) || keys.has(c10::DispatchKey::Negative))
    flags |= trace::kConjOrNeg;
  if (keys.has(c10::DispatchKey::Python)) flags |= trace::kSubclass;
  return flags;
}

// Not a number for complex scalars.
double wrapped_value(const at::Tensor& tensor) {
  const void* data = tensor.storage().data();
  if (!tensor.device().is_cpu() || tensor.dim() != 0 || data == nullptr)
    return std::numeric_limits<double>::quiet_NaN();
  switch (tensor.scalar_type()) {
    case c10::kDouble:
      return static_cast<const double*>(data)[tensor.storage_offset()];
    case c10::kLong:
      return static_cast<double>(static_cast<const int64_t*>(data)[tensor.storage_offset()]);
    case c10::kBool:
      return static_cast<const bool*>(data)[tensor.storage_offset()];
    default:
      return std::numeric_limits<double>::quiet_NaN();
  }
}

DType dtype_of(const c10::TensorImpl& impl) {
  auto dtype = static_cast<DType>(c10::typeMetaToScalarType(impl.dtype()));
  return dtype_size(dtype) > 0 ? dtype : DType::kUnknown;
}

int8_t device_of(c10::Device device) { return device.is_cpu() ? 0 : device.is_cuda() ? 1 : 2; }

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

uint64_t hash_row(const TensorRow& row) {
  uint64_t number;
  std::memcpy(&number, &row.number, sizeof number);
  uint64_t hash = mix(static_cast<uint32_t>(row.tensor), static_cast<uint32_t>(row.storage));
  hash = mix(hash, static_cast<uint64_t>(row.offset));
  hash = mix(hash, (static_cast<uint64_t>(row.flags) << 16) ^ static_cast<uint8_t>(row.dtype) ^
                       (uint64_t{row.shape_known} << 8));
  hash = mix(hash, static_cast<uint64_t>(row.torch_version));
  hash = mix(hash, number);
  for (int64_t size : row.shape) hash = mix(hash, static_cast<uint64_t>(size));
  for (int64_t stride : row.strides) hash = mix(hash, static_cast<uint64_t>(stride));
  return hash;
}

bool same_row(const TensorRow& a, const TensorRow& b) {
  return a.tensor == b.tensor && a.storage == b.storage && a.offset == b.offset &&
         a.dtype == b.dtype && a.device == b.device && a.flags == b.flags &&
         a.shape_known == b.shape_known && a.torch_version == b.torch_version &&
         std::memcmp(&a.number, &b.number, sizeof a.number) == 0 && a.shape == b.shape &&
         a.strides == b.strides;
}

}  // namespace

void add_declined(Record* record, const std::string& reason) {
  auto& declined = record->declined;
  if (std::find(declined.begin(), declined.end(), reason) == declined.end())
    declined.push_back(reason);
}

void RowBuilder::decline(const char* reason) { add_declined(record_, reason); }

int32_t RowBuilder::storage(const c10::Storage& storage) {
  StorageIdentity& identity = identities_->storage(storage);
  if (identity.record == record_number_) return identity.row;
  identity.record = record_number_;
  identity.row = static_cast<int32_t>(record_->table.storages.size());
  trace::StorageRow row;
  row.session_id = identity.id;
  row.bytes = static_cast<int64_t>(storage.nbytes());
  record_->table.storages.push_back(row);
  record_->snapshots.emplace_back();
  return identity.row;
}

int32_t RowBuilder::intern(const TensorRow& row, int32_t hint) {
  std::vector<TensorRow>& rows = record_->table.tensors;
  if (hint >= 0 && same_row(rows[hint], row)) return hint;
  std::vector<int32_t>& candidates = tensor_rows_[hash_row(row)];
  for (int32_t candidate : candidates)
    if (same_row(rows[candidate], row)) return candidate;
  candidates.push_back(static_cast<int32_t>(rows.size()));
  rows.push_back(row);
  return candidates.back();
}

int32_t RowBuilder::tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) return trace::kNone;
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  TensorIdentity& identity = identities_->tensor(tensor);
  int32_t hint = identity.record == record_number_ ? identity.row : -1;
  TensorRow& row = scratch_;
  row.tensor = static_cast<int32_t>(identity.id);
  row.storage = trace::kNone;
  row.offset = 0;
  row.dtype = dtype_of(impl);
  row.device = -1;
  row.flags = tensor_flags(tensor);
  row.shape_known = false;
  row.shape.clear();
  row.strides.clear();
  row.torch_version = -1;
  row.number = 0;
  if (const char* reason = why_opaque(tensor)) {
    saw_opaque_ = true;
    decline(reason);
  } else {
    if (row.flags & trace::kConjOrNeg) decline("a conjugate or negative view");
    row.device = device_of(impl.device());
    row.storage = storage(tensor.storage());
    row.offset = impl.storage_offset();
    row.shape_known = true;
    row.shape.assign(impl.sizes().begin(), impl.sizes().end());
    row.strides.assign(impl.strides().begin(), impl.strides().end());
    const auto& version = impl.version_counter();
    if (version.enabled()) row.torch_version = version.current_version();
    if (row.flags & trace::kWrappedNumber) row.number = wrapped_value(tensor);
  }
  int32_t id = intern(row, hint);
  identity.record = record_number_;
  identity.row = id;
  return id;
}

ArgumentRow RowBuilder::argument(const c10::IValue& value) {
  ArgumentRow row;
  auto& strings = record_->table.strings;
  if (value.isTensor()) {
    row.kind = ArgumentKind::kTensor;
    row.tensors.push_back(tensor(value.toTensor()));
  } else if (value.isNone()) {
    row.kind = ArgumentKind::kNone;
  } else if (value.isTensorList()) {
    row.kind = ArgumentKind::kTensorList;
    for (const at::Tensor& element : value.toTensorVector()) row.tensors.push_back(tensor(element));
  } else if (value.isOptionalTensorList()) {
    row.kind = ArgumentKind::kOptionalTensorList;
    for (const auto& element : value.toOptionalTensorVector())
      row.tensors.push_back(element ? tensor(*element) : trace::kNone);
  } else if (value.isBool()) {
    row.kind = ArgumentKind::kBool;
    row.ints.push_back(value.toBool());
  } else if (value.isInt()) {
    row.kind = ArgumentKind::kInt;
    row.ints.push_back(value.toInt());
  } else if (value.isDouble()) {
    row.kind = ArgumentKind::kDouble;
    row.doubles.push_back(value.toDouble());
  } else if (value.isComplexDouble()) {
    row.kind = ArgumentKind::kComplex;
    row.doubles = {value.toComplexDouble().real(), value.toComplexDouble().imag()};
  } else if (value.isIntList()) {
    row.kind = ArgumentKind::kIntList;
    row.ints = value.toIntVector();
  } else if (value.isDoubleList()) {
    row.kind = ArgumentKind::kDoubleList;
    row.doubles = value.toDoubleVector();
  } else if (value.isBoolList()) {
    row.kind = ArgumentKind::kBoolList;
    for (bool element : value.toBoolList()) row.ints.push_back(element);
  } else if (value.isString()) {
    row.kind = ArgumentKind::kString;
    row.text = strings.intern(value.toStringRef());
  } else if (value.isDevice()) {
    row.kind = ArgumentKind::kDevice;
    row.text = strings.intern(value.toDevice().str());
  } else if (value.isGenerator()) {
    row.kind = ArgumentKind::kGenerator;
  } else {
    row.kind = ArgumentKind::kOpaque;
    row.text = strings.intern(value.tagKind());
  }
  return row;
}

int32_t RowBuilder::frame(const FrameSite& site) {
  uint64_t key = (static_cast<uint64_t>(static_cast<uint32_t>(site.code)) << 32) |
                 static_cast<uint32_t>(site.lasti);
  auto& frames = record_->table.frames;
  auto [it, is_new] = frame_rows_.try_emplace(key, static_cast<int32_t>(frames.size()));
  if (is_new) {
    trace::FrameRow row;
    row.code = site.code;
    frames.push_back(row);
    record_->frame_lasti.push_back(site.lasti);
  }
  return it->second;
}

int32_t RowBuilder::stack(const std::vector<FrameSite>& frames) {
  // The outer part of the stack rarely changes from one operator to the next.
  size_t common = 0;
  const size_t depth = frames.size();
  while (common < depth && common < last_frames_.size() &&
         frames[depth - 1 - common] == last_frames_[common])
    ++common;
  last_frames_.resize(common);
  last_stacks_.resize(common);
  auto& stacks = record_->table.stacks;
  for (size_t level = common; level < depth; ++level) {
    const FrameSite& site = frames[depth - 1 - level];
    trace::StackRow row{frame(site), level == 0 ? trace::kNone : last_stacks_[level - 1]};
    uint64_t key = (static_cast<uint64_t>(static_cast<uint32_t>(row.parent)) << 32) |
                   static_cast<uint32_t>(row.frame);
    auto [it, is_new] = stack_rows_.try_emplace(key, static_cast<int32_t>(stacks.size()));
    if (is_new) stacks.push_back(row);
    last_frames_.push_back(site);
    last_stacks_.push_back(it->second);
  }
  return last_stacks_.empty() ? trace::kNone : last_stacks_.back();
}

}  // namespace opfuse::torch_bridge
