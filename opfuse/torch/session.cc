#include "opfuse/torch/session.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "opfuse/base/check.h"
#include "opfuse/base/sha256.h"
#include "opfuse/graph/build.h"
#include "opfuse/graph/text.h"
#include "opfuse/torch/host_memory.h"
#include "opfuse/torch/recorder.h"
#include "opfuse/torch/replay.h"
#include "opfuse/torch/session_json.h"
#include "opfuse/torch/site_proof.h"
#include "opfuse/trace/chrome_writer.h"
#include "opfuse/trace/record_file.h"
#include "opfuse/verify/step_verdict.h"
#include "opfuse/verify/validate.h"

namespace opfuse::torch_bridge {
namespace fs = std::filesystem;

namespace {

template <class T>
T get_or(const Json& object, const char* key, T fallback) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return fallback;
  return found->get<T>();
}

std::vector<std::string> strings(const Json& object, const char* key) {
  return get_or<std::vector<std::string>>(object, key, {});
}

Result<std::string> read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return Error{path + ": expected a readable file"};
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// Where a diff's paths start: the repository that holds the file, else the script's directory.
// A file of an installed package: the folder that packages lie in.
std::string relative_path(const std::string& file, const std::string& cwd) {
  std::error_code error;
  for (const char* folder : {"/site-packages/", "/dist-packages/"})
    if (const size_t at = file.rfind(folder); at != file.npos)
      return file.substr(at + std::string_view(folder).size());
  for (fs::path up = fs::path(file).parent_path(); up.has_relative_path(); up = up.parent_path())
    if (fs::exists(up / ".git", error)) return fs::path(file).lexically_relative(up).string();
  const std::string below = fs::path(file).lexically_relative(cwd).string();
  if (!below.empty() && !below.starts_with("..")) return below;
  return fs::path(file).lexically_relative("/").string();
}

// One call's forward operators are one mark, its backward operators another.
std::vector<trace::Mark> chain_marks(const Analysis& analysis) {
  std::vector<trace::Mark> marks;
  int32_t call = 0;
  for (const auto& site : analysis.sites)
    for (int index : site.matches) {
      const match::Match& match = analysis.report.matches[index];
      for (const auto* nodes : {&match.nodes, &match.backward.nodes}) {
        for (graph::NodeId node : *nodes)
          if (analysis.graph.nodes[node].event >= 0)
            marks.push_back({analysis.graph.nodes[node].event, site.rule->name, site.id, call});
        ++call;
      }
    }
  return marks;
}

}  // namespace

const std::map<std::string, Session::Method>& Session::methods() {
  static const std::map<std::string, Method> table = {
      {"self_check", &Session::self_check},
      {"open", &Session::open},
      {"record_start", &Session::record_start},
      {"record_stop", &Session::record_stop},
      {"record_abandon", &Session::record_abandon},
      {"set_positions", &Session::set_positions},
      {"set_labels", &Session::set_labels},
      {"find", &Session::find},
      {"plan", &Session::plan},
      {"load_plan", &Session::load_plan},
      {"prove", &Session::prove},
      {"prove_layout", &Session::prove_layout},
      {"validate", &Session::validate},
      {"ab_open", &Session::ab_open},
      {"ab_add", &Session::ab_add},
      {"ab_discard", &Session::ab_discard},
      {"ab_next", &Session::ab_next},
      {"ab_state", &Session::ab_state},
      {"write_record", &Session::write_record},
      {"print", &Session::print},
      {"release_values", &Session::release_values},
      {"forget", &Session::forget},
      {"match_captured", &Session::match_captured},
  };
  return table;
}

Result<Json> Session::call(const std::string& method, const Json& request) {
  const auto found = methods().find(method);
  if (found == methods().end())
    return Error{"session: expected a known method, found '" + method + "'"};
  return (this->*found->second)(request);
}

Result<Json> Session::self_check(const Json&) {
  OPFUSE_TRY_STATUS(torch_bridge::self_check());
  return Json{{"ok", true}, {"torch", OPFUSE_TORCH_VERSION}};
}

Result<Json> Session::open(const Json& config) {
  OPFUSE_TRY(rulebook_,
             match::load_rulebook(strings(config, "rules"), graph::SchemaTable::builtin()));
  config_ = config;
  opened_ = true;
  return Json::object();
}

