// Tensors of the stand-in device: their memory is the host's, so a CPU kernel can work on it.
#pragma once

#include <ATen/core/Tensor.h>

namespace standin {

/// True for tensors of the stand-in device.
bool on_device(const at::Tensor& tensor);

/// A CPU tensor with the same memory, sizes and strides, that keeps the memory alive. A CPU tensor
/// (a number among the operands) is copied, since its owner may change it before the kernel runs.
at::Tensor host_view(const at::Tensor& tensor);

/// A tensor on the device with the metadata of `like`, which may be on any device.
at::Tensor empty_like_on_device(const at::Tensor& like);

}  // namespace standin
