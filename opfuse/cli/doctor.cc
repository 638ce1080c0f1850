// doctor: what is installed, what was chosen, what is missing, what to do.

#include <cstdio>
#include <cstdlib>

#include "opfuse/base/version.h"
#include "opfuse/cli/child.h"
#include "opfuse/cli/launch.h"
#include "opfuse/cli/verb.h"

namespace opfuse::cli {
namespace {

// Run by the user's own Python: torch, then our library's self-check in that process.
constexpr const char* kProbe = R"(
import sys
sys.path.insert(0, sys.argv[1])
print("python      ", sys.version.split()[0], sys.executable)
try:
    import torch
except Exception as error:
    print("torch        cannot be imported:", error)
    sys.exit(1)
print("torch       ", torch.__version__, "with", torch.get_num_threads(), "threads")
from opfuse import accelerators, native, torchversion
if note := torchversion.note(torch.__version__):
    print("note        ", note)
try:
    native.load(sys.argv[2], {})
except Exception as error:
    print("self-check   failed:", error)
    sys.exit(1)
print("self-check   passed: recorder and schemas work with this torch")
for line in accelerators.lines():
    print(line)
)";

class Doctor : public Verb {
 public:
  std::string name() const override { return "doctor"; }
  std::string summary() const override { return "what is installed, what is missing, what to do"; }
  std::string usage() const override { return "doctor [--python PYTHON]"; }
  std::string description() const override {
    return "Checks that opfuse's parts are found and that its library works inside the Python "
           "that\n"
           "will run your script (default: python3 of PATH). Exit status 0 when all is well.";
  }
  std::vector<Flag> flags() override {
    return {{"--python", "PYTHON", "the Python that runs your script", &python_}};
  }
  int run(const std::vector<std::string>& words) override {
    if (!words.empty()) return usage_error("doctor: expected no argument, found " + words[0]);
    std::printf("opfuse       %s\n", kVersion);
    Result<Installation> installation = find_installation();
    if (!installation.ok()) {
      std::printf("parts        %s\n", installation.error().message.c_str());
      return 1;
    }
    std::printf("python part  %s\nlibrary      %s\n", installation->python_dir.c_str(),
                installation->library.c_str());
    std::fflush(stdout);
    Result<Child> child =
        Child::spawn({python_, "-c", kProbe, installation->python_dir, installation->library}, {});
    if (!child.ok()) {
      std::printf("python       %s\n", child.error().message.c_str());
      return 1;
    }
    child->wait();
    if (child->status() != 0)
      std::printf(
          "to do        build opfuse against this torch (`make build`, or `pip install "
          "--no-build-isolation .` in that environment)\n");
    return child->status() == 0 ? 0 : 1;
  }

 private:
  std::string python_ = "python3";
};

}  // namespace

std::unique_ptr<Verb> make_doctor() { return std::make_unique<Doctor>(); }

}  // namespace opfuse::cli
