#include "opfuse/torch/recorder_flags.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <vector>

#include "opfuse/trace/event_table.h"
#include "opfuse/trace/side_stream.h"

// Declared here because their headers take half a minute to compile.
namespace at::autocast {
TORCH_API bool is_autocast_enabled(at::DeviceType device_type);
}
namespace at::functorch {
struct DynamicLayer;
TORCH_API const std::vector<DynamicLayer>& getDynamicLayerStack();
}  // namespace at::functorch
namespace torch::autograd {
TORCH_API int get_current_graph_task_id();
}

namespace opfuse::torch_bridge {
namespace {

bool functorch_is_active() { return !at::functorch::getDynamicLayerStack().empty(); }

// Asking for another device type throws.
bool autocast_is_on(c10::DeviceType device) {
  switch (device) {
    case c10::DeviceType::CPU:
    case c10::DeviceType::CUDA:
    case c10::DeviceType::XPU:
    case c10::DeviceType::MPS:
    case c10::DeviceType::PrivateUse1:
      return at::autocast::is_autocast_enabled(device);
    default:
      return false;
  }
}

c10::Device first_device(c10::ArrayRef<c10::IValue> inputs) {
  for (const c10::IValue& input : inputs)
    if (input.isTensor() && input.toTensor().defined() &&
        !input.toTensor().key_set().has(c10::DispatchKey::Python))
      return input.toTensor().device();
  return c10::Device(c10::DeviceType::CPU);
}

// The default stream of a device has the number 0 (c10/core/Stream.h). The current one is kept by
// the thread: asking waits for nothing.
bool in_side_stream(c10::Device device) {
  const c10::DeviceType type = device.type();
  if (type != c10::DeviceType::CUDA && type != c10::DeviceType::PrivateUse1) return false;
  return c10::impl::hasDeviceGuardImpl(type) &&
         c10::impl::getDeviceGuardImpl(type)->getStream(device).id() != 0;
}

}  // namespace

bool dispatch_is_intercepted() {
  return c10::impl::TorchDispatchModeTLS::any_modes_set() || functorch_is_active();
}

uint16_t thread_flags(c10::ArrayRef<c10::IValue> inputs) {
  uint16_t flags = 0;
  if (c10::GradMode::is_enabled()) flags |= trace::kGradMode;
  if (c10::InferenceMode::is_enabled()) flags |= trace::kInferenceMode;
  const c10::Device device = first_device(inputs);
  if (autocast_is_on(device.type())) flags |= trace::kAutocast;
  if (in_side_stream(device)) flags |= trace::kSideStream;
  if (torch::autograd::get_current_graph_task_id() != -1) flags |= trace::kGraphTask;
  if (dispatch_is_intercepted() || at::impl::PythonTorchFunctionTLS::stack_len() > 0)
    flags |= trace::kPythonMode;
  if (!at::SavedTensorDefaultHooks::get_tls_state().stack.empty())
    flags |= trace::kSavedTensorHooks;
  return flags;
}

}  // namespace opfuse::torch_bridge
