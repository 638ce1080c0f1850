// What a backend must write itself: factories, views, copies.
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "queue.h"
#include "tensors.h"

namespace standin {

bool on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == c10::DeviceType::PrivateUse1;
}

at::Tensor host_view(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return tensor;
  }
  if (!on_device(tensor)) {
    at::Tensor copy = tensor.clone();
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      copy.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    return copy;
  }
  c10::Storage held = tensor.storage();
  void* const data = held.mutable_data();
  const size_t bytes = held.nbytes();
  auto* const owner = new c10::Storage(std::move(held));
  c10::DataPtr memory(
      data, owner, [](void* kept) { delete static_cast<c10::Storage*>(kept); },
      c10::Device(c10::DeviceType::CPU));
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(memory), nullptr, false);
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  view.unsafeGetTensorImpl()->set_storage_offset(tensor.storage_offset());
  return view;
}

at::Tensor empty_like_on_device(const at::Tensor& like) {
  return at::empty_strided(like.sizes(), like.strides(),
                           like.options().device(c10::DeviceType::PrivateUse1, 0));
}

namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::Allocator* allocator() { return c10::GetAllocator(c10::DeviceType::PrivateUse1); }

c10::ScalarType supported(std::optional<c10::ScalarType> dtype) {
  const c10::ScalarType type = dtype.value_or(c10::get_default_dtype_as_scalartype());
  TORCH_CHECK_TYPE(type != c10::kDouble && type != c10::kComplexDouble,
                   "npu: float64 is not supported by this device");
  return type;
}

at::Tensor empty(at::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                 std::optional<c10::Layout>, std::optional<c10::Device>, std::optional<bool>,
                 std::optional<c10::MemoryFormat> format) {
  return at::detail::empty_generic(size, allocator(), kKeys, supported(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                         std::optional<c10::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, allocator(), kKeys, supported(dtype));
}

/// From or to the device. From the host it takes what is there now; to the host it waits.
at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool) {
  const at::Tensor from = host_view(source);
  if (on_device(target)) {
    enqueue("copy_", [from, to = host_view(target)] { at::Tensor(to).copy_(from); });
  } else {
    synchronize();
    at::Tensor(target).copy_(from);
  }
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, false);
}

at::Scalar local_scalar_dense(const at::Tensor& tensor) {
  synchronize();
  return host_view(tensor).item();
}

at::Tensor& set_storage(at::Tensor& tensor, at::Storage source) {
  const int64_t count = static_cast<int64_t>(source.nbytes() / tensor.dtype().itemsize());
  return at::native::set_storage_cpu_(tensor, std::move(source), 0, {count}, {});
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("resize_", at::native::resize_);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar_dense);
}

}  // namespace
}  // namespace standin
