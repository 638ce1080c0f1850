#pragma once
// The report directory of one run: made before the command starts, never overwritten without -f,
// with config.json for the child and a `latest` link beside it.

#include <string>

#include "opfuse/base/result.h"
#include "opfuse/cli/launch.h"

namespace opfuse::cli {

// Name of the script in a command: "main" for `python main.py`, `torchrun … main.py` or `bash
// main.sh`.
std::string script_name(const std::vector<std::string>& command);

// Makes the directory (absolute path). When the wished place cannot be written, a temporary
// directory is made instead and `*note` says so.
Result<std::string> make_run_directory(const LaunchOptions& options, std::string* note);

Status write_config(const LaunchOptions& options, const Installation& installation,
                    const std::string& run_dir);

// Writes `text` to `path` by rename, so that a reader never sees half a file.
Status write_file(const std::string& path, const std::string& text);
Result<std::string> read_file(const std::string& path);

// Bytes this process may still use: the smaller of the cgroup's and the machine's free memory.
int64_t free_memory_bytes();

}  // namespace opfuse::cli
