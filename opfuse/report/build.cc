// Run directory -> Report: reads every process's state, picks the main one, adds what only the
// parent or the machine knows.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <tuple>

#include "opfuse/base/sha256.h"
#include "opfuse/base/version.h"
#include "opfuse/report/format.h"
#include "opfuse/report/machine.h"
#include "opfuse/report/parts.h"
#include "opfuse/report/patch_module.h"
#include "opfuse/report/secrets.h"

namespace opfuse::report {
namespace fs = std::filesystem;

namespace {

// One process's file: its own small Report, and what decides which process is the main one.
struct ProcessState {
  Process facts;
  Report report;
  std::vector<std::string> arguments;
  std::string outcome;
  bool finished = false;
};

Result<std::string> text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return Error{path.string() + ": expected a file to read, found none"};
  return std::string{std::istreambuf_iterator<char>(in), {}};
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

SideTimes times_of(const std::vector<StepTime>& steps, std::string_view side) {
  std::vector<double> walls;
  SideTimes times;
  for (const StepTime& step : steps) {
    if (step.side != side) continue;
    walls.push_back(step.wall_s);
    times.time_mean_s += step.wall_s;
    times.data_mean_s += step.data_s;
  }
  times.steps = static_cast<int>(walls.size());
  if (walls.empty()) return times;
  times.time_mean_s /= static_cast<double>(walls.size());
  times.data_mean_s /= static_cast<double>(walls.size());
  times.time_median_s = median(walls);
  return times;
}

// The part of the run in which both sides took turns, so that drift of the machine falls on both.
std::vector<StepTime> alternating_steps(const std::vector<StepTime>& steps) {
  size_t last_old = 0, last_new = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].side == "old") last_old = i + 1;
    if (steps[i].side == "new") last_new = i + 1;
  }
  if (last_old == 0 || last_new == 0) return {};
  const std::string_view later = last_old > last_new ? "old" : "new";
  std::vector<StepTime> both;
  bool one_more = true;  // the other half of the last pair
  for (size_t i = 0; i < steps.size(); ++i) {
    if (i < std::min(last_old, last_new)) {
      both.push_back(steps[i]);
    } else if (steps[i].side == later && one_more) {
      both.push_back(steps[i]);
      one_more = false;
    }
  }
  return both;
}

void add_rate(const Report& report, SideTimes* side) {
  if (report.step.batch > 0 && side->time_median_s > 0)
    side->images_per_s = static_cast<double>(report.step.batch) *
                         std::max(1, report.run.world_size) / side->time_median_s;
}

void add_times(Report* report) {
  const auto both = alternating_steps(report->steps);
  report->old_side = times_of(both, "old");
  report->new_side = times_of(both, "new");
  report->plain = times_of(report->steps, "plain");
  for (SideTimes* side : {&report->old_side, &report->new_side, &report->plain})
    add_rate(*report, side);
  Speed& speed = report->speed;
  if (speed.old_step_s <= 0) speed.old_step_s = report->old_side.time_median_s;
  if (speed.new_step_s <= 0) speed.new_step_s = report->new_side.time_median_s;
}

void read_result(const Fields& from, Report* report) {
  from.read("operators", &report->step.operators);
  from.read("low_precision", &report->step.low_precision);
  from.read("low_precision_ms", &report->step.low_precision_ms);
  read_counts(from, "losses", &report->losses);
  if (const auto costs = from.object("costs")) read_costs(*costs, &report->costs);
  read_sites(from, "sites", &report->sites);
  read_near_misses(from, "near_misses", &report->near_misses);
  read_candidates(from, "candidates", &report->candidates);
  if (const auto verdict = from.object("verdict")) read_verdict(*verdict, &report->verdict);
  if (const auto speed = from.object("ab")) read_speed(*speed, &report->speed);
  read_levers(from, "search", &report->search);
  read_levers(from, "levers", &report->levers);
  if (from.has("versus"))
    if (const auto versus = from.object("versus")) read_versus(*versus, &report->versus);
  if (const auto speed = from.object("together")) read_speed(*speed, &report->together);
  read_texts(from, "files", &report->files);
  read_diffs(from, "diffs", &report->diffs);
}

