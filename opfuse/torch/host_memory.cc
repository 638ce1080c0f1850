#include "opfuse/torch/host_memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceType.h>

#include "opfuse/torch/quiet.h"

namespace opfuse::torch_bridge {

HostBytes host_bytes(const c10::StorageImpl& storage) {
  HostBytes bytes;
  bytes.size = storage.nbytes();
  if (bytes.size == 0 || storage.data() == nullptr) return bytes;
  if (storage.device().is_cpu()) {
    bytes.data = storage.data();
    return bytes;
  }
  const Quiet quiet;
  const at::Tensor flat = at::empty({0}, c10::TensorOptions(c10::kByte).device(storage.device()));
  c10::StorageImpl* const shared = const_cast<c10::StorageImpl*>(&storage);
  flat.unsafeGetTensorImpl()->set_storage_keep_dtype(
      c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(shared)));
  flat.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(bytes.size)});
  bytes.copy = on_host(flat);
  bytes.data = bytes.copy.const_data_ptr();
  return bytes;
}

at::Tensor on_host(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().is_cpu()) return tensor;
  const Quiet quiet;
  at::Tensor copy(
      tensor.is_non_overlapping_and_dense()
          ? at::detail::empty_strided_cpu(tensor.sizes(), tensor.strides(), tensor.scalar_type())
          : at::detail::empty_cpu(tensor.sizes(), tensor.scalar_type()));
  copy.copy_(tensor);
  return copy;
}

c10::Device device_of_code(int8_t code) {
  if (code == 1) return {c10::kCUDA, 0};
  return code == 2 ? c10::Device(c10::kPrivateUse1, 0) : c10::Device(c10::kCPU);
}

std::string device_name(int8_t code) {
  return c10::DeviceTypeName(device_of_code(code).type(), /*lower_case=*/true);
}

at::Tensor on_device(const at::Tensor& tensor, c10::Device device) {
  if (!tensor.defined() || device.is_cpu()) return tensor;
  const Quiet quiet;
  const int64_t elements =
      static_cast<int64_t>(tensor.storage().nbytes() / tensor.dtype().itemsize());
  const at::Tensor flat = at::as_strided(tensor, {elements}, {1}, 0).to(device);
  return at::as_strided(flat, tensor.sizes(), tensor.strides(), tensor.storage_offset());
}

}  // namespace opfuse::torch_bridge
