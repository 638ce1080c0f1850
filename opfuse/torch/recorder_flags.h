#pragma once
// What holds on the calling thread when an operator starts: modes, hooks, autocast, backward pass.

#include <ATen/core/ivalue.h>

#include <cstdint>

namespace opfuse::torch_bridge {

// A dispatch mode or a functorch level will see the call before its kernel does.
bool dispatch_is_intercepted();

// trace::EventFlag bits of the thread; autocast for the device of the first tensor.
uint16_t thread_flags(c10::ArrayRef<c10::IValue> inputs);

}  // namespace opfuse::torch_bridge
