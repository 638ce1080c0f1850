#pragma once
// Runs the user's command with the shim armed, watches its state files, prints what happens on
// stderr and makes the report. The command's own status, stdin, stdout and terminal are untouched.

#include <cstdint>
#include <string>
#include <vector>

#include "opfuse/base/result.h"

namespace opfuse::cli {

struct LaunchOptions {
  std::string verb = "tune";
  std::vector<std::string> command;
  std::string output;  // report directory; "" picks opfuse-report/<script>-<time>
  bool force = false;  // an existing output may be replaced
  bool once = false, dry_run = false, strict = false, no_source = false, search = false;
  bool attach = false;  // no command: a running Python is watched
  bool quiet = false, verbose = false, exit_code = false, open = false;
  bool markdown = false, csv = false;
  std::string allow = "E1", target, color = "auto", plan, log;
  std::vector<std::string> only, exclude, rules;
  std::string versus;          // "compile" or "compile:BACKEND": measured in a second run
  std::string levers = "ops";  // a list of what to try, separated by commas, or "all"
  int64_t budget_steps = 64, batch = -1;
  double budget_seconds = 180, require_gain = 0;
  std::string verify_memory;  // "2G", "500M", bytes; "" half of what is free
};

int launch(const LaunchOptions& options);

// For a Python that is running already, `with opfuse.tune():` (attach.cc).
int launch_attached(const LaunchOptions& options);

// Flags that cannot mean anything are refused before anything starts.
Status check_options(const LaunchOptions& options);

// What to say before a command that starts the program on another machine or in a container; "" for
// any other command.
std::string starts_elsewhere(const LaunchOptions& options);

// Where the parts lie that the child needs.
struct Installation {
  std::string python_dir;  // holds opfuse/_shim/sitecustomize.py
  std::string library;     // libopfuse_torch.so
};
Result<Installation> find_installation();

// "ops,memory" -> its words.
Result<std::vector<std::string>> parse_levers(const std::string& text);

// "2G" -> bytes.
Result<int64_t> parse_bytes(const std::string& text);

}  // namespace opfuse::cli
