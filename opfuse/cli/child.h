#pragma once
// The user's command as a child process: started with posix_spawn, signals forwarded, status
// mirrored.

#include <sys/types.h>

#include <string>
#include <vector>

#include "opfuse/base/result.h"

namespace opfuse::cli {

class Child {
 public:
  // `environment`: NAME=value entries that replace or extend the current ones. An error carries the
  // status a shell would give in spawn_status() (127 not found, 126 not executable).
  static Result<Child> spawn(const std::vector<std::string>& command,
                             const std::vector<std::string>& environment);

  pid_t pid() const { return pid_; }
  // True when the child has ended; then status() is its exit status, 128+n for signal n.
  bool poll();
  void wait();
  int status() const { return status_; }
  bool signalled() const { return signalled_; }

 private:
  pid_t pid_ = -1;
  int status_ = 0;
  bool ended_ = false, signalled_ = false;
};

// 127 or 126, as a shell says it, for a command that could not be started.
int spawn_status(const std::vector<std::string>& command);

// From now on SIGINT is left to the child (it shares the terminal's process group); TERM, HUP,
// USR1, USR2 and QUIT are passed on to it.
void forward_signals(pid_t child);

// Replaces this process by the command (OPFUSE_DISABLE, or nothing of ours could be set up).
// Returns only on failure, with the status a shell would give.
int exec_command(const std::vector<std::string>& command);

}  // namespace opfuse::cli
