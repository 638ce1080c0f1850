#include "opfuse/cli/watch.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "opfuse/cli/run_directory.h"
#include "opfuse/cli/verb.h"

namespace opfuse::cli {
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

int64_t modified_ns(const std::string& path) {
  struct stat info{};
  if (stat(path.c_str(), &info) != 0) return -1;
  return static_cast<int64_t>(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec;
}

std::string text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

StateWatcher::StateWatcher(const LaunchOptions& options, std::string run_dir)
    : options_(options), run_dir_(std::move(run_dir)) {
  // A live line would fight with a script that draws on the same terminal.
  live_ = !options.quiet && isatty(STDERR_FILENO) && !isatty(STDOUT_FILENO);
}

StateWatcher::~StateWatcher() { clear_live_line(); }

void StateWatcher::clear_live_line() {
  if (live_line_shown_) std::fputs("\r\033[K", stderr);
  live_line_shown_ = false;
}

void StateWatcher::print(const std::string& text) {
  clear_live_line();
  if (!options_.quiet) say(text);
  if (options_.log.empty()) return;
  std::ofstream log(options_.log, std::ios::app);
  char stamp[32];
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M:%S ", &local);
  log << stamp << text << '\n';
}

void StateWatcher::print_block(const std::string& text) {
  clear_live_line();
  if (!options_.quiet) std::fputs(text.c_str(), stderr);
  if (!options_.log.empty()) std::ofstream(options_.log, std::ios::app) << text;
}

bool StateWatcher::claim_table(const std::string& outcome) {
  if (table_shown_for_ == outcome) return false;
  table_shown_for_ = outcome;
  return true;
}

void StateWatcher::show_progress(const std::string& text) {
  if (!live_ || text.empty()) return;
  std::fprintf(stderr, "\r\033[Kopfuse: %s", text.c_str());
  std::fflush(stderr);
  live_line_shown_ = true;
}

bool StateWatcher::take(const std::string& path, Seen* seen) {
  const int64_t modified = modified_ns(path);
  if (modified < 0 || modified == seen->modified_ns) return false;
  Result<std::string> text = read_file(path);
  if (!text.ok()) return false;
  const Json state = Json::parse(*text, nullptr, false);
  if (!state.is_object()) return false;
  seen->modified_ns = modified;
  const bool main_rank = !state.contains("rank") || state["rank"].is_null() || state["rank"] == 0;
  if (!seen->armed && text_of(state, "phase") != "seen") {
    seen->armed = true;
    ++armed_;
  }
  if (const auto events = state.find("events"); events != state.end() && events->is_array())
    for (; seen->events < events->size(); ++seen->events)
      if (main_rank || options_.verbose) print(text_of((*events)[seen->events], "text"));
  if (const auto trouble = state.find("trouble"); trouble != state.end() && trouble->is_array())
    for (; seen->trouble < trouble->size(); ++seen->trouble)
      if ((*trouble)[seen->trouble].is_string())
        print("process " + std::to_string(state.value("pid", 0)) + ": " +
              (*trouble)[seen->trouble].get<std::string>());
  if (main_rank && state.contains("progress") && state["progress"].is_object())
    show_progress(text_of(state["progress"], "text"));
  const std::string outcome = text_of(state, "outcome");
  if (outcome.empty() || outcome == seen->outcome) return false;
  seen->outcome = outcome;
  if (main_rank) outcome_ = outcome;
  return main_rank;
}

bool StateWatcher::look() {
  bool outcome_appeared = false;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run_dir_ + "/state", error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("process-") || !name.ends_with(".json")) continue;
    outcome_appeared |= take(entry.path().string(), &seen_[name]);
  }
  return outcome_appeared;
}

}  // namespace opfuse::cli
