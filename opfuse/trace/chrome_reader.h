#pragma once
// Reader of Chrome traces (JSON): what PyTorch's profiler (Kineto and before), ROCm, Ascend and
// other tools write, as an object or a bare array. One pass; memory is the columns and a few
// windows.

#include <cstdint>

#include "opfuse/trace/byte_source.h"
#include "opfuse/trace/trace_file.h"

namespace opfuse::trace {

struct ChromeReadOptions {
  int threads = 1;
  int64_t expected_bytes = -1;  // of text, to reserve the columns; -1: not known
  // Of text that a thread takes at once: small enough for the text and its marks to stay in a
  // core's second cache. Pieces grow to hold an event.
  size_t piece_bytes = 512 << 10;
};

// Appends the events of `source` to `file`.
void read_chrome(ByteSource* source, const ChromeReadOptions& options, TraceFile* file);

// What needs the whole file: begin and end events paired, kinds of rows without a category, zero
// stamps left out, process names spread over threads. Called once, after the last source.
void finish_trace_file(TraceFile* file);

}  // namespace opfuse::trace
