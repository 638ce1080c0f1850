// bench: each fused operator against its composition on this machine.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "opfuse/cli/child.h"
#include "opfuse/cli/launch.h"
#include "opfuse/cli/operators.h"
#include "opfuse/cli/verb.h"

namespace opfuse::cli {
namespace fs = std::filesystem;
namespace {

// glibc gives memory above 32 MiB back at each free and takes it again, page by page, at each
// allocation; these settings keep it, as a caching allocator does.
const std::vector<std::string> kRecycled = {
    "MALLOC_MMAP_MAX_=0", "MALLOC_TRIM_THRESHOLD_=9000000000000", "MALLOC_TOP_PAD_=67108864"};

class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "opfuse-bench-XXXXXX").string();
    if (mkdtemp(pattern.data())) path = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    if (!path.empty()) fs::remove_all(path, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  fs::path path;
};

class Bench : public Verb {
 public:
  std::string name() const override { return "bench"; }
  std::string summary() const override {
    return "measure the fused operators against PyTorch's small ones here";
  }
  std::string usage() const override { return "bench [OPERATOR…] [flags]"; }
  std::string description() const override {
    return "Runs each operator and the small operators it stands for in turns, in one process of\n"
           "your Python, forward and forward + backward, at several sizes. Prints how many times\n"
           "faster it is (median of rounds, quartiles in brackets), its time and its rate against\n"
           "that of a copy in the same run. Twice: with memory as malloc gives it, where page\n"
           "faults are part of both times, and with memory that is kept.\n"
           "\n"
           "  opfuse bench rms_norm rope --threads 1";
  }
  std::vector<Flag> flags() override {
    return {
        {"--python", "PYTHON", "the Python that has torch (default python3)", &python_},
        {"--threads", "N", "threads; 1 is measured in CPU time (default: torch's)", &threads_},
        {"--seconds", "S", "time for each comparison (default 1)", &seconds_},
        {"--dtypes", "LIST", "of f32, bf16, f16, f64 (default f32,bf16)", &dtypes_},
        {"--memory", "WHICH", "default, recycled or both (default both)", &memory_},
        {"--json", "", "one JSON object a line instead of the table", &json_},
    };
  }

  int run(const std::vector<std::string>& words) override {
    if (memory_ != "default" && memory_ != "recycled" && memory_ != "both")
      return usage_error("bench: --memory: expected default, recycled or both, found '" + memory_ +
                         "'");
    Result<std::vector<OperatorInfo>> operators = read_operators();
    Result<Installation> installation = find_installation();
    if (!operators.ok() || !installation.ok()) {
      say("bench: " + (operators.ok() ? installation.error() : operators.error()).message);
      return 1;
    }
    Folder folder;
    Result<std::vector<std::string>> files = write_cases(words, *operators, folder.path);
    if (!files.ok()) return usage_error("bench: " + files.error().message);
    for (const std::string& memory : {std::string("default"), std::string("recycled")}) {
      if (memory_ != "both" && memory_ != memory) continue;
      if (const int status = measure(memory, *files, *installation)) return status;
    }
    return 0;
  }

 private:
  static Result<std::vector<std::string>> write_cases(const std::vector<std::string>& words,
                                                      const std::vector<OperatorInfo>& operators,
                                                      const fs::path& folder) {
    if (folder.empty()) return Error{"expected to write a temporary folder, could not"};
    std::vector<std::string> files;
    for (const OperatorInfo& o : operators) {
      if (!words.empty() && std::find(words.begin(), words.end(), o.name) == words.end()) continue;
      files.push_back((folder / (o.name + ".json")).string());
      std::ofstream(files.back()) << o.text;
    }
    for (const std::string& word : words)
      if (std::none_of(operators.begin(), operators.end(),
                       [&](const OperatorInfo& o) { return o.name == word; }))
        return Error{"expected an operator, found '" + word + "' (see `opfuse ops`)"};
    return files;
  }

  int measure(const std::string& memory, const std::vector<std::string>& files,
              const Installation& installation) const {
    std::vector<std::string> command = {python_, "-m", "opfuse.bench"};
    command.insert(command.end(), files.begin(), files.end());
    for (const auto& [flag, value] :
         {std::pair{"--threads", threads_}, {"--seconds", seconds_}, {"--dtypes", dtypes_}})
      if (!value.empty()) command.insert(command.end(), {flag, value});
    command.insert(command.end(), {"--memory", memory});
    if (json_) command.push_back("--json");
    const char* path = std::getenv("PYTHONPATH");
    std::vector<std::string> environment = {"PYTHONPATH=" + installation.python_dir +
                                            (path ? ":" + std::string(path) : "")};
    const fs::path library = fs::path(installation.library).parent_path() / "libopfuse_ops.so";
    if (!std::getenv("OPFUSE_OPS_LIBRARY") && fs::exists(library))
      environment.push_back("OPFUSE_OPS_LIBRARY=" + library.string());
    if (memory == "recycled")
      environment.insert(environment.end(), kRecycled.begin(), kRecycled.end());
    std::fflush(stdout);
    Result<Child> child = Child::spawn(command, environment);
    if (!child.ok()) {
      say("bench: " + child.error().message);
      return 1;
    }
    forward_signals(child->pid());
    child->wait();
    return child->status();
  }

  std::string python_ = "python3", threads_, seconds_, dtypes_, memory_ = "both";
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_bench() { return std::make_unique<Bench>(); }

}  // namespace opfuse::cli
