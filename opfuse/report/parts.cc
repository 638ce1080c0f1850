#include "opfuse/report/parts.h"

namespace opfuse::report {
namespace {

using verify::RatioInterval;
using verify::SiteVerdict;
using verify::StepVerdict;
using verify::TensorError;
using verify::ValidationVerdict;

void read_interval(const Fields& from, const char* key, RatioInterval* to) {
  const auto object = from.object(key);
  if (!object) return;
  object->read("ratio", &to->ratio);
  object->read("low", &to->low);
  object->read("high", &to->high);
  object->read("pairs", &to->pairs);
}

Json json_of(const RatioInterval& interval) {
  return {{"ratio", interval.ratio},
          {"low", interval.low},
          {"high", interval.high},
          {"pairs", interval.pairs}};
}

void read_chain(const Fields& from, const char* key, std::vector<ChainOperator>* to) {
  for (const Fields& fields : from.objects(key)) {
    ChainOperator& op = to->emplace_back();
    fields.read("op", &op.op);
    fields.read("line", &op.line);
    fields.read("column", &op.column);
  }
}

void read_site(const Fields& from, Site* to) {
  from.read("id", &to->id);
  from.read("rule", &to->rule);
  from.read("calls", &to->calls);
  from.read("function_class", &to->function_class);
  if (from.has("found_only")) from.read("found_only", &to->found_only);
  from.read("file", &to->file);
  from.read("line", &to->line);
  from.read("chain_file", &to->chain_file);
  from.read("chain_line", &to->chain_line);
  from.read("now", &to->now);
  from.read("becomes", &to->becomes);
  from.read("target", &to->target);
  from.read("equivalence", &to->equivalence);
  from.read("domain", &to->domain);
  from.read("forward_ms", &to->forward_ms);
  from.read("backward_ms", &to->backward_ms);
  from.read("kept", &to->kept);
  from.read("source", &to->source);
  from.read("source_first_line", &to->source_first_line);
  from.read("chain_source", &to->chain_source);
  from.read("chain_source_first_line", &to->chain_source_first_line);
  read_chain(from, "operators", &to->operators);
  read_chain(from, "backward_operators", &to->backward_operators);
  if (const auto refusal = from.object("refusal")) {
    to->refusal.emplace();
    refusal->read("row", &to->refusal->row);
    refusal->read("reason", &to->refusal->reason);
    refusal->read("node", &to->refusal->node);
  }
  std::map<std::string, int64_t> shapes;
  read_counts(from, "shapes", &shapes);
  for (const auto& [shape, count] : shapes) to->shapes[shape] = static_cast<int>(count);
}

// "chain_columns": [17, 37]
void read_columns(const Fields& from, Site* to) {
  if (!from.has("chain_columns")) return;
  std::vector<int> columns;
  from.read("chain_columns", &columns);
  if (columns.size() != 2) return from.expected("chain_columns", "two columns");
  to->chain_column = columns[0];
  to->chain_end_column = columns[1];
}

void read_errors(const Fields& from, const char* key, std::vector<TensorError>* to) {
  for (const Fields& fields : from.objects(key)) {
    TensorError& error = to->emplace_back();
    fields.read("what", &error.what);
    fields.read("elements", &error.elements);
    fields.read("same_function", &error.same_function);
    fields.read("error_old", &error.error_old);
    fields.read("error_new", &error.error_new);
    fields.read("excess", &error.excess);
    fields.read("nonfinite_differences", &error.nonfinite_differences);
    fields.read("mended", &error.mended);
  }
}

void read_step_verdict(const Fields& from, StepVerdict* to) {
  from.read("replayed_exactly", &to->replayed_exactly);
  from.read("values_checked", &to->values_checked);
  from.read("values_wrong", &to->values_wrong);
  from.read("first_wrong", &to->first_wrong);
  from.read("cut_points", &to->cut_points);
  from.read("fp64_floors", &to->fp64_floors);
  from.read("run_floors", &to->run_floors);
  from.read("floor_replays", &to->floor_replays);
  from.read("worst_tensor", &to->worst_tensor);
  from.read("gradient_error_old", &to->gradient_error_old);
  from.read("gradient_error_new", &to->gradient_error_new);
  from.read("accepted", &to->accepted);
  from.read("reason", &to->reason);
}

Json json_of(const StepVerdict& step) {
  return {{"replayed_exactly", step.replayed_exactly},
          {"values_checked", step.values_checked},
          {"values_wrong", step.values_wrong},
          {"first_wrong", step.first_wrong},
          {"cut_points", step.cut_points},
          {"fp64_floors", step.fp64_floors},
          {"run_floors", step.run_floors},
          {"floor_replays", step.floor_replays},
          {"worst_tensor", step.worst_tensor},
          {"gradient_error_old", step.gradient_error_old},
          {"gradient_error_new", step.gradient_error_new},
          {"accepted", step.accepted},
          {"reason", step.reason}};
}

void read_validation(const Fields& from, ValidationVerdict* to) {
  from.read("accepted", &to->accepted);
  from.read("operators_equal", &to->operators_equal);
  from.read("sites_replaced", &to->sites_replaced);
  from.read("backward_replaced", &to->backward_replaced);
  from.read("reason", &to->reason);
  from.read("attempts", &to->attempts);
}

Json json_of(const ValidationVerdict& validation) {
  return {{"accepted", validation.accepted},
          {"operators_equal", validation.operators_equal},
          {"sites_replaced", validation.sites_replaced},
          {"backward_replaced", validation.backward_replaced},
          {"reason", validation.reason},
          {"attempts", validation.attempts}};
}

}  // namespace

Json json_of(const ChainOperator& op) {
  return {{"op", op.op}, {"line", op.line}, {"column", op.column}};
}

Json json_of(const TensorError& error) {
  return {{"what", error.what},
          {"elements", error.elements},
          {"same_function", error.same_function},
          {"error_old", error.error_old},
          {"error_new", error.error_new},
          {"excess", error.excess},
          {"nonfinite_differences", error.nonfinite_differences},
          {"mended", error.mended}};
}

Json json_of(const SiteVerdict& site) {
  return {{"site", site.site},
          {"accepted", site.accepted},
          {"reason", site.reason},
          {"input_set", site.input_set},
          {"captured", json_array(site.captured)},
          {"generated", json_array(site.generated)},
          {"captured_calls", site.captured_calls},
          {"generated_cases", site.generated_cases}};
}

void read_costs(const Fields& from, Costs* to) {
  from.read("plain_step_s", &to->plain_step_s);
  from.read("record_s", &to->record_s);
  from.read("values_s", &to->values_s);
  from.read("find_s", &to->find_s);
  from.read("facts_s", &to->facts_s);
  from.read("prove_s", &to->prove_s);
  from.read("validate_s", &to->validate_s);
  from.read("total_in_plain_steps", &to->total_in_plain_steps);
  from.read("memory_peak_mb", &to->memory_peak_mb);
}

Json json_of(const Costs& costs) {
  return {{"plain_step_s", costs.plain_step_s},
          {"record_s", costs.record_s},
          {"values_s", costs.values_s},
          {"find_s", costs.find_s},
          {"facts_s", costs.facts_s},
          {"prove_s", costs.prove_s},
          {"validate_s", costs.validate_s},
          {"total_in_plain_steps", costs.total_in_plain_steps},
          {"memory_peak_mb", costs.memory_peak_mb}};
}

void read_speed(const Fields& from, Speed* to) {
  from.read("phase", &to->phase);
  from.read("outcome", &to->outcome);
  read_interval(from, "choosing", &to->choosing);
  read_interval(from, "headline_wall", &to->headline_wall);
  read_interval(from, "headline_cpu", &to->headline_cpu);
  from.read("old_step_s", &to->old_step_s);
  from.read("new_step_s", &to->new_step_s);
  from.read("counted_steps", &to->counted_steps);
}

Json json_of(const Speed& speed) {
  return {{"phase", speed.phase},
          {"outcome", speed.outcome},
          {"choosing", json_of(speed.choosing)},
          {"headline_wall", json_of(speed.headline_wall)},
          {"headline_cpu", json_of(speed.headline_cpu)},
          {"old_step_s", speed.old_step_s},
          {"new_step_s", speed.new_step_s},
          {"counted_steps", speed.counted_steps}};
}

// A process writes a lever's times as "ab", a report as "speed".
void read_levers(const Fields& from, const char* key, std::vector<Lever>* to) {
  for (const Fields& fields : from.objects(key)) {
    Lever& lever = to->emplace_back();
    fields.read("name", &lever.name);
    fields.read("what", &lever.what);
    fields.read("outcome", &lever.outcome);
    fields.read("reason", &lever.reason);
    fields.read("kept", &lever.kept);
    fields.read("lines", &lever.lines);
    fields.read("where", &lever.where);
    fields.read("prepare_s", &lever.prepare_s);
    for (const char* name : {"ab", "speed"})
      if (fields.has(name))
        if (const auto speed = fields.object(name)) read_speed(*speed, &lever.speed);
  }
}

Json json_of(const Lever& lever) {
  return {
      {"name", lever.name},     {"what", lever.what},           {"outcome", lever.outcome},
      {"reason", lever.reason}, {"kept", lever.kept},           {"lines", lever.lines},
      {"where", lever.where},   {"prepare_s", lever.prepare_s}, {"speed", json_of(lever.speed)}};
}

void read_versus(const Fields& from, Versus* to) {
  from.read("name", &to->name);
  from.read("backend", &to->backend);
  from.read("outcome", &to->outcome);
  from.read("reason", &to->reason);
  from.read("first_step_s", &to->first_step_s);
  from.read("plain_step_s", &to->plain_step_s);
  for (const char* name : {"ab", "speed"})
    if (from.has(name))
      if (const auto speed = from.object(name)) read_speed(*speed, &to->speed);
}

Json json_of(const Versus& versus) {
  return {{"name", versus.name},
          {"backend", versus.backend},
          {"outcome", versus.outcome},
          {"reason", versus.reason},
          {"first_step_s", versus.first_step_s},
          {"plain_step_s", versus.plain_step_s},
          {"speed", json_of(versus.speed)}};
}

void read_sites(const Fields& from, const char* key, std::vector<Site>* to) {
  for (const Fields& fields : from.objects(key)) {
    Site& site = to->emplace_back();
    read_site(fields, &site);
    read_columns(fields, &site);
  }
}

Json json_of(const Site& site) {
  Json json = {{"id", site.id},
               {"rule", site.rule},
               {"calls", site.calls},
               {"function_class", site.function_class},
               {"found_only", site.found_only},
               {"file", site.file},
               {"line", site.line},
               {"chain_file", site.chain_file},
               {"chain_line", site.chain_line},
               {"chain_columns", {site.chain_column, site.chain_end_column}},
               {"now", site.now},
               {"becomes", site.becomes},
               {"target", site.target},
               {"equivalence", site.equivalence},
               {"domain", site.domain},
               {"forward_ms", site.forward_ms},
               {"backward_ms", site.backward_ms},
               {"operators", json_array(site.operators)},
               {"backward_operators", json_array(site.backward_operators)},
               {"refusal", nullptr},
               {"kept", nullptr},
               {"shapes", Json::object()},
               {"source", site.source},
               {"source_first_line", site.source_first_line},
               {"chain_source", site.chain_source},
               {"chain_source_first_line", site.chain_source_first_line}};
  if (site.refusal)
    json["refusal"] = {
        {"row", site.refusal->row}, {"reason", site.refusal->reason}, {"node", site.refusal->node}};
  if (site.kept) json["kept"] = *site.kept;
  for (const auto& [shape, calls] : site.shapes) json["shapes"][shape] = calls;
  return json;
}

void read_near_misses(const Fields& from, const char* key, std::vector<NearMiss>* to) {
  for (const Fields& fields : from.objects(key)) {
    NearMiss& miss = to->emplace_back();
    fields.read("rule", &miss.rule);
    fields.read("reason", &miss.reason);
    fields.read("file", &miss.file);
    fields.read("line", &miss.line);
    fields.read("column", &miss.column);
    fields.read("row", &miss.row);
    fields.read("calls", &miss.calls);
    fields.read("operators", &miss.operators);
  }
}

Json json_of(const NearMiss& miss) {
  return {{"rule", miss.rule},   {"reason", miss.reason},      {"file", miss.file},
          {"line", miss.line},   {"column", miss.column},      {"row", miss.row},
          {"calls", miss.calls}, {"operators", miss.operators}};
}

void read_verdict(const Fields& from, verify::Verdict* to) {
  for (const Fields& fields : from.objects("sites")) {
    SiteVerdict& site = to->sites.emplace_back();
    fields.read("site", &site.site);
    fields.read("accepted", &site.accepted);
    fields.read("reason", &site.reason);
    fields.read("input_set", &site.input_set);
    read_errors(fields, "captured", &site.captured);
    read_errors(fields, "generated", &site.generated);
    fields.read("captured_calls", &site.captured_calls);
    fields.read("generated_cases", &site.generated_cases);
  }
  if (const auto step = from.object("step")) read_step_verdict(*step, &to->step);
  if (const auto validation = from.object("validation"))
    read_validation(*validation, &to->validation);
}

Json json_of(const verify::Verdict& verdict) {
  return {{"sites", json_array(verdict.sites)},
          {"step", json_of(verdict.step)},
          {"validation", json_of(verdict.validation)}};
}

void read_steps(const Fields& from, const char* key, std::vector<StepTime>* to) {
  for (const Fields& fields : from.objects(key)) {
    StepTime& step = to->emplace_back();
    fields.read("step", &step.step);
    fields.read("wall", &step.wall_s);
    fields.read("data", &step.data_s);
    fields.read("cpu", &step.cpu_s);
    fields.read("side", &step.side);
  }
}

Json json_of(const StepTime& step) {
  return {{"step", step.step},
          {"wall", step.wall_s},
          {"data", step.data_s},
          {"cpu", step.cpu_s},
          {"side", step.side}};
}

void read_events(const Fields& from, const char* key, std::vector<Event>* to) {
  for (const Fields& fields : from.objects(key)) {
    Event& event = to->emplace_back();
    fields.read("t", &event.t);
    fields.read("step", &event.step);
    fields.read("phase", &event.phase);
    fields.read("text", &event.text);
  }
}

Json json_of(const Event& event) {
  return {{"t", event.t}, {"step", event.step}, {"phase", event.phase}, {"text", event.text}};
}

void read_diffs(const Fields& from, const char* key, std::vector<Diff>* to) {
  for (const Fields& fields : from.objects(key)) {
    Diff& diff = to->emplace_back();
    fields.read("file", &diff.file);
    fields.read("package", &diff.package);
    fields.read("module", &diff.module);
    fields.read("before_sha256", &diff.before_sha256);
    fields.read("diff", &diff.diff);
    fields.read("after", &diff.after);
    fields.read("verified", &diff.verified);
  }
}

Json json_of(const Diff& diff) {
  return {{"file", diff.file},        {"package", diff.package},
          {"module", diff.module},    {"before_sha256", diff.before_sha256},
          {"diff", diff.diff},        {"after", diff.after},
          {"verified", diff.verified}};
}

void read_counts(const Fields& from, const char* key, std::map<std::string, int64_t>* to) {
  const auto object = from.object(key);
  if (!object) return;
  for (const auto& [name, value] : from.entries(key)) object->read(name.c_str(), &(*to)[name]);
}

void read_texts(const Fields& from, const char* key, std::map<std::string, std::string>* to) {
  const auto object = from.object(key);
  if (!object) return;
  for (const auto& [name, value] : from.entries(key)) object->read(name.c_str(), &(*to)[name]);
}

}  // namespace opfuse::report
