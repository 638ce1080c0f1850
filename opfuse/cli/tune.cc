// tune, record and run: verbs that start the user's command.

#include "opfuse/cli/launch.h"
#include "opfuse/cli/verb.h"

namespace opfuse::cli {
namespace {

std::vector<Flag> output_flags(LaunchOptions* o) {
  return {
      {"-o,--output", "DIR", "report directory (default opfuse-report/<script>-<time>)",
       &o->output},
      {"-f,--force", "", "replace an existing report directory", &o->force},
      {"-q,--quiet", "", "print errors only", &o->quiet},
      {"-v,--verbose", "", "say more", &o->verbose},
      {"--log", "FILE", "append what opfuse says to FILE too", &o->log},
      {"--color", "WHEN", "auto, always or never (NO_COLOR is obeyed)", &o->color},
      {"--verify-memory", "SIZE",
       "memory that recording and proof may take (default half of what is free)",
       &o->verify_memory},
      {"--batch", "N", "samples a step, when the model's first input does not say", &o->batch},
      {"--exit-code", "",
       "exit with the outcome: 0 tuned, 3 nothing found, 4 not faster, 5 refused, 7 undecided",
       &o->exit_code},
  };
}

std::vector<Flag> rule_flags(LaunchOptions* o) {
  return {
      {"--only", "RULE|PATH", "consider only these rules or files", &o->only},
      {"--exclude", "RULE|PATH", "leave these rules or files alone", &o->exclude},
      {"--rules", "FILE", "more rules (docs/rulebook.md)", &o->rules},
      {"--strict", "", "use only fused operators that accept every input the chain accepts",
       &o->strict},
      {"--allow", "CLASS", "widest equivalence class allowed: E0, E1 (default) or E2", &o->allow},
  };
}

class LaunchVerb : public Verb {
 public:
  bool takes_command() const override { return true; }
  int run(const std::vector<std::string>& words) override {
    options_.verb = name();
    options_.command = words;
    if (options_.attach) return launch_attached(options_);
    if (words.empty())
      return usage_error("expected a command after the flags, as in `opfuse " + name() +
                         " -- python main.py`");
    return launch(options_);
  }

