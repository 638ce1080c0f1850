// Calls every function of opfuse/torch.h once and prints its name.

#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>

#include <cstdio>

#include "opfuse/torch.h"

int main() {
  const at::Tensor x = at::randn({4, 8}), weight = at::ones({8});
  const at::Tensor picture = at::randn({2, 8, 5, 5});
  const auto called = [](const char* name, const at::Tensor& result) {
    if (result.numel() > 0) std::puts(name);
  };
  called("silu_mul", opfuse::silu_mul(x, x));
  called("gelu_mul", opfuse::gelu_mul(x, x));
  called("gelu_tanh_mul", opfuse::gelu_tanh_mul(x, x));
  called("quick_gelu", opfuse::quick_gelu(x));
  called("rms_norm", opfuse::rms_norm(x, weight));
  called("add_rms_norm", std::get<1>(opfuse::add_rms_norm(x, x, weight)));
  called("rope", opfuse::rope(x, x, x));
  called("sigmoid_gate", opfuse::sigmoid_gate(picture, at::randn({2, 8, 1, 1})));
  called("batch_norm_act", std::get<0>(opfuse::batch_norm_act(picture, weight, weight, std::nullopt,
                                                              std::nullopt, 1e-5, "silu")));
  called("depthwise_conv2d",
         opfuse::depthwise_conv2d(picture, at::randn({8, 1, 3, 3}), weight, {1, 1}, {1, 1, 1, 1}));
}
