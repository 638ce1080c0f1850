#include <filesystem>
#include <fstream>
#include <iterator>

#include "opfuse/base/version.h"
#include "opfuse/report/advice.h"
#include "opfuse/report/parts.h"

namespace opfuse::report {
namespace {

Json json_of(const RunFacts& run) {
  Json environment = Json::array();
  for (const auto& [name, value] : run.environment)
    environment.push_back({{"name", name}, {"value", value}});
  Json json = {{"verb", run.verb},
               {"command", run.command},
               {"environment", environment},
               {"directory", run.directory},
               {"script", run.script},
               {"report_dir", run.report_dir},
               {"started_unix_s", run.started_unix_s},
               {"seconds", run.seconds},
               {"exit_status", nullptr},
               {"world_size", run.world_size},
               {"processes", run.processes},
               {"launchers", run.launchers},
               {"threads", run.threads},
               {"last_phase", run.last_phase}};
  if (run.exit_status) json["exit_status"] = *run.exit_status;
  return json;
}

void read_run(const Fields& from, RunFacts* to) {
  from.read("verb", &to->verb);
  from.read("command", &to->command);
  for (const Fields& variable : from.objects("environment")) {
    auto& [name, value] = to->environment.emplace_back();
    variable.read("name", &name);
    variable.read("value", &value);
  }
  from.read("directory", &to->directory);
  from.read("script", &to->script);
  from.read("report_dir", &to->report_dir);
  from.read("started_unix_s", &to->started_unix_s);
  from.read("seconds", &to->seconds);
  from.read("exit_status", &to->exit_status);
  from.read("world_size", &to->world_size);
  from.read("processes", &to->processes);
  from.read("launchers", &to->launchers);
  from.read("threads", &to->threads);
  from.read("last_phase", &to->last_phase);
}

Json json_of(const Machine& machine) {
  return {{"cpu", machine.cpu},
          {"cores", machine.cores},
          {"cores_total", machine.cores_total},
          {"isa", machine.isa},
          {"memory_bytes", machine.memory_bytes},
          {"system", machine.system}};
}

void read_machine(const Fields& from, Machine* to) {
  from.read("cpu", &to->cpu);
  from.read("cores", &to->cores);
  from.read("cores_total", &to->cores_total);
  from.read("isa", &to->isa);
  from.read("memory_bytes", &to->memory_bytes);
  from.read("system", &to->system);
}

Json advice_json(const Report& report) {
  Json list = Json::array();
  for (const Advice& one : advice_of(report))
    list.push_back({{"text", one.text}, {"at_most", one.at_most}});
  return list;
}

Json json_of(const StepFacts& step) {
  return {{"boundary_kind", step.boundary_kind},
          {"boundary_name", step.boundary_name},
          {"root", step.root},
          {"batch", step.batch},
          {"operators", step.operators},
          {"low_precision", step.low_precision},
          {"low_precision_ms", step.low_precision_ms}};
}

void read_step_facts(const Fields& from, StepFacts* to) {
  from.read("boundary_kind", &to->boundary_kind);
  from.read("boundary_name", &to->boundary_name);
  from.read("root", &to->root);
  from.read("batch", &to->batch);
  from.read("operators", &to->operators);
  from.read("low_precision", &to->low_precision);
  from.read("low_precision_ms", &to->low_precision_ms);
}

Json json_of(const SideTimes& side) {
  return {{"steps", side.steps},
          {"time_mean_s", side.time_mean_s},
          {"time_median_s", side.time_median_s},
          {"data_mean_s", side.data_mean_s},
          {"images_per_s", side.images_per_s}};
}

void read_side(const Fields& from, const char* key, SideTimes* to) {
  const auto side = from.object(key);
  if (!side) return;
  side->read("steps", &to->steps);
  side->read("time_mean_s", &to->time_mean_s);
  side->read("time_median_s", &to->time_median_s);
  side->read("data_mean_s", &to->data_mean_s);
  side->read("images_per_s", &to->images_per_s);
}

Json json_of(const Process& process) {
  Json json = {{"pid", process.pid},
               {"rank", nullptr},
               {"outcome", outcome_name(process.outcome)},
               {"reason", process.reason},
               {"steps", process.steps},
               {"time_median_s", process.time_median_s},
               {"main", process.main}};
  if (process.rank >= 0) json["rank"] = process.rank;
  return json;
}

Outcome read_outcome(const Fields& from) {
  std::string name;
  from.read("outcome", &name);
  const auto outcome = outcome_from_name(name);
  if (!outcome) from.expected("outcome", "one of the outcomes of docs/report-schema.md");
  return outcome.value_or(Outcome::kRunning);
}

void read_processes(const Fields& from, std::vector<Process>* to) {
  for (const Fields& fields : from.objects("processes")) {
    Process& process = to->emplace_back();
    fields.read("pid", &process.pid);
    fields.read("rank", &process.rank);
    process.outcome = read_outcome(fields);
    fields.read("reason", &process.reason);
    fields.read("steps", &process.steps);
    fields.read("time_median_s", &process.time_median_s);
    fields.read("main", &process.main);
  }
}

Report read_all(const Fields& from) {
  Report report;
  report.outcome = read_outcome(from);
  from.read("reason", &report.reason);
  if (const auto run = from.object("run")) read_run(*run, &report.run);
  if (const auto machine = from.object("machine")) read_machine(*machine, &report.machine);
  if (const auto versions = from.object("versions")) {
    versions->read("opfuse", &report.versions.opfuse);
    versions->read("torch", &report.versions.torch);
    versions->read("python", &report.versions.python);
  }
  if (const auto step = from.object("step")) read_step_facts(*step, &report.step);
  if (const auto speed = from.object("speed")) read_speed(*speed, &report.speed);
  read_levers(from, "search", &report.search);
  read_levers(from, "levers", &report.levers);
  if (from.has("versus"))
    if (const auto versus = from.object("versus")) read_versus(*versus, &report.versus);
  if (const auto speed = from.object("together")) read_speed(*speed, &report.together);
  if (const auto sides = from.object("sides")) {
    read_side(*sides, "plain", &report.plain);
    read_side(*sides, "old", &report.old_side);
    read_side(*sides, "new", &report.new_side);
  }
  if (const auto costs = from.object("costs")) read_costs(*costs, &report.costs);
  read_sites(from, "sites", &report.sites);
  read_near_misses(from, "near_misses", &report.near_misses);
  read_candidates(from, "candidates", &report.candidates);
  if (const auto verdict = from.object("verdict")) read_verdict(*verdict, &report.verdict);
  read_steps(from, "steps", &report.steps);
  read_events(from, "events", &report.events);
  read_diffs(from, "diffs", &report.diffs);
  read_processes(from, &report.processes);
  read_counts(from, "losses", &report.losses);
  from.read("trouble", &report.trouble);
  read_texts(from, "files", &report.files);
  return report;
}

Json versus_json(const Report& report) {
  Json json = json_of(report.versus);
  if (!report.versus.name.empty()) json["sentence"] = versus_sentence(report);
  return json;
}

}  // namespace

std::string report_to_json(const Report& report) {
  Json json = {{"schema_version", kSchemaVersion},
               {"outcome", outcome_name(report.outcome)},
               {"reason", report.reason},
               {"summary", verdict_sentence(report)},
               {"next_steps", next_steps(report)},
               {"exit_code", exit_code(report.outcome)},
               {"run", json_of(report.run)},
               {"machine", json_of(report.machine)},
               {"versions",
                {{"opfuse", report.versions.opfuse},
                 {"torch", report.versions.torch},
                 {"python", report.versions.python}}},
               {"step", json_of(report.step)},
               {"speed", json_of(report.speed)},
               {"search", json_array(report.search)},
               {"levers", json_array(report.levers)},
               {"together", json_of(report.together)},
               {"versus", versus_json(report)},
               {"sides",
                {{"plain", json_of(report.plain)},
                 {"old", json_of(report.old_side)},
                 {"new", json_of(report.new_side)}}},
               {"costs", json_of(report.costs)},
               {"sites", json_array(report.sites)},
               {"near_misses", json_array(report.near_misses)},
               {"candidates", json_array(report.candidates)},
               {"advice", advice_json(report)},
               {"verdict", json_of(report.verdict)},
               {"steps", json_array(report.steps)},
               {"events", json_array(report.events)},
               {"diffs", json_array(report.diffs)},
               {"processes", Json::array()},
               {"losses", Json::object()},
               {"trouble", report.trouble},
               {"files", Json::object()}};
  for (const Process& process : report.processes) json["processes"].push_back(json_of(process));
  for (const auto& [name, count] : report.losses) json["losses"][name] = count;
  for (const auto& [name, path] : report.files) json["files"][name] = path;
  // Text from the user's files may not be UTF-8; JSON has to be.
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<Report> parse_report(std::string_view text, const std::string& name) {
  OPFUSE_TRY(const Json json, parse_json(text, name));
  if (!json.is_object()) return Error{name + ": expected a report, found another JSON value"};
  std::vector<std::string> problems;
  const Fields fields(json, "", &problems);
  int version = 0;
  fields.read("schema_version", &version);
  if (version != kSchemaVersion)
    return Error{name + ": schema_version: expected " + std::to_string(kSchemaVersion) +
                 ", found " + (version == 0 ? "none" : std::to_string(version)) +
                 (version > kSchemaVersion ? "; a newer opfuse wrote it" : "")};
  Report report = read_all(fields);
  if (!problems.empty()) return Error{name + ": " + problems.front()};
  return report;
}

Result<Report> read_report(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path file =
      fs::is_directory(path, ignored) ? fs::path(path) / "report.json" : fs::path(path);
  std::ifstream in(file, std::ios::binary);
  if (!in) return Error{file.string() + ": expected a report.json, found no file to read"};
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  return parse_report(text, file.string());
}

}  // namespace opfuse::report
