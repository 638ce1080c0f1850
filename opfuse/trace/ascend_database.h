#pragma once
// The SQLite databases of Ascend's profilers (ascend_pytorch_profiler_*.db, msprof_*.db) -> rows of
// a TraceFile. From their public documentation: no file of the vendor's was at hand. Tables and
// columns that are missing are passed over. Internal to trace/.

#include <string>
#include <string_view>

#include "opfuse/base/result.h"
#include "opfuse/trace/byte_source.h"
#include "opfuse/trace/trace_file.h"

namespace opfuse::trace {

// By the first bytes of a file.
bool is_database(std::string_view head);

// `path`: the database as a file on disk, which is then not held in memory; empty: it is read whole
// from `source`. An error where SQLite cannot open it or it holds none of the tables.
Status read_ascend_database(const std::string& path, ByteSource* source, TraceFile* file);

}  // namespace opfuse::trace
