#include "opfuse/cli/run_directory.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "opfuse/base/version.h"

namespace opfuse::cli {
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

constexpr int64_t kHeadlinePairs = 12;

std::string time_stamp() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%d-%H%M", &local);
  return text;
}

std::string error_text(const std::error_code& error) { return error.message(); }

Result<std::string> make_default(const fs::path& base, const std::string& name) {
  std::error_code error;
  fs::create_directories(base, error);
  if (error) return Error{base.string() + ": " + error_text(error)};
  for (int number = 1; number < 1000; ++number) {
    const fs::path path = base / (number == 1 ? name : name + "-" + std::to_string(number));
    if (fs::create_directory(path, error)) return fs::absolute(path).string();
    if (error) return Error{path.string() + ": " + error_text(error)};
  }
  return Error{base.string() + ": expected a free name like " + name + ", found a thousand taken"};
}

void point_latest_at(const fs::path& run_dir) {
  std::error_code ignored;
  const fs::path link = run_dir.parent_path() / "latest";
  if (fs::is_symlink(link, ignored)) fs::remove(link, ignored);
  fs::create_directory_symlink(run_dir.filename(), link, ignored);
}

Result<std::string> make_given(const LaunchOptions& options) {
  std::error_code error;
  const fs::path path = fs::absolute(options.output);
  if (fs::exists(path, error) && !fs::is_empty(path, error)) {
    if (!options.force)
      return Error{"-o " + options.output + ": is not empty; choose another directory or add -f"};
    for (const char* ours : {"state", "config.json", "report.html", "report.json", "plan.json",
                             "changes.diff", "trace_before.json", "trace_after.json"})
      fs::remove_all(path / ours, error);
  }
  fs::create_directories(path, error);
  if (error) return Error{"-o " + options.output + ": " + error_text(error)};
  if (access(path.c_str(), W_OK) != 0)
    return Error{"-o " + options.output + ": " + std::strerror(errno)};
  return path.string();
}

}  // namespace

std::string script_name(const std::vector<std::string>& command) {
  std::string name = command.empty() ? "run" : fs::path(command[0]).stem().string();
  for (size_t i = 0; i < command.size(); ++i) {
    const std::string extension = fs::path(command[i]).extension().string();
    if (extension == ".py" || extension == ".sh") return fs::path(command[i]).stem().string();
    if (command[i] == "-m" && i + 1 < command.size()) name = command[i + 1];
  }
  return name;
}

Result<std::string> make_run_directory(const LaunchOptions& options, std::string* note) {
  if (!options.output.empty()) return make_given(options);
  const std::string name = script_name(options.command) + "-" + time_stamp();
  Result<std::string> made = make_default(fs::current_path() / "opfuse-report", name);
  if (made.ok()) {
    point_latest_at(*made);
    return made;
  }
  std::error_code ignored;
  Result<std::string> other =
      make_default(fs::temp_directory_path(ignored) / "opfuse-report", name);
  if (!other.ok()) return made.error();
  *note = "the report cannot be written to " + made.error().message + "; using " + *other;
  return other;
}

Status write_config(const LaunchOptions& o, const Installation& installation,
                    const std::string& run_dir) {
  int64_t memory = free_memory_bytes() / 2;
  if (!o.verify_memory.empty()) {
    OPFUSE_TRY(memory, parse_bytes(o.verify_memory));
  }
  std::string plan;
  if (!o.plan.empty()) plan = fs::absolute(o.plan).string();
  std::vector<std::string> rules;
  for (const auto& file : o.rules) rules.push_back(fs::absolute(file).string());
  OPFUSE_TRY(const std::vector<std::string> levers, parse_levers(o.levers));
  Json config = {
      {"version", 1},
      {"opfuse", kVersion},
      {"verb", o.verb},
      {"command", o.command},
      {"cwd", fs::current_path().string()},
      {"run_dir", run_dir},
      {"library", installation.library},
      {"python_dir", installation.python_dir},
      {"once", o.once},
      {"dry_run", o.dry_run},
      {"live", true},
      {"strict", o.strict},
      {"source", !o.no_source},
      {"allow", o.allow},
      {"levers", levers},
      {"search", o.search},
      {"versus", o.versus.starts_with("compile:") ? o.versus.substr(8) : "inductor"},
      {"only", o.only},
      {"exclude", o.exclude},
      {"target", o.target},
      {"rules", rules},
      {"budget_steps", o.budget_steps},
      {"budget_seconds", o.budget_seconds},
      // A small budget leaves as many pairs for the choice as for the headline.
      {"headline_pairs", std::min(kHeadlinePairs, o.budget_steps / 4)},
      {"verify_memory_bytes", memory},
      {"batch", o.batch},
      {"record_step", 2},
      {"plan", plan},
      {"verbose", o.verbose ? 1 : 0},
  };
  std::error_code error;
  fs::create_directories(fs::path(run_dir) / "state", error);
  if (error) return Error{run_dir + "/state: " + error_text(error)};
  return write_file(run_dir + "/config.json",
                    config.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

Status write_file(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".part";
  {
    std::ofstream out(temporary, std::ios::binary);
    out << text;
    out.flush();
    if (!out) {
      const std::string reason = std::strerror(errno);
      unlink(temporary.c_str());
      return Error{path + ": " + reason};
    }
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0)
    return Error{path + ": " + std::strerror(errno)};
  return ok_status();
}

Result<std::string> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return Error{path + ": " + std::strerror(errno)};
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

int64_t free_memory_bytes() {
  auto number_in = [](const std::string& path) -> int64_t {
    std::ifstream in(path);
    int64_t number = -1;
    return in >> number ? number : -1;
  };
  int64_t free = -1;
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key; meminfo >> key;) {
    int64_t kib = 0;
    if (key == "MemAvailable:" && meminfo >> kib) free = kib * 1024;
  }
  const int64_t limit = number_in("/sys/fs/cgroup/memory.max");
  const int64_t used = number_in("/sys/fs/cgroup/memory.current");
  if (limit > 0 && used >= 0 && (free < 0 || limit - used < free)) free = limit - used;
  return free;
}

}  // namespace opfuse::cli
