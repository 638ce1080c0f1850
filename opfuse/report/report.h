#pragma once
// Report: the one structure behind the terminal table, report.json and report.html.
// In: a run directory (config.json, state/process-*.json). Out: values, owned by the Report; the
// functions that turn it into text are pure. Nothing here prints or throws.
// BORDER: report -> pipeline, cli.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "opfuse/base/result.h"
#include "opfuse/verify/statistics.h"
#include "opfuse/verify/verdict.h"

namespace opfuse::report {

constexpr int kSchemaVersion = 1;  // of report.json; docs/report-schema.md

enum class Outcome : uint8_t {
  kRunning,  // no outcome yet, the script still runs
  kTuned,
  kNothingFound,
  kNotFaster,
  kRefused,
  kUndecided,
  kFailed,  // a failure of ours; the script went on untouched
  kRecorded,
  kPlanApplied,
  kDryRun,
  kEndedEarly,  // the script ended before there was an outcome
  kNotArmed,    // no process with torch reported anything
};
std::string_view outcome_name(Outcome outcome);  // "nothing_found"
std::optional<Outcome> outcome_from_name(std::string_view name);

// Code of --exit-code and --require-gain: 0 tuned (also recorded, applied, dry run with a plan),
// 3 nothing found, 4 not faster, 5 refused, 7 undecided or no outcome, 70 failure of ours.
// 6, damaged input, comes from the reader's error.
constexpr int kExitDamagedInput = 6;
int exit_code(Outcome outcome);

struct RunFacts {
  std::string verb = "tune";
  std::vector<std::string> command;                              // masked
  std::vector<std::pair<std::string, std::string>> environment;  // set for the command, masked
  std::string directory;                                         // where it was started
  std::string script;
  std::string report_dir;
  double started_unix_s = 0;       // 0: unknown
  double seconds = 0;              // duration of the run so far; 0: unknown
  std::optional<int> exit_status;  // of the script: 128 + n by signal n; none: still runs
  int world_size = 1;
  int processes = 0;       // that reported
  int launchers = 0;       // of them: without a step (torchrun, python -m launcher)
  int threads = 0;         // torch's intra-operator threads; 0: unknown
  std::string last_phase;  // of the main process
};

struct Machine {
  std::string cpu;
  int cores = 0;  // that this process may use
  int cores_total = 0;
  std::string isa;           // "avx512"
  int64_t memory_bytes = 0;  // of the machine, or of the cgroup when that is less
  std::string system;        // "Linux 6.1.0 x86_64"
};

struct Versions {
  std::string opfuse, torch, python;
};

struct StepFacts {
  std::string boundary_kind;  // "optimizer", "root", "none"
  std::string boundary_name;  // "SGD.step"
  std::string root;           // class of the root module: "EfficientNet"
  int64_t batch = -1;         // -1: unknown
  int64_t operators = 0;      // leaf operators of the recorded step
  // Matrix products and convolutions in a type of 16 bits, forward and backward: "bf16", "f16".
  std::string low_precision;
  double low_precision_ms = 0;
};

// One step of the main process. `wall_s` is TIME, without `data_s`.
struct StepTime {
  int64_t step = 0;
  double wall_s = 0, data_s = 0, cpu_s = 0;
  // plain, record, values, validate, old, new, skipped; memory_off, memory_on, all_off, all_on, and
  // warm for a step after such a change
  std::string side;
};

// TIME, DATA and images/s of one side of the comparison.
struct SideTimes {
  int steps = 0;
  double time_mean_s = 0, time_median_s = 0;
  double data_mean_s = 0;
  double images_per_s = 0;  // 0: the batch is not known
};

struct Speed {
  std::string phase;    // "", "choosing", "headline", "done"
  std::string outcome;  // "", "running", "tuned", "not_faster", "undecided"
  verify::RatioInterval choosing, headline_wall, headline_cpu;
  double old_step_s = 0, new_step_s = 0;  // medians over the counted steps
  int counted_steps = 0;
};

// Something beside operators that was tried after them: "memory".
struct Lever {
  std::string name, what;
  std::string outcome;  // as of Speed, or "refused"
  std::string reason;
  bool kept = false;
  std::vector<std::string> lines;  // Python that makes it permanent
  Speed speed;                     // off against on, everything before it as decided
  std::string where = "";          // do these lines go: "where the optimizer is made"
  double prepare_s = 0;            // before it was measured: capture, proof, replay
};

// What else could have been done, measured in a run of its own: the original against torch.compile.
struct Versus {
  std::string name;     // "torch.compile"; "": not asked for
  std::string backend;  // "inductor"
  std::string outcome;  // as of Speed; "running": its run did not come to the end; "refused"
  std::string reason;
  double first_step_s = 0, plain_step_s = 0;  // the first compiled step, a step before it
  Speed speed;                                // the original against the compiled step
};

struct ChainOperator {
  std::string op;  // "aten.sigmoid"
  int line = -1, column = -1;
};

struct Refusal {
  int row = 0;  // row of the legality table
  std::string reason, node;
};

struct Site {
  int id = 0;
  std::string rule;
  int calls = 0;
  std::string function_class;  // "SwishImplementation" when the chain is a Function's forward
  std::string file;            // where the edit stands
  int line = -1;
  std::string chain_file;  // where the chain's operators stand
  int chain_line = -1, chain_column = -1, chain_end_column = -1;
  std::string now, becomes, target;
  std::string equivalence;                 // "E1"
  std::string domain;                      // "": total
  double forward_ms = 0, backward_ms = 0;  // the chain's operators in the recorded step
  std::vector<ChainOperator> operators;
  std::vector<ChainOperator> backward_operators;
  std::optional<Refusal> refusal;
  bool found_only = false;                // of a rule that replaces nothing yet
  std::optional<bool> kept;               // none: not measured
  std::map<std::string, int> shapes;      // "f32[16,32,112,112]" -> calls
  std::vector<std::string> source;        // lines of the file around the edit, as they ran
  int source_first_line = 0;              // line of source[0]; 0: the file could not be read
  std::vector<std::string> chain_source;  // the same around the chain
  int chain_source_first_line = 0;
};

struct NearMiss {
  std::string rule, reason, file;
  int line = -1, column = -1, row = 0, calls = 0;
  std::vector<std::string> operators;
};

// A chain of pointwise operators and reductions that no rule knows (match/candidates.h). Nothing is
// claimed of what fusing it would gain.
struct Candidate {
  std::vector<std::string> operators;  // of one call: "aten.sub.Tensor"
  std::string file;                    // "": not known
  int line = -1, calls = 0;
  int64_t bytes_saved = 0;  // of all calls: intermediates that are written and read
  double ms = -1;           // of all calls; -1: the record holds no times
  double share = -1;        // of the time of all recorded operators, 0 … 1; -1: no times
  bool backward = false;    // operators of a backward pass
};

struct Diff {
  std::string file, package, module, before_sha256;
  std::string diff;      // unified
  std::string after;     // full new text of the file
  bool verified = true;  // false: for a device that is not here
};

struct Costs {
  double plain_step_s = 0;
  double record_s = 0, values_s = 0, find_s = 0, facts_s = 0, prove_s = 0, validate_s = 0;
  double total_in_plain_steps = 0;
  double memory_peak_mb = 0;
};

struct Event {
  double t = 0;
  int64_t step = 0;
  std::string phase, text;
};

// A small module for an edit in an installed package: importing it applies the edit.
struct PatchModule {
  std::string name;  // "opfuse_patch_efficientnet_pytorch_utils.py"
  std::string text;
};

// One process that reported; the main one supplies everything else in the Report.
struct Process {
  int64_t pid = 0;
  int rank = -1;  // -1: no rank
  Outcome outcome = Outcome::kRunning;
  std::string reason;
  int steps = 0;
  double time_median_s = 0;  // of its new side where there is one, else of its plain steps
  bool main = false;
};

struct Report {
  Outcome outcome = Outcome::kRunning;
  std::string reason;  // one sentence, from the process
  RunFacts run;
  Machine machine;
  Versions versions;
  StepFacts step;
  Speed speed;
  SideTimes old_side, new_side;
  SideTimes plain;  // steps before anything was switched
  Costs costs;
  std::vector<Lever> search;  // kinds of replacement by themselves: named by their rule
  std::vector<Lever> levers;
  Versus versus;
  Speed together;  // everything that is kept against the original; no pairs: not measured
  std::vector<Site> sites;
  std::vector<NearMiss> near_misses;
  std::vector<Candidate> candidates;  // the largest first
  verify::Verdict verdict;
  std::vector<StepTime> steps;
  std::vector<Event> events;
  std::vector<Diff> diffs;
  std::vector<Process> processes;
  std::map<std::string, int64_t> losses;     // what the recorder lost, by name
  std::vector<std::string> trouble;          // what went wrong, ours and theirs
  std::map<std::string, std::string> files;  // "step_before" -> path below state/
  std::string plan_json;                     // plan.json of the main process, "" without a plan
  std::vector<PatchModule> patch_modules;    // one for each diff in an installed package
};

// How the command ended, known to the parent alone.
struct RunEnd {
  int exit_status = 0;
  double seconds = 0;
};

// Merges every state/process-*.json of `run_dir`. A damaged file is named in Report::trouble and
// the rest is used; an error only when `run_dir` or its config.json cannot be read at all.
Result<Report> build_report(const std::string& run_dir, const std::optional<RunEnd>& end = {});

// report.json; strict JSON, ends with a newline.
std::string report_to_json(const Report& report);
Result<Report> parse_report(std::string_view json, const std::string& name);
// `path` is a report.json or a directory that holds one.
Result<Report> read_report(const std::string& path);

struct TerminalOptions {
  bool color = false;
  bool unicode = false;
  int width = 100;
};
std::string terminal_text(const Report& report, const TerminalOptions& options = {});
std::string compare_text(const Report& before, const Report& after,
                         const TerminalOptions& options = {});
std::string markdown_text(const Report& report);
// One row per site, then one for the step; RFC 4180.
std::string csv_text(const Report& report);

// The verdict in one sentence, and what to do next: the same words in every form of the report.
std::string verdict_sentence(const Report& report);
std::vector<std::string> next_steps(const Report& report);
// 1.27 for a tuned run, with its interval; none when no ratio was measured. Of the operators alone.
std::optional<verify::RatioInterval> headline_ratio(const Report& report);
// The same of one comparison: of its fresh pairs where there are some.
std::optional<verify::RatioInterval> ratio_of(const Speed& speed);
// Steps until the time of the first compiled step is won back; none when no step is won.
std::optional<int64_t> break_even_steps(const Versus& versus);
// "12.5% of the operators' time: sub, exp, sum (3 calls, model.py:12)".
std::string candidate_sentence(const Candidate& candidate);
// "torch.compile (inductor): 1.05x [1.01, 1.08] …": all that is known of it in one sentence.
std::string versus_sentence(const Report& report);
// Of everything that is kept: levers too.
std::optional<verify::RatioInterval> total_ratio(const Report& report);

}  // namespace opfuse::report
