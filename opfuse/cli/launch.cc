#include "opfuse/cli/launch.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <sstream>

#include "opfuse/cli/child.h"
#include "opfuse/cli/finish.h"
#include "opfuse/cli/run_directory.h"
#include "opfuse/cli/verb.h"
#include "opfuse/cli/watch.h"

namespace opfuse::cli {
namespace {

constexpr useconds_t kPollUs = 100'000;
constexpr int kLeastBudget = 24;

bool disabled() {
  const char* value = std::getenv("OPFUSE_DISABLE");
  return value && *value && std::string(value) != "0";
}

std::vector<std::string> child_environment(const Installation& installation,
                                           const std::string& run_dir) {
  std::string path = installation.python_dir + "/opfuse/_shim";
  if (const char* old = std::getenv("PYTHONPATH"); old && *old) path += std::string(":") + old;
  return {"PYTHONPATH=" + path, "OPFUSE_RUN_DIR=" + run_dir};
}

bool one_of(const std::string& value, std::initializer_list<const char*> allowed) {
  return std::any_of(allowed.begin(), allowed.end(),
                     [&](const char* word) { return value == word; });
}

}  // namespace

Result<std::vector<std::string>> parse_levers(const std::string& text) {
  // In the order in which they are tried.
  static const std::vector<std::string> all = {"ops",    "library",   "graph",
                                               "layout", "optimizer", "memory"};
  if (text == "all") return all;
  const std::string expected = "expected all, or of ops, library, graph, layout, optimizer, memory";
  std::set<std::string> asked;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    if (std::find(all.begin(), all.end(), word) == all.end())
      return Error{"--levers: " + expected + ", found '" + word + "'"};
    asked.insert(word);
  }
  if (asked.empty()) return Error{"--levers: " + expected + ", found ''"};
  std::vector<std::string> levers;
  for (const std::string& lever : all)
    if (asked.contains(lever)) levers.push_back(lever);
  return levers;
}

Status check_options(const LaunchOptions& o) {
  if (!o.verify_memory.empty()) {
    OPFUSE_TRY([[maybe_unused]] const int64_t bytes, parse_bytes(o.verify_memory));
  }
  if (!one_of(o.allow, {"E0", "E1", "E2"}))
    return Error{"--allow: expected E0, E1 or E2, found '" + o.allow + "'"};
  if (!one_of(o.color, {"auto", "always", "never"}))
    return Error{"--color: expected auto, always or never, found '" + o.color + "'"};
  if (!one_of(o.target, {"", "torch_npu", "liger_kernel"}))
    return Error{"--target: expected torch_npu or liger_kernel, found '" + o.target + "'"};
  OPFUSE_TRY([[maybe_unused]] const auto levers, parse_levers(o.levers));
  if (!o.versus.empty() && o.versus != "compile" && !o.versus.starts_with("compile:"))
    return Error{"--versus: expected compile or compile:BACKEND, found '" + o.versus + "'"};
  if (o.budget_steps < kLeastBudget)
    return Error{"--budget: expected at least " + std::to_string(kLeastBudget) +
                 " steps (6 pairs to choose by and 6 fresh ones: fewer decide nothing), found " +
                 std::to_string(o.budget_steps)};
  for (const auto& file : o.rules)
    if (access(file.c_str(), R_OK) != 0)
      return Error{"--rules: expected a readable file, found '" + file + "'"};
  if (!o.plan.empty() && access(o.plan.c_str(), R_OK) != 0)
    return Error{"--plan: expected a readable plan.json, found '" + o.plan + "'"};
  return ok_status();
}

std::string starts_elsewhere(const LaunchOptions& options) {
  static const std::vector<std::string> known = {
      "docker", "podman", "nerdctl", "apptainer", "singularity", "kubectl", "ssh",
      "sbatch", "srun",   "qsub",    "bsub",      "ray",         "modal",   "sky"};
  const std::string program = std::filesystem::path(options.command[0]).filename().string();
  if (std::find(known.begin(), known.end(), program) == known.end()) return "";
  return program +
         " starts the program elsewhere, where this opfuse does not reach it. Put `opfuse " +
         options.verb + " --` in front of python there, as in `" + program + " … opfuse " +
         options.verb +
         " -- python main.py`, with opfuse installed there; the command runs as it is";
}

