#pragma once
// Memory of tensors as the host reads it. What lies on a device is copied; that waits for the
// device.

#include <ATen/core/Tensor.h>

namespace opfuse::torch_bridge {

// The bytes of a storage. `copy` keeps them alive where they were copied.
struct HostBytes {
  const void* data = nullptr;
  size_t size = 0;
  at::Tensor copy;

  bool readable() const { return data != nullptr || size == 0; }
};
// Not readable: a storage without memory (meta tensors, a storage that was freed under its tensor).
HostBytes host_bytes(const c10::StorageImpl& storage);

// The tensor itself on the CPU; else a copy there, with the same strides where it is dense and
// contiguous where not.
at::Tensor on_host(const at::Tensor& tensor);

}  // namespace opfuse::torch_bridge
