#pragma once
// Readers of Ascend's tables. Of kernels: kernel_details.csv and op_summary_*.csv of the torch_npu
// profiler. Columns are found by name, in any order; which there are depends on the profiler's
// settings and version. One row a kernel, with its shapes and types: P1 without the host.

#include "opfuse/trace/byte_source.h"
#include "opfuse/trace/trace_file.h"

namespace opfuse::trace {

// Whether a text begins with the header of such a table.
bool is_kernel_table(std::string_view head);

void read_kernel_table(ByteSource* source, TraceFile* file);

// operator_details.csv: operators of the host in order, with shapes, but without start times and
// dtypes; their times follow one another (LossKind::kTimesInOrder).
bool is_operator_table(std::string_view head);
void read_operator_table(ByteSource* source, TraceFile* file);

// The ATen operator that a kernel of this type computes ("Sigmoid" -> "aten::sigmoid"), or "".
std::string_view operator_of_kernel_type(std::string_view type);

}  // namespace opfuse::trace