Result<Json> Session::record_start(const Json& request) {
  RecorderOptions options;
  options.values = get_or(request, "values", false);
  options.max_snapshot_bytes = get_or<int64_t>(config_, "verify_memory_bytes", -1);
  OPFUSE_TRY_STATUS(start_recording(options));
  return Json::object();
}

Result<Json> Session::record_stop(const Json&) {
  OPFUSE_TRY(std::unique_ptr<Record> record, stop_recording());
  const int id = next_record_++;
  Step& step = steps_[id];
  step.record = std::move(record);
  Json codes = Json::array();
  for (const CodeObject& object : code_objects(*step.record))
    codes.push_back({{"code", object.code},
                     {"pointer", reinterpret_cast<uintptr_t>(object.pointer)},
                     {"lasti", object.lasti}});
  // Dispatcher calls at every level; `find` counts the leaves.
  const auto& events = step.record->table.events;
  const auto calls = std::count_if(events.begin(), events.end(), [](const trace::EventRow& event) {
    return event.kind == trace::EventKind::kOperator;
  });
  return Json{{"record", id},
              {"calls", calls},
              {"seconds", step.record->seconds},
              {"events", step.record->table.events.size()},
              {"complete", step.record->complete},
              {"losses", step.record->table.losses},
              {"with_values", step.record->with_values},
              {"declined", step.record->declined},
              {"snapshot_bytes", step.record->snapshot_bytes},
              {"codes", codes}};
}

Result<Json> Session::record_abandon(const Json&) {
  abandon_recording();
  return Json::object();
}

Result<Session::Step*> Session::step(const Json& request, const char* key) {
  const int id = get_or(request, key, 0);
  const auto found = steps_.find(id);
  if (found == steps_.end())
    return Error{std::string(key) + ": expected the number of a record, found " +
                 std::to_string(id)};
  return &found->second;
}

Result<Json> Session::set_positions(const Json& request) {
  OPFUSE_TRY(Step * step, this->step(request));
  // co_positions() gives None where it does not know.
  const auto number = [](const Json& cell) { return cell.is_number() ? cell.get<int32_t>() : -1; };
  std::vector<CodeDescription> all;
  for (const Json& code : request.at("codes")) {
    CodeDescription description;
    description.code = code.at("code").get<int32_t>();
    description.file = code.at("file").get<std::string>();
    description.qualname = code.at("qualname").get<std::string>();
    for (const Json& row : code.at("positions"))
      description.positions.push_back({number(row.at(0)), number(row.at(1)), number(row.at(2)),
                                       number(row.at(3)), number(row.at(4))});
    all.push_back(std::move(description));
  }
  set_code_positions(step->record.get(), all);
  step->analysis.reset();
  return Json::object();
}

Result<Json> Session::set_labels(const Json& request) {
  OPFUSE_TRY(Step * step, this->step(request));
  std::vector<std::pair<const void*, std::string>> labels;
  for (const Json& row : request.at("storages"))
    labels.emplace_back(reinterpret_cast<const void*>(row.at(0).get<uintptr_t>()),
                        row.at(1).get<std::string>());
  set_storage_labels(step->record.get(), labels);
  step->analysis.reset();
  return Json::object();
}

Result<Analysis*> Session::analysis_of(Step* step) {
  if (!step->analysis) {
    OPFUSE_TRY(Analysis analysis,
               analyze(step->record->table, &step->record->extra_schemas, rulebook_, &log_));
    select_sites(&analysis, strings(config_, "only"), strings(config_, "exclude"));
    step->analysis = std::make_unique<Analysis>(std::move(analysis));
  }
  return step->analysis.get();
}

Result<Json> Session::find(const Json& request) {
  OPFUSE_TRY(Step * step, this->step(request));
  OPFUSE_TRY(Analysis * analysis, analysis_of(step));
  const auto [low_precision, low_precision_ms] = low_precision_of(analysis->graph);
  return Json{
      {"operators", analysis->graph.nodes.size()},  {"low_precision", low_precision},
      {"low_precision_ms", low_precision_ms},       {"sites", sites_json(*analysis)},
      {"near_misses", near_misses_json(*analysis)}, {"candidates", candidates_json(*analysis)}};
}

