#include "opfuse/torch/host_memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>

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

}  // namespace opfuse::torch_bridge
