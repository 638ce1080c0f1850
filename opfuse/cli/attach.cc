// `opfuse tune --attach`: the program's part for `with opfuse.tune():` in a running Python. The
// report directory is the first line on stdout; the end of stdin is the end of the block.

#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "opfuse/cli/finish.h"
#include "opfuse/cli/launch.h"
#include "opfuse/cli/run_directory.h"
#include "opfuse/cli/verb.h"
#include "opfuse/cli/watch.h"

namespace opfuse::cli {
namespace {

constexpr int kPollMs = 100;

// Waits for up to `kPollMs`; what is written to stdin means nothing.
bool stdin_ended() {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  if (poll(&input, 1, kPollMs) <= 0) return false;
  char ignored[256];
  return read(STDIN_FILENO, ignored, sizeof ignored) <= 0;
}

}  // namespace

int launch_attached(const LaunchOptions& options) {
  if (Status status = check_options(options); !status.ok())
    return usage_error(status.error().message);
  Result<Installation> installation = find_installation();
  if (!installation.ok()) return usage_error(installation.error().message);
  std::string note;
  Result<std::string> run_dir = make_run_directory(options, &note);
  if (!run_dir.ok()) return usage_error(run_dir.error().message);
  if (!note.empty()) say(note);
  if (Status status = write_config(options, *installation, *run_dir); !status.ok())
    return usage_error(status.error().message);
  std::printf("%s\n", run_dir->c_str());
  std::fflush(stdout);

  StateWatcher watcher(options, *run_dir);
  const auto started = std::chrono::steady_clock::now();
  while (!stdin_ended()) {
    if (!watcher.look()) continue;
    watcher.clear_live_line();
    finish_run(options, *run_dir, {}, &watcher);
  }
  watcher.look();
  watcher.clear_live_line();
  if (watcher.processes_armed() == 0) {
    remove_empty_run(*run_dir);
    return 0;
  }
  const std::chrono::duration<double> lasted = std::chrono::steady_clock::now() - started;
  finish_run(options, *run_dir, report::RunEnd{0, lasted.count()}, &watcher);
  return 0;
}

}  // namespace opfuse::cli
