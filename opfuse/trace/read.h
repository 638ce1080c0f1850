#pragma once
// Any trace file -> TraceFile. The format is seen in the content, never in the name.

#include <functional>
#include <string>
#include <vector>

#include "opfuse/base/result.h"
#include "opfuse/trace/trace_file.h"

namespace opfuse::trace {

struct ReadOptions {
  int threads = 1;  // 0: two where the file is large enough and the machine has them
  // Told of each file of a folder or archive that is no trace and is passed over.
  std::function<void(const std::string& path)> on_skip = nullptr;
};

// One file, or "-" for the standard input. An error only where nothing could be read: no such file,
// or a format that is not known. Damage is counted in TraceFile::losses.
Result<TraceFile> read_trace(const std::string& path, const ReadOptions& options = {});

// The same for a text in memory; `name` stands for the path.
Result<TraceFile> read_trace_text(std::string text, const std::string& name,
                                  const ReadOptions& options = {});

// The line (from 1) of a byte of a file, for messages about damage; -1 when it cannot be read
// again. Reads the file up to there.
int64_t line_of_byte(const std::string& path, int64_t offset);

}  // namespace opfuse::trace
