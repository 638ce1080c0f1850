#pragma once
// Memory of tensors as the host reads it. What lies on a device is copied; that waits for the
// device.

#include <ATen/core/Tensor.h>

#include <string>

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

// The device of trace::TensorRow::device: 1 is cuda, 2 the device that calls itself something else.
c10::Device device_of_code(int8_t code);
// Its name as rules and scripts write it: "cpu", "cuda", "npu".
std::string device_name(int8_t code);
// A tensor of the CPU on `device`, with the same sizes, strides and offset.
at::Tensor on_device(const at::Tensor& tensor, c10::Device device);

}  // namespace opfuse::torch_bridge
