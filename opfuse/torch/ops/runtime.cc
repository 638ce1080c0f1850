#include "opfuse/torch/ops/runtime.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/stable/c/shim.h>

#include <atomic>
#include <string>

namespace opfuse::torch_ops {
namespace {

void run_on_torch_threads(int64_t count, int64_t grain, ops::RangeFn fn, void* context) {
  // at::parallel_for would be serial here: it is inlined, and this library is built without OpenMP,
  // because a second OpenMP runtime in the process must not be.
  const auto status = torch_parallel_for(0, count, grain, fn, context);
  TORCH_CHECK(status == 0, "opfuse: torch_parallel_for failed");
}

}  // namespace

const ops::Exec& exec() {
  static const ops::Exec exec{run_on_torch_threads, 2 * ops::last_level_cache_bytes()};
  return exec;
}

// What opfuse_ops_use_isa set; -1: what the environment says.
std::atomic<int> forced_isa{-1};

ops::Isa isa() {
  const int forced = forced_isa.load(std::memory_order_relaxed);
  if (forced >= 0) return static_cast<ops::Isa>(forced);
  const Result<ops::Isa>& chosen = ops::chosen_isa();
  TORCH_CHECK(chosen.ok(), chosen.error().message);
  return *chosen;
}

DType dtype_of(const Tensor& t) { return static_cast<DType>(t.scalar_type()); }

bool is_fast_dtype(c10::ScalarType type) {
  return type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf;
}

c10::ScalarType compute_type(c10::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

bool is_plain(const Tensor& t) {
  return t.defined() && t.layout() == at::kStrided && (t.is_cpu() || t.is_meta()) &&
         is_fast_dtype(t.scalar_type()) && !t.is_neg() && !t.is_conj();
}

bool has_dense_rows(const Tensor& t) {
  return t.dim() > 0 && t.stride(-1) == 1 && t.is_non_overlapping_and_dense();
}

std::optional<RowLayout> row_layout(const Tensor& t) {
  if (t.dim() == 0 || t.numel() == 0) return std::nullopt;
  const int64_t cols = t.size(-1);
  if (t.stride(-1) != 1 && cols != 1) return std::nullopt;
  int64_t rows = 1, stride = cols;
  bool first = true;
  for (int64_t dim = t.dim() - 2; dim >= 0; --dim) {
    if (t.size(dim) == 1) continue;
    if (first)
      stride = t.stride(dim);
    else if (t.stride(dim) != stride * rows)
      return std::nullopt;
    first = false;
    rows *= t.size(dim);
  }
  if (stride < cols) return std::nullopt;  // expanded or overlapping
  return RowLayout{rows, cols, stride};
}

Tensor empty_as(const Tensor& t) {
  return t.is_contiguous() ? at::empty(t.sizes(), t.options()) : at::empty_like(t);
}

Tensor laid_out_as(const Tensor& t, const Tensor& model) {
  if (t.strides() == model.strides() && t.is_non_overlapping_and_dense()) return t;
  return at::empty_like(model, t.options()).copy_(t);
}

Tensor contiguous_as(const Tensor& t, c10::ScalarType type) { return t.to(type).contiguous(); }

Tensor workspace(int64_t bytes) {
  return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
}

}  // namespace opfuse::torch_ops

extern "C" {

// The torch that this library was built for. Python finds this text in the file before it loads it:
// with another torch, loading may crash.
__attribute__((visibility("default"))) const char* opfuse_ops_torch_version() {
  static const char text[] = "opfuse_ops built for torch " OPFUSE_TORCH_VERSION;
  return text + sizeof("opfuse_ops built for torch ") - 1;
}

// The instruction set level in use; the reason why there is none when OPFUSE_ISA is wrong.
__attribute__((visibility("default"))) const char* opfuse_ops_isa() {
  const int forced = opfuse::torch_ops::forced_isa;
  if (forced >= 0) return opfuse::ops::isa_name(static_cast<opfuse::ops::Isa>(forced)).data();
  const opfuse::Result<opfuse::ops::Isa>& chosen = opfuse::ops::chosen_isa();
  return chosen.ok() ? opfuse::ops::isa_name(*chosen).data() : chosen.error().message.c_str();
}

// From now on the level that `name` names; null or empty: what the environment says. Returns null,
// or the reason why the level stays. For tests and benchmarks.
__attribute__((visibility("default"))) const char* opfuse_ops_use_isa(const char* name) {
  static thread_local std::string reason;
  if (!name || !*name) {
    opfuse::torch_ops::forced_isa = -1;
    return nullptr;
  }
  const opfuse::Result<opfuse::ops::Isa> wanted = opfuse::ops::isa_from_name(name);
  if (!wanted.ok()) {
    reason = wanted.error().message;
    return reason.c_str();
  }
  opfuse::torch_ops::forced_isa = static_cast<int>(*wanted);
  return nullptr;
}
}