// What the process wrote about itself; fields of the wrong type are named in `trouble`.
Result<ProcessState> read_process(const fs::path& path) {
  OPFUSE_TRY(const std::string text, text_of(path));
  OPFUSE_TRY(const Json json, parse_json(text, path.filename().string()));
  if (!json.is_object()) return Error{path.filename().string() + ": expected an object"};
  ProcessState state;
  Report& report = state.report;
  std::vector<std::string> problems;
  const Fields fields(json, "", &problems);
  fields.read("pid", &state.facts.pid);
  fields.read("rank", &state.facts.rank);
  fields.read("argv", &state.arguments);
  fields.read("outcome", &state.outcome);
  fields.read("finished", &state.finished);
  fields.read("script", &report.run.script);
  fields.read("world_size", &report.run.world_size);
  fields.read("threads", &report.run.threads);
  fields.read("phase", &report.run.last_phase);
  fields.read("reason", &report.reason);
  fields.read("python", &report.versions.python);
  fields.read("torch", &report.versions.torch);
  fields.read("trouble", &report.trouble);
  if (const auto boundary = fields.object("boundary")) {
    boundary->read("kind", &report.step.boundary_kind);
    boundary->read("name", &report.step.boundary_name);
  }
  if (const auto model = fields.object("model")) {
    model->read("root", &report.step.root);
    model->read("batch", &report.step.batch);
  }
  read_steps(fields, "steps", &report.steps);
  read_events(fields, "events", &report.events);
  if (const auto result = fields.object("result")) {
    read_result(*result, &report);
    if (const auto plan = result->object("plan")) report.plan_json = plan->text() + "\n";
  }
  for (const std::string& problem : problems)
    report.trouble.push_back(path.filename().string() + ": " + problem);
  return state;
}

std::vector<fs::path> process_files(const fs::path& run_dir) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run_dir / "state", error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("process-") && name.ends_with(".json")) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// A process that ran steps before one that did not, then the lowest rank, then the most steps.
bool is_more_main(const ProcessState& a, const ProcessState& b) {
  const auto key = [](const ProcessState& state) {
    const int rank = state.facts.rank < 0 ? 0 : state.facts.rank;
    return std::tuple(state.report.steps.empty(), state.outcome.empty(), rank,
                      -static_cast<int64_t>(state.report.steps.size()), state.facts.pid);
  };
  return key(a) < key(b);
}

Outcome outcome_of(const ProcessState& state, bool ended, std::vector<std::string>* trouble) {
  if (!state.outcome.empty()) {
    if (const auto outcome = outcome_from_name(state.outcome)) return *outcome;
    trouble->push_back(
        fmt::format("process {}: outcome: expected one that this opfuse knows, found "
                    "\"{}\"",
                    state.facts.pid, state.outcome));
  }
  return ended || state.finished ? Outcome::kEndedEarly : Outcome::kRunning;
}

std::string process_name(const Process& process) {
  return process.rank >= 0 ? fmt::format("rank {}", process.rank)
                           : fmt::format("process {}", process.pid);
}

void add_processes(std::vector<ProcessState>* states, bool ended, Report* report) {
  report->run.processes = static_cast<int>(states->size());
  for (size_t i = 0; i < states->size(); ++i) {
    ProcessState& state = (*states)[i];
    Process& facts = state.facts;
    facts.outcome = outcome_of(state, ended, &report->trouble);
    facts.reason = mask_text(state.report.reason);
    facts.steps = static_cast<int>(state.report.steps.size());
    const auto both = alternating_steps(state.report.steps);
    facts.time_median_s = both.empty() ? times_of(state.report.steps, "plain").time_median_s
                                       : times_of(both, "new").time_median_s;
    facts.main = i == 0;
    if (facts.steps == 0) ++report->run.launchers;
    if (i > 0) {
      for (const std::string& text : state.report.trouble)
        report->trouble.push_back(process_name(facts) + ": " + text);
      if (facts.steps > 0 && facts.outcome != (*states)[0].facts.outcome)
        report->trouble.push_back(fmt::format("{} ended as {}{}{}", process_name(facts),
                                              outcome_name(facts.outcome),
                                              facts.reason.empty() ? "" : ": ", facts.reason));
      report->costs.memory_peak_mb =
          std::max(report->costs.memory_peak_mb, state.report.costs.memory_peak_mb);
    }
    report->processes.push_back(facts);
  }
  // A script of which nothing ran a step has no launcher either.
  if (report->run.launchers == report->run.processes) report->run.launchers = 0;
}

void read_config(const Json& json, const fs::path& run_dir, Report* report) {
  const Fields fields(json, "config.json", &report->trouble);
  RunFacts& run = report->run;
  fields.read("verb", &run.verb);
  fields.read("command", &run.command);
  fields.read("cwd", &run.directory);
  fields.read("started_unix_s", &run.started_unix_s);
  fields.read("opfuse", &report->versions.opfuse);
  if (report->versions.opfuse.empty()) report->versions.opfuse = kVersion;
  for (const auto& [name, value] : fields.entries("environment"))
    if (value.is_string())
      run.environment.emplace_back(name, mask_variable(name, value.get<std::string>()));
  run.command = mask_command(run.command);
  int64_t batch = -1;
  fields.read("batch", &batch);
  if (batch > 0) report->step.batch = batch;
  if (run.started_unix_s <= 0) {
    struct stat facts{};
    if (stat((run_dir / "config.json").c_str(), &facts) == 0)
      run.started_unix_s = static_cast<double>(facts.st_mtime);
  }
  const fs::path relative = fs::path(run_dir).lexically_relative(run.directory);
  const bool inside = !run.directory.empty() && !relative.empty() && *relative.begin() != "..";
  run.report_dir = inside ? relative.string() : run_dir.string();
}