Result<Json> Session::plan(const Json& request) {
  OPFUSE_TRY(Step * step, this->step(request));
  OPFUSE_TRY(Analysis * analysis, analysis_of(step));
  std::vector<rewrite::SiteFacts> facts;
  for (const Json& row : request.at("facts")) {
    OPFUSE_TRY(rewrite::SiteFacts one,
               rewrite::parse_facts(row.dump(-1, ' ', false, Json::error_handler_t::replace)));
    facts.push_back(std::move(one));
  }
  rewrite::PlanOptions options;
  options.target_vendor = get_or<std::string>(config_, "target", "");
  options.strict = get_or(config_, "strict", false);
  options.own_operators = get_or(request, "own_operators", false);
  if (const auto packages = request.find("packages"); packages != request.end())
    packages->get_to(options.packages);
  if (get_or<std::string>(config_, "allow", "E1") == "E0") options.allow = match::Equivalence::kE0;
  if (get_or<std::string>(config_, "allow", "E1") == "E2") options.allow = match::Equivalence::kE2;
  if (!analysis->report.matches.empty()) {
    const graph::ValueId first = analysis->report.matches[0].outputs[0];
    options.device = device_name(analysis->graph.values[first].meta.device);
  }
  plan_ = rewrite::make_plan(analysis->graph, analysis->report, analysis->sites, facts, options);
  planned_record_ = get_or(request, "record", 0);
  site_keys_.clear();
  site_calls_.clear();
  for (const auto& site : analysis->sites) {
    site_keys_[site.id] = site_key(*analysis, site);
    site_calls_[site.id] = static_cast<int>(site.matches.size());
  }
  OPFUSE_TRY(Json answer, plan_answer(facts));
  answer["sites"] = planned_sites_json(*analysis, plan_);
  return answer;
}

Result<Json> Session::load_plan(const Json& request) {
  const std::string path = get_or<std::string>(request, "path", "");
  OPFUSE_TRY(std::string text, read_text(path));
  Result<rewrite::Plan> plan = rewrite::plan_from_json(text);
  if (!plan.ok()) return Error{path + ": " + plan.error().message};
  plan_ = std::move(plan.value());
  std::map<std::string, rewrite::SiteFacts> facts;
  for (const auto& replacement : plan_.replacements)
    for (const auto& edit : replacement.edits) {
      rewrite::SiteFacts& one = facts[edit.file];
      if (!one.file.empty()) continue;
      OPFUSE_TRY(one.text, read_text(edit.file));
      one.file = edit.file;
      if (sha256_hex(one.text) != edit.sha256)
        return Error{edit.file +
                     ": changed since the plan was made (sha256 differs); run `opfuse tune` again"};
    }
  std::vector<rewrite::SiteFacts> list;
  for (auto& [file, one] : facts) list.push_back(std::move(one));
  OPFUSE_TRY(Json answer, plan_answer(list));
  answer["sites"] = planned_sites_json(plan_);
  return answer;
}

Result<Json> Session::plan_answer(const std::vector<rewrite::SiteFacts>& facts) {
  std::map<std::string, const rewrite::SiteFacts*> by_file;
  for (const auto& one : facts) by_file.emplace(one.file, &one);
  const std::string cwd = get_or<std::string>(config_, "cwd", "");
  Json memory = Json::array(), diffs = Json::array();
  std::map<std::string, bool> diffed;
  for (const auto& replacement : plan_.replacements) {
    const auto found = by_file.find(replacement.file);
    if (found == by_file.end())
      return Error{"plan: expected facts about " + replacement.file + ", found none"};
    const std::string& text = found->second->text;
    OPFUSE_TRY(std::string running, rewrite::apply_edits(text, plan_, replacement.file, true));
    OPFUSE_TRY(std::string edited, rewrite::apply_edits(text, plan_, replacement.file, false));
    memory.push_back({{"site", replacement.site},
                      {"file", replacement.file},
                      {"module", replacement.module},
                      {"qualname", replacement.qualname},
                      {"text", running},
                      {"source_text", edited},
                      {"global_name", replacement.global_name},
                      {"python_target", replacement.python_target},
                      {"calls", replacement.calls}});
    if (diffed.emplace(replacement.file, true).second == false) continue;
    const std::string path = relative_path(replacement.file, cwd);
    diffs.push_back({{"file", replacement.file},
                     {"package", replacement.package},
                     {"module", replacement.module},
                     {"before_sha256", sha256_hex(text)},
                     {"diff", rewrite::unified_diff(path, text, edited)},
                     {"after", edited},
                     {"verified", replacement.verified}});
  }
  return Json{{"plan", Json::parse(rewrite::plan_to_json(plan_))},
              {"hash", rewrite::plan_hash(plan_)},
              {"memory", memory},
              {"diffs", diffs},
              {"patch_module", rewrite::patch_module(plan_)}};
}

