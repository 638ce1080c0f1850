#include "opfuse/cli/child.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <cstring>

#include <atomic>
#include <map>

#include "opfuse/cli/verb.h"

extern char** environ;

namespace opfuse::cli {
namespace {

std::atomic<pid_t> forward_to{0};

void pass_on(int signal_number) {
  const pid_t child = forward_to.load();
  if (child > 0) kill(child, signal_number);
}

std::vector<char*> pointers(std::vector<std::string>* words) {
  std::vector<char*> out;
  for (auto& word : *words) out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

std::vector<std::string> merged_environment(const std::vector<std::string>& extra) {
  std::map<std::string, std::string> merged;
  auto put = [&](const std::string& entry) {
    const size_t equals = entry.find('=');
    if (equals != std::string::npos) merged[entry.substr(0, equals)] = entry;
  };
  for (char** entry = environ; *entry; ++entry) put(*entry);
  for (const auto& entry : extra) put(entry);
  std::vector<std::string> out;
  for (auto& [name, entry] : merged) out.push_back(entry);
  return out;
}

}  // namespace

Result<Child> Child::spawn(const std::vector<std::string>& command,
                           const std::vector<std::string>& environment) {
  std::vector<std::string> words = command, entries = merged_environment(environment);
  std::vector<char*> argv = pointers(&words), envp = pointers(&entries);
  Child child;
  const int error = posix_spawnp(&child.pid_, argv[0], nullptr, nullptr, argv.data(), envp.data());
  if (error != 0) return Error{"cannot start '" + command[0] + "': " + std::strerror(error)};
  return child;
}

bool Child::poll() {
  if (ended_) return true;
  int status = 0;
  const pid_t got = waitpid(pid_, &status, WNOHANG);
  if (got == 0 || (got < 0 && errno == EINTR)) return false;
  ended_ = true;
  if (got < 0) return true;
  signalled_ = WIFSIGNALED(status);
  status_ = signalled_ ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return true;
}

void Child::wait() {
  while (!poll()) usleep(50'000);
}

int spawn_status(const std::vector<std::string>& command) {
  const std::string& name = command[0];
  if (name.find('/') != std::string::npos && access(name.c_str(), F_OK) == 0) return 126;
  return 127;
}

void forward_signals(pid_t child) {
  forward_to = child;
  std::signal(SIGINT, SIG_IGN);
  struct sigaction action{};
  action.sa_handler = pass_on;
  action.sa_flags = SA_RESTART;
  for (int number : {SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT})
    sigaction(number, &action, nullptr);
}

int exec_command(const std::vector<std::string>& command) {
  std::vector<std::string> words = command;
  std::vector<char*> argv = pointers(&words);
  execvp(argv[0], argv.data());
  say("cannot start '" + command[0] + "': " + std::strerror(errno));
  return spawn_status(command);
}

}  // namespace opfuse::cli
