#include "opfuse/torch/recorder_rows.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

namespace opfuse::torch_bridge {
namespace {

using trace::ArgumentKind;

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

uint64_t hash_row(const LogTensor& row, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  uint64_t hash = mix(static_cast<uint32_t>(row.tensor), static_cast<uint32_t>(row.storage));
  hash = mix(hash, static_cast<uint64_t>(row.offset));
  hash = mix(hash, (static_cast<uint64_t>(row.flags) << 16) ^ static_cast<uint8_t>(row.dtype) ^
                       (uint64_t{row.shape_known} << 8));
  hash = mix(hash, static_cast<uint64_t>(row.torch_version));
  hash = mix(hash, std::bit_cast<uint64_t>(row.number));
  for (int64_t size : sizes) hash = mix(hash, static_cast<uint64_t>(size));
  for (int64_t stride : strides) hash = mix(hash, static_cast<uint64_t>(stride));
  return hash;
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

bool RowBuilder::same_row(const LogTensor& known, const LogTensor& row,
                          const Dimensions& dimensions) const {
  const size_t rank = dimensions.sizes.size();
  if (known.tensor != row.tensor || known.storage != row.storage || known.offset != row.offset ||
      known.dtype != row.dtype || known.device != row.device || known.flags != row.flags ||
      known.shape_known != row.shape_known || known.torch_version != row.torch_version ||
      std::bit_cast<uint64_t>(known.number) != std::bit_cast<uint64_t>(row.number) ||
      known.dimensions.count != 2 * rank)
    return false;
  for (size_t d = 0; d < rank; ++d)
    if (log_->numbers[known.dimensions.first + d] != dimensions.sizes[d] ||
        log_->numbers[known.dimensions.first + rank + d] != dimensions.strides[d])
      return false;
  return true;
}

int32_t RowBuilder::intern(const LogTensor& row, const Dimensions& dimensions, int32_t hint) {
  MappedArray<LogTensor>& rows = log_->tensors;
  if (hint >= 0 && same_row(rows[hint], row, dimensions)) return hint;
  const uint64_t hash = hash_row(row, dimensions.sizes, dimensions.strides);
  auto [it, is_new] = tensor_rows_.try_emplace(hash, trace::kNone);
  for (int32_t known = it->second; known != trace::kNone; known = rows[known].next)
    if (same_row(rows[known], row, dimensions)) return known;
  LogTensor added = row;
  added.next = it->second;
  added.dimensions = numbers(dimensions.sizes);
  added.dimensions.count += numbers(dimensions.strides).count;
  it->second = static_cast<int32_t>(rows.size());
  rows.push_back(added);
  return it->second;
}

template <class Numbers>
LogRange RowBuilder::numbers(const Numbers& values) {
  LogRange range{log_->numbers.size(), 0};
  for (auto value : values) {
    if constexpr (std::is_same_v<decltype(value), double>)
      log_->numbers.push_back(std::bit_cast<int64_t>(value));
    else
      log_->numbers.push_back(value);
    ++range.count;
  }
  return range;
}

int32_t RowBuilder::tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) return trace::kNone;
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  TensorIdentity& identity = identities_->tensor(tensor);
  int32_t hint = identity.record == record_number_ ? identity.row : -1;
  LogTensor row;
  Dimensions dimensions;
  row.tensor = static_cast<int32_t>(identity.id);
  row.dtype = dtype_of(impl);
  row.flags = tensor_flags(tensor);
  if (const char* reason = why_opaque(tensor)) {
    saw_opaque_ = true;
    decline(reason);
  } else {
    if (row.flags & trace::kConjOrNeg) decline("a conjugate or negative view");
    if (row.dtype == DType::kUnknown) decline("a tensor of a quantized or otherwise rare dtype");
    row.device = device_of(impl.device());
    row.storage = storage(tensor.storage());
    row.offset = impl.storage_offset();
    row.shape_known = true;
    dimensions = {impl.sizes(), impl.strides()};
    const auto& version = impl.version_counter();
    if (version.enabled()) row.torch_version = version.current_version();
    if (row.flags & trace::kWrappedNumber) row.number = wrapped_value(tensor);
  }
  int32_t id = intern(row, dimensions, hint);
  identity.record = record_number_;
  identity.row = id;
  return id;
}

LogRange RowBuilder::arguments(c10::ArrayRef<c10::IValue> values) {
  LogRange range{log_->arguments.size(), static_cast<uint32_t>(values.size())};
  for (const c10::IValue& value : values) log_->arguments.push_back(argument(value));
  return range;
}

LogArgument RowBuilder::argument(const c10::IValue& value) {
  LogArgument row;
  auto& strings = record_->table.strings;
  const auto set = [&](ArgumentKind kind, LogRange range) {
    row.kind = kind;
    row.values = range;
  };
  const auto one = [&](auto number) { return numbers(std::array{number}); };
  if (value.isTensor()) {
    set(ArgumentKind::kTensor, one(int64_t{tensor(value.toTensor())}));
  } else if (value.isNone()) {
    row.kind = ArgumentKind::kNone;
  } else if (value.isTensorList()) {
    c10::SmallVector<int64_t, 16> rows;
    for (const at::Tensor& element : value.toTensorVector()) rows.push_back(tensor(element));
    set(ArgumentKind::kTensorList, numbers(rows));
  } else if (value.isOptionalTensorList()) {
    c10::SmallVector<int64_t, 16> rows;
    for (const auto& element : value.toOptionalTensorVector())
      rows.push_back(element ? tensor(*element) : trace::kNone);
    set(ArgumentKind::kOptionalTensorList, numbers(rows));
  } else if (value.isBool()) {
    set(ArgumentKind::kBool, one(int64_t{value.toBool()}));
  } else if (value.isInt()) {
    set(ArgumentKind::kInt, one(value.toInt()));
  } else if (value.isDouble()) {
    set(ArgumentKind::kDouble, one(value.toDouble()));
  } else if (value.isComplexDouble()) {
    const c10::complex<double> number = value.toComplexDouble();
    set(ArgumentKind::kComplex, numbers(std::array{number.real(), number.imag()}));
  } else if (value.isIntList()) {
    set(ArgumentKind::kIntList, numbers(value.toIntVector()));
  } else if (value.isDoubleList()) {
    set(ArgumentKind::kDoubleList, numbers(value.toDoubleVector()));
  } else if (value.isBoolList()) {
    c10::SmallVector<int64_t, 16> elements;
    for (bool element : value.toBoolList()) elements.push_back(element);
    set(ArgumentKind::kBoolList, numbers(elements));
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
    saw_opaque_ = true;
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
