// opfuse_bench_ops: kernels on one thread, on the level that OPFUSE_ISA names or the best, in bytes
// a second of the arrays that a perfect kernel would move once. `copy` is memcpy of as many bytes:
// what the machine gives.
//
//   opfuse_bench_ops --benchmark_filter=batch_norm

#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "opfuse/ops/batch_norm_act/batch_norm_act.h"
#include "opfuse/ops/batch_norm_act_depthwise/batch_norm_act_depthwise.h"
#include "opfuse/ops/silu_mul/silu_mul.h"

namespace opfuse::ops {
namespace {

Isa isa() {
  const Result<Isa>& chosen = chosen_isa();
  return chosen.ok() ? *chosen : best_isa();
}

Exec one_thread() {
  Exec exec;
  exec.stream_bytes = 2 * last_level_cache_bytes();
  return exec;
}

// Values between -1 and 1, the same in every run.
std::vector<float> values(int64_t n) {
  std::vector<float> made(static_cast<size_t>(n));
  uint32_t state = 1;
  for (float& v : made) {
    state = state * 1664525u + 1013904223u;
    v = static_cast<float>(state >> 8) / 8388608.0f - 1.0f;
  }
  return made;
}

void count_bytes(benchmark::State& state, int64_t arrays, int64_t elements) {
  state.SetBytesProcessed(state.iterations() * arrays * elements * 4);
}

void copy(benchmark::State& state) {
  const int64_t n = state.range(0);
  const std::vector<float> x = values(n);
  std::vector<float> y(x.size());
  for (auto _ : state) {
    std::memcpy(y.data(), x.data(), x.size() * sizeof(float));
    benchmark::ClobberMemory();
  }
  count_bytes(state, 2, n);
}

void silu_mul_forward(benchmark::State& state) {
  const int64_t n = state.range(0);
  const std::vector<float> gate = values(n), up = values(n);
  std::vector<float> y(gate.size());
  const GatedArgs args{DType::kF32, 1, n, gate.data(), up.data(), n, n, y.data()};
  for (auto _ : state) {
    silu_mul_kernels(isa()).forward(one_thread(), args);
    benchmark::ClobberMemory();
  }
  count_bytes(state, 3, n);
}

// Channels_last, SiLU, batch statistics, as in EfficientNet.
void batch_norm_silu(benchmark::State& state) {
  const BatchNormShape shape{DType::kF32, 4, state.range(0), state.range(1), true};
  const int64_t n = shape.samples * shape.channels * shape.space;
  const std::vector<float> x = values(n), grad = values(n);
  const std::vector<float> weight = values(shape.channels), bias = values(shape.channels);
  std::vector<float> y(x.size()), grad_x(x.size()), mean(weight.size()), var(weight.size());
  std::vector<float> grad_weight(weight.size()), grad_bias(weight.size());
  std::vector<double> memory(static_cast<size_t>(batch_norm_workspace_bytes(shape) / 8 + 1));
  BatchNormActArgs forward{};
  forward.shape = shape;
  forward.act = Activation::kSilu;
  forward.eps = 1e-3;
  forward.training = true;
  forward.x = x.data();
  forward.weight = weight.data();
  forward.bias = bias.data();
  forward.mean = mean.data();
  forward.var = var.data();
  forward.y = y.data();
  forward.workspace = memory.data();
  BatchNormActBackwardArgs backward{};
  backward.shape = shape;
  backward.act = Activation::kSilu;
  backward.eps = 1e-3;
  backward.training = true;
  backward.grad = grad.data();
  backward.x = x.data();
  backward.weight = weight.data();
  backward.bias = bias.data();
  backward.mean = mean.data();
  backward.var = var.data();
  backward.grad_x = grad_x.data();
  backward.grad_weight = grad_weight.data();
  backward.grad_bias = grad_bias.data();
  backward.workspace = memory.data();
  for (auto _ : state) {
    batch_norm_act_kernels(isa()).forward(one_thread(), forward);
    batch_norm_act_kernels(isa()).backward(one_thread(), backward);
    benchmark::ClobberMemory();
  }
  count_bytes(state, 2 + 3, n);
}

// Channels, height, kernel, stride.
void batch_norm_silu_depthwise(benchmark::State& state) {
  const int64_t size = state.range(1), kernel = state.range(2), stride = state.range(3);
  const int64_t out = (size - 1) / stride + 1;
  const DepthwiseShape shape{
      DType::kF32,     4, state.range(0), size, size, out, out, kernel, stride, (kernel - 1) / 2,
      (kernel - 1) / 2};
  const int64_t n = shape.samples * shape.channels * size * size;
  const int64_t results = shape.samples * shape.channels * out * out;
  const std::vector<float> x = values(n), filters = values(kernel * kernel * shape.channels);
  std::vector<float> y(static_cast<size_t>(results)), statistics(4 * shape.channels);
  std::vector<double> memory(static_cast<size_t>(norm_depthwise_workspace_bytes(shape) / 8 + 1));
  BatchNormActDepthwiseArgs args{};
  args.shape = shape;
  args.act = Activation::kSilu;
  args.eps = 1e-3;
  args.training = true;
  args.x = x.data();
  args.filters = filters.data();
  args.mean = statistics.data();
  args.var = statistics.data() + shape.channels;
  args.y = y.data();
  args.y_mean = statistics.data() + 2 * shape.channels;
  args.y_var = statistics.data() + 3 * shape.channels;
  args.workspace = memory.data();
  for (auto _ : state) {
    batch_norm_act_depthwise_kernels(isa()).forward(one_thread(), args);
    benchmark::ClobberMemory();
  }
  count_bytes(state, 1, n + results);
}

BENCHMARK(copy)->Arg(1 << 14)->Arg(1 << 18)->Arg(1 << 24);
BENCHMARK(silu_mul_forward)->Arg(1 << 14)->Arg(1 << 18)->Arg(1 << 24);
BENCHMARK(batch_norm_silu)->Args({96, 112 * 112})->Args({240, 28 * 28})->Args({1152, 7 * 7});
BENCHMARK(batch_norm_silu_depthwise)
    ->Args({96, 112, 3, 2})
    ->Args({144, 56, 3, 1})
    ->Args({240, 28, 5, 1})
    ->Args({1152, 7, 5, 1});

}  // namespace
}  // namespace opfuse::ops

BENCHMARK_MAIN();
