// Convolution: torch sends a device that it does not know to convolution_overrideable.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/record_function.h>
#include <torch/library.h>

#include "queue.h"
#include "tensors.h"

namespace standin {
namespace {

struct Unseen {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::DisableRecordFunctionGuard unseen;
};

at::Tensor meta(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta));
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                       at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, int64_t groups) {
  std::optional<at::Tensor> host_bias;
  std::optional<at::Tensor> meta_bias;
  if (bias.has_value() && bias->defined()) {
    host_bias = host_view(*bias);
    meta_bias = meta(*bias);
  }
  at::Tensor result;
  {
    const Unseen guard;
    result = at::convolution(meta(input), meta(weight), meta_bias, stride, padding, dilation,
                             transposed, output_padding, groups);
  }
  at::Tensor output = empty_like_on_device(result);
  enqueue("convolution",
          [in = host_view(input), w = host_view(weight), host_bias, stride = stride.vec(),
           padding = padding.vec(), dilation = dilation.vec(), transposed,
           output_padding = output_padding.vec(), groups, out = host_view(output)] {
            at::Tensor(out).copy_(at::convolution(in, w, host_bias, stride, padding, dilation,
                                                  transposed, output_padding, groups));
          });
  return output;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> mask) {
  const int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  std::array<at::Tensor, 3> outputs;
  if (mask[0]) {
    outputs[0] = empty_like_on_device(input);
  }
  if (mask[1]) {
    outputs[1] = empty_like_on_device(weight);
  }
  if (mask[2]) {
    outputs[2] = at::empty_strided({channels}, {1}, grad.options());
  }
  std::array<at::Tensor, 3> targets;
  for (size_t i = 0; i < 3; ++i) {
    targets[i] = host_view(outputs[i]);
  }
  enqueue("convolution_backward", [g = host_view(grad), in = host_view(input),
                                   w = host_view(weight), channels, stride = stride.vec(),
                                   padding = padding.vec(), dilation = dilation.vec(), transposed,
                                   output_padding = output_padding.vec(), groups, mask, targets] {
    const auto [dx, dw, db] =
        at::convolution_backward(g, in, w, at::OptionalIntArrayRef({channels}), stride, padding,
                                 dilation, transposed, output_padding, groups, mask);
    const std::array<at::Tensor, 3> results = {dx, dw, db};
    for (size_t i = 0; i < 3; ++i) {
      if (mask[i]) {
        at::Tensor(targets[i]).copy_(results[i]);
      }
    }
  });
  return {outputs[0], outputs[1], outputs[2]};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
}

}  // namespace
}  // namespace standin