Result<Json> Session::ab_open(const Json& request) {
  verify::AbOptions options;
  options.max_steps = get_or(config_, "budget_steps", options.max_steps);
  options.max_seconds = get_or(config_, "budget_seconds", options.max_seconds);
  options.headline_pairs = get_or(config_, "headline_pairs", options.headline_pairs);
  options.seed = get_or<uint64_t>(request, "seed", options.seed);
  options.candidates = get_or(request, "candidates", options.candidates);
  ab_.emplace(options);
  samples_.clear();
  return Json::object();
}

Result<Json> Session::ab_add(const Json& request) {
  if (!ab_) return Error{"ab_add: expected ab_open first"};
  verify::StepSample sample;
  sample.replaced = get_or(request, "replaced", false);
  sample.wall_s = get_or(request, "wall", 0.0);
  sample.cpu_s = get_or(request, "cpu", 0.0);
  sample.data_s = get_or(request, "data", 0.0);
  sample.step = get_or<int64_t>(request, "step", 0);
  const auto signature = request.find("signature");
  if (signature != request.end() && signature->is_string())
    sample.signature = std::hash<std::string>{}(signature->get<std::string>());
  ab_->add(sample);
  samples_.push_back(sample);
  return Json::object();
}

Result<Json> Session::ab_discard(const Json&) {
  if (!ab_) return Error{"ab_discard: expected ab_open first"};
  ab_->discard();
  return Json::object();
}

Result<Json> Session::ab_next(const Json&) {
  if (!ab_) return Error{"ab_next: expected ab_open first"};
  const bool replaced = ab_->next();
  const verify::RatioInterval ratio =
      ab_->phase() == verify::AbPhase::kChoosing ? ab_->choosing_wall() : ab_->headline_wall();
  return Json{{"replaced", replaced},
              {"phase", phase_name(ab_->phase())},
              {"outcome", outcome_name(ab_->outcome())},
              {"done", ab_->counted_steps()},
              {"total", get_or(config_, "budget_steps", 64)},
              {"ratio", ratio.ratio},
              {"low", ratio.low},
              {"high", ratio.high},
              {"pairs", ratio.pairs}};
}

Result<Json> Session::ab_state(const Json&) {
  if (!ab_) return Error{"ab_state: expected ab_open first"};
  return ab_json(*ab_, samples_);
}

Result<Json> Session::write_record(const Json& request) {
  OPFUSE_TRY(Step * step, this->step(request));
  if (const std::string path = get_or<std::string>(request, "ofr", ""); !path.empty())
    OPFUSE_TRY_STATUS(trace::write_record(step->record->table, path));
  if (const std::string path = get_or<std::string>(request, "trace", ""); !path.empty()) {
    trace::ChromeOptions options;
    if (opened_) {
      OPFUSE_TRY(Analysis * analysis, analysis_of(step));
      options.marks = chain_marks(*analysis);
    }
    OPFUSE_TRY_STATUS(trace::write_chrome_trace(step->record->table, options, path));
  }
  return Json::object();
}

Result<Json> Session::print(const Json& request) {
  OPFUSE_TRY(Step * step, this->step(request));
  OPFUSE_TRY(Analysis * analysis, analysis_of(step));
  if (!get_or(request, "rewritten", false))
    return Json{{"text", graph::print_graph(analysis->graph)}};
  OPFUSE_TRY(rewrite::Plan plan, plan_for(*analysis));
  OPFUSE_TRY(rewrite::MatchTraces traces, traces_of(*step, plan));
  return Json{{"text", graph::print_graph(rewrite::rewrite_graph(analysis->graph, analysis->report,
                                                                 analysis->sites, plan, traces))}};
}

Result<Json> Session::release_values(const Json& request) {
  OPFUSE_TRY(Step * step, this->step(request));
  Record& record = *step->record;
  record.with_values = false;
  record.snapshot_bytes = 0;
  std::vector<at::Tensor>().swap(record.snapshots);
  std::vector<Call>().swap(record.calls);
  return Json::object();
}

Result<Json> Session::forget(const Json& request) {
  steps_.erase(get_or(request, "record", 0));
  return Json::object();
}

}  // namespace opfuse::torch_bridge
