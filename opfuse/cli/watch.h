#pragma once
// Reads the state files that the armed processes write and prints what is new on stderr: one line
// an event, and on a terminal a live line with the measurement's progress.

#include <map>
#include <string>

#include "opfuse/cli/launch.h"

namespace opfuse::cli {

class StateWatcher {
 public:
  StateWatcher(const LaunchOptions& options, std::string run_dir);
  ~StateWatcher();

  // Looks for changed files and prints. Returns true when an outcome appeared since the last call.
  bool look();
  // Removes the live line.
  void clear_live_line();
  void print(const std::string& text);
  // Prints a text of several lines as it is.
  void print_block(const std::string& text);
  // True once per outcome: the caller prints its table.
  bool claim_table(const std::string& outcome);

  int processes_seen() const { return static_cast<int>(seen_.size()); }
  int processes_armed() const { return armed_; }
  bool has_outcome() const { return !outcome_.empty(); }
  const std::string& outcome() const { return outcome_; }

 private:
  struct Seen {
    int64_t modified_ns = 0;
    size_t events = 0, trouble = 0;
    bool armed = false;
    std::string outcome;
  };
  bool take(const std::string& path, Seen* seen);
  void show_progress(const std::string& text);

  const LaunchOptions& options_;
  std::string run_dir_, outcome_, table_shown_for_;
  std::map<std::string, Seen> seen_;
  int armed_ = 0;
  bool live_ = false, live_line_shown_ = false;
};

}  // namespace opfuse::cli