namespace {

// What there is to say when the command ended and no process of it could be looked into.
std::string nothing_armed_text(const StateWatcher& watcher, const LaunchOptions& options) {
  if (watcher.processes_seen() == 0)
    return "nothing was recorded: no Python process of '" + options.command[0] +
           "' was armed. `python -E` and `-I` ignore PYTHONPATH; drop them, or the program starts "
           "its "
           "Python elsewhere (docker, ssh, sbatch): put `opfuse " +
           options.verb + " --` in front of python there";
  return "nothing was recorded: Python ran, but torch was never imported";
}

// The run itself cannot be set up: say why and give the user his program anyway.
int run_plainly(const LaunchOptions& options, const std::string& why) {
  say(why);
  say("the command runs without opfuse");
  return exec_command(options.command);
}

void watch(Child* child, StateWatcher* watcher, const LaunchOptions& options,
           const std::string& run_dir) {
  while (!child->poll()) {
    if (watcher->look()) {
      watcher->clear_live_line();
      finish_run(options, run_dir, {}, watcher);
    }
    usleep(kPollUs);
  }
  watcher->look();
  watcher->clear_live_line();
}

constexpr double kVersusSeconds = 300;

// torch.compile measured in a second run of the same command, below run_dir/versus. The report
// finds it there; a run that does not come to its end is said and changes nothing else.
void run_versus(LaunchOptions options, const Installation& installation,
                const std::string& run_dir) {
  options.verb = "versus";
  options.once = true;
  const std::string below = run_dir + "/versus";
  if (const Status status = write_config(options, installation, below); !status.ok())
    return say("--versus: " + status.error().message);
  say("--versus: runs the command once more, with torch.compile, for at most " +
      std::to_string(static_cast<int>(kVersusSeconds)) + " s");
  Result<Child> child = Child::spawn(options.command, child_environment(installation, below));
  if (!child.ok()) return say("--versus: " + child.error().message);
  forward_signals(child->pid());
  StateWatcher watcher(options, below);
  const auto started = std::chrono::steady_clock::now();
  while (!child->poll()) {
    watcher.look();
    const std::chrono::duration<double> lasted = std::chrono::steady_clock::now() - started;
    if (lasted.count() > kVersusSeconds) {
      kill(child->pid(), SIGTERM);
      child->wait();
      watcher.clear_live_line();
      return say("--versus: not finished in " + std::to_string(static_cast<int>(kVersusSeconds)) +
                 " s, ended");
    }
    usleep(kPollUs);
  }
  watcher.look();
  watcher.clear_live_line();
  // The table of the tuning may have been printed long before.
  if (const Result<report::Report> report = report::build_report(run_dir); report.ok())
    say("versus " + report::versus_sentence(*report));
}

}  // namespace

int launch(const LaunchOptions& options) {
  if (disabled()) return exec_command(options.command);
  if (Status status = check_options(options); !status.ok())
    return usage_error(status.error().message);
  if (const std::string text = starts_elsewhere(options); !text.empty()) say(text);
  Result<Installation> installation = find_installation();
  if (!installation.ok()) return run_plainly(options, installation.error().message);
  std::string note;
  Result<std::string> run_dir = make_run_directory(options, &note);
  if (!run_dir.ok()) {
    if (!options.output.empty()) return usage_error(run_dir.error().message);
    return run_plainly(options, run_dir.error().message);
  }
  if (!note.empty()) say(note);
  if (Status status = write_config(options, *installation, *run_dir); !status.ok())
    return run_plainly(options, status.error().message);

  Result<Child> child = Child::spawn(options.command, child_environment(*installation, *run_dir));
  if (!child.ok()) {
    say(child.error().message);
    remove_empty_run(*run_dir);
    return spawn_status(options.command);
  }
  forward_signals(child->pid());
  StateWatcher watcher(options, *run_dir);
  const auto started = std::chrono::steady_clock::now();
  watch(&child.value(), &watcher, options, *run_dir);
  int code = child->status();
  if (watcher.processes_armed() == 0) {
    watcher.print(nothing_armed_text(watcher, options));
    remove_empty_run(*run_dir);
    return options.exit_code && code == 0 ? 3 : code;
  }
  const std::chrono::duration<double> lasted = std::chrono::steady_clock::now() - started;
  if (!options.versus.empty() && code == 0) run_versus(options, *installation, *run_dir);
  const int outcome_code =
      finish_run(options, *run_dir, report::RunEnd{code, lasted.count()}, &watcher);
  if (code == 0 && (options.exit_code || options.require_gain > 0)) code = outcome_code;
  return code;
}

}  // namespace opfuse::cli