// Lines around `line` of a text; `first` is set to the number of the first one.
std::vector<std::string> lines_around(const std::string& text, int line, int before, int after,
                                      int* first) {
  std::vector<std::string> lines;
  const int begin = std::max(1, line - before);
  int number = 1;
  for (size_t at = 0; at < text.size() && number <= line + after; ++number) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (number >= begin) lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  *first = lines.empty() || number <= line ? 0 : begin;
  if (*first == 0) lines.clear();
  return lines;
}

// The file as it ran, or "" when it changed since or cannot be read.
std::string source_of(const std::string& path, Report* report) {
  const auto text = text_of(path);
  if (!text.ok()) return "";
  for (const Diff& diff : report->diffs)
    if (diff.file == path && !diff.before_sha256.empty() &&
        sha256_hex(text.value()) != diff.before_sha256) {
      const std::string note = path + ": changed since it ran, its lines are not shown";
      if (std::find(report->trouble.begin(), report->trouble.end(), note) == report->trouble.end())
        report->trouble.push_back(note);
      return "";
    }
  return text.value();
}

void add_source_lines(Report* report) {
  for (Site& site : report->sites) {
    if (!site.file.empty() && site.line > 0)
      site.source =
          lines_around(source_of(site.file, report), site.line, 3, 3, &site.source_first_line);
    if (site.chain_file.empty() || site.chain_line < 1) continue;
    if (site.chain_file == site.file && site.chain_line == site.line) continue;
    // A Function's backward stands below its forward.
    site.chain_source = lines_around(source_of(site.chain_file, report), site.chain_line, 4, 9,
                                     &site.chain_source_first_line);
  }
}

void mask_texts(Report* report) {
  report->reason = mask_text(report->reason);
  for (std::string& text : report->trouble) text = mask_text(text);
  for (Event& event : report->events) event.text = mask_text(event.text);
}

// Everything of the main process, over what the parent knows.
void take_main(ProcessState state, Report* report) {
  Report from = std::move(state.report);
  from.outcome = report->processes.front().outcome;
  from.trouble.insert(from.trouble.begin(), report->trouble.begin(), report->trouble.end());
  from.processes = std::move(report->processes);
  from.machine = report->machine;
  from.versions.opfuse = report->versions.opfuse;
  from.costs.memory_peak_mb = std::max(from.costs.memory_peak_mb, report->costs.memory_peak_mb);
  if (report->step.batch > 0) from.step.batch = report->step.batch;
  RunFacts run = report->run;
  run.script = from.run.script;
  run.world_size = from.run.world_size;
  run.threads = from.run.threads;
  run.last_phase = from.run.last_phase;
  if (run.command.empty()) run.command = mask_command(state.arguments);
  from.run = std::move(run);
  *report = std::move(from);
}

// --versus left a run of its own below this one.
void add_versus(const fs::path& dir, Report* report) {
  std::error_code error;
  if (!fs::exists(dir / "versus" / "config.json", error)) return;
  if (Result<Report> run = build_report((dir / "versus").string(), {}); run.ok())
    report->versus = run->versus;
  if (!report->versus.name.empty()) return;
  report->versus.name = "torch.compile";
  report->versus.outcome = "refused";
  report->versus.reason = "its run ended before the model was compiled";
}

}  // namespace

Result<Report> build_report(const std::string& run_dir, const std::optional<RunEnd>& end) {
  const fs::path dir = fs::path(run_dir);
  OPFUSE_TRY(const std::string config_text, text_of(dir / "config.json"));
  OPFUSE_TRY(const Json config, parse_json(config_text, (dir / "config.json").string()));
  Report report;
  read_config(config, dir, &report);
  report.machine = this_machine();

  std::vector<ProcessState> states;
  for (const fs::path& path : process_files(dir)) {
    auto state = read_process(path);
    if (state.ok()) {
      states.push_back(std::move(state.value()));
    } else {
      report.trouble.push_back(state.error().message);
    }
  }
  std::sort(states.begin(), states.end(), is_more_main);
  if (states.empty()) {
    report.outcome = end ? Outcome::kNotArmed : Outcome::kRunning;
  } else {
    add_processes(&states, end.has_value(), &report);
    take_main(std::move(states.front()), &report);
  }
  if (end) report.run.exit_status = end->exit_status;
  report.run.seconds = end ? end->seconds : report.events.empty() ? 0 : report.events.back().t;
  add_times(&report);
  add_versus(dir, &report);
  add_source_lines(&report);
  report.patch_modules = patch_modules(report.diffs);
  mask_texts(&report);
  return report;
}

}  // namespace opfuse::report