 protected:
  LaunchOptions options_;
};

class Tune : public LaunchVerb {
 public:
  std::string name() const override { return "tune"; }
  std::string summary() const override {
    return "find, prove, replace and measure in a running script";
  }
  std::string usage() const override { return "tune [flags] -- COMMAND"; }
  std::string description() const override {
    return "Starts COMMAND (python main.py …, python -m pkg, bash train.sh, torchrun …), records "
           "one\n"
           "training step, finds chains of small operators by data flow, records a second step "
           "with\n"
           "its values, proves in fp64 that the fused operator is the same function, edits the "
           "code in\n"
           "memory, checks that the running program became what was planned, and alternates old "
           "and\n"
           "new steps until one is shown to be faster. Training goes on to its own end, tuned.\n"
           "COMMAND keeps its stdin, stdout and exit status.\n"
           "\n"
           "  opfuse tune -- python main.py --epochs 90\n"
           "  opfuse tune --once -- bash train_performance_1p.sh --data_path=/data/imagenet/\n"
           "\n"
           "Leaves report.html, changes.diff, plan.json, report.json and traces before and after.";
  }
  std::vector<Flag> flags() override {
    std::vector<Flag> flags = {
        {"--once", "", "end the script after the decision, with status 0", &options_.once},
        {"--dry-run", "", "find and prove, switch nothing", &options_.dry_run},
        {"--no-source", "", "never edit source in memory: report only", &options_.no_source},
        {"--budget", "STEPS", "most steps that enter the measurement (default 64)",
         &options_.budget_steps},
        {"--budget-seconds", "S", "most seconds of measured steps (default 180)",
         &options_.budget_seconds},
        {"--levers", "LIST",
         "what to try, separated by commas: ops (default: PyTorch's own fused operators), library "
         "(those of opfuse.functional too), graph (chains across functions and modules, in the "
         "graph that torch.compile captures), layout (channels_last), optimizer (its fused step), "
         "memory (a caching allocator for CPU tensors), or all",
         &options_.levers},
        {"--search", "",
         "measure each kind of replacement by itself, in alternating steps, and keep what pays",
         &options_.search},
        {"--versus", "compile",
         "afterwards run COMMAND once more with torch.compile of its model, until that is measured",
         &options_.versus},
        {"--require-gain", "RATIO",
         "like --exit-code, and 4 when the gain's lower end is below RATIO",
         &options_.require_gain},
        {"--target", "VENDOR",
         "write the diff for another device's operators (torch_npu), not verified here",
         &options_.target},
        {"--attach", "",
         "start no command, tune the Python that started this: what `with opfuse.tune():` calls",
         &options_.attach},
        {"--markdown", "", "also write report.md", &options_.markdown},
        {"--csv", "", "also write report.csv", &options_.csv},
        {"--open", "", "open report.html when it is ready", &options_.open},
    };
    for (auto& flag : rule_flags(&options_)) flags.push_back(flag);
    for (auto& flag : output_flags(&options_)) flags.push_back(flag);
    return flags;
  }
};

class Record : public LaunchVerb {
 public:
  std::string name() const override { return "record"; }
  std::string summary() const override { return "only record one step: trace.json and step.ofr"; }
  std::string usage() const override { return "record [flags] -- COMMAND"; }
  std::string description() const override {
    return "Records the second training step of COMMAND and writes trace.json, which "
           "chrome://tracing\n"
           "and ui.perfetto.dev open: operators forward and backward on their threads, shapes, "
           "source\n"
           "positions, arrows from forward to backward, and the chains that were found as a row "
           "of\n"
           "their own. step.ofr is the same for opfuse itself. COMMAND goes on to its own end.\n"
           "\n"
           "  opfuse record --once -- python main.py";
  }
  std::vector<Flag> flags() override {
    std::vector<Flag> flags = {
        {"--once", "", "end the script after the recorded step, with status 0", &options_.once},
        {"--rules", "FILE", "more rules (docs/rulebook.md)", &options_.rules},
    };
    for (auto& flag : output_flags(&options_)) flags.push_back(flag);
    return flags;
  }
};

class Run : public LaunchVerb {
 public:
  std::string name() const override { return "run"; }
  std::string summary() const override {
    return "apply a plan from an earlier run before the first step";
  }
  std::string usage() const override { return "run --plan plan.json [flags] -- COMMAND"; }
  std::string description() const override {
    return "Applies plan.json of an earlier `opfuse tune` in memory before the first step, if the "
           "source\n"
           "still has the same hash, records one step to check that the program became what the "
           "plan\n"
           "says, and measures nothing. A source that changed is left alone, and said.\n"
           "\n"
           "  opfuse run --plan opfuse-report/latest/plan.json -- python main.py";
  }
  std::vector<Flag> flags() override {
    std::vector<Flag> flags = {
        {"--plan", "FILE", "plan.json of an earlier run", &options_.plan},
        {"--once", "", "end the script after the check, with status 0", &options_.once},
    };
    for (auto& flag : output_flags(&options_)) flags.push_back(flag);
    return flags;
  }
  int run(const std::vector<std::string>& words) override {
    if (options_.plan.empty())
      return usage_error(
          "run: expected --plan FILE, as in `opfuse run --plan "
          "opfuse-report/latest/plan.json -- python main.py`");
    return LaunchVerb::run(words);
  }
};

}  // namespace

std::unique_ptr<Verb> make_tune() { return std::make_unique<Tune>(); }
std::unique_ptr<Verb> make_record() { return std::make_unique<Record>(); }
std::unique_ptr<Verb> make_run() { return std::make_unique<Run>(); }

}  // namespace opfuse::cli
