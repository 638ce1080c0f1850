#pragma once
// What every operator's torch side needs: threads, the instruction set level, dtypes and layouts.

#include <ATen/core/Tensor.h>

#include <optional>

#include "opfuse/base/dtype.h"
#include "opfuse/ops/exec.h"
#include "opfuse/ops/isa.h"

namespace opfuse::torch_ops {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// torch's own threads (torch.set_num_threads), and stores past the cache from twice the last level
// cache on: below it they cost up to 2x (measured on Zen 4, 32 MiB).
const ops::Exec& exec();
// The level that OPFUSE_ISA names or the best; a TORCH_CHECK error when the name is wrong.
ops::Isa isa();

DType dtype_of(const Tensor& t);
// f32, f64, bf16 or f16.
bool is_fast_dtype(c10::ScalarType type);
// The dtype that kernels compute in: f64 for f64, f32 for all others.
c10::ScalarType compute_type(c10::ScalarType type);
// Defined, strided, on the CPU or without data (meta), neither negated nor conjugated lazily, and
// of a fast dtype. Looks at nothing that depends on symbolic sizes.
bool is_plain(const Tensor& t);
inline bool has(const OptionalTensor& t) { return t.has_value() && t->defined(); }
inline const void* data(const Tensor& t) { return t.const_data_ptr(); }
inline void* data_out(const Tensor& t) { return t.defined() ? t.mutable_data_ptr() : nullptr; }

// Memory without gaps, of which every run of size(-1) elements is a row.
bool has_dense_rows(const Tensor& t);
// Rows at one distance from another, contiguous inside; of t as [rows, size(-1)].
struct RowLayout {
  int64_t rows, cols, stride;
};
std::optional<RowLayout> row_layout(const Tensor& t);
// A result laid out as `t`, as elementwise operators give it: where `t` is contiguous but for the
// strides of dimensions of size 1, these are the usual ones.
Tensor empty_as(const Tensor& t);
// `t` laid out as `model`: `t` itself when it is already.
Tensor laid_out_as(const Tensor& t, const Tensor& model);
// Contiguous and of `type`.
Tensor contiguous_as(const Tensor& t, c10::ScalarType type);
// Memory for a kernel's intermediate results.
Tensor workspace(int64_t bytes);

}  // namespace opfuse::torch_ops
