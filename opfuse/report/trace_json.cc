#include <nlohmann/json.hpp>

#include "opfuse/report/parts.h"
#include "opfuse/report/secrets.h"
#include "opfuse/report/trace_report.h"

namespace opfuse::report {
namespace {

constexpr int kVersion = 1;

Json range_json(const Range& range) {
  return {{"low", range.low}, {"mid", range.mid}, {"high", range.high}};
}

Json step_json(const StepPrediction& step) {
  if (!step.known) return nullptr;
  return {{"recorded_ns", step.recorded_ns},
          {"replayed_ns", step.replayed_ns},
          {"error", step.error},
          {"before_file_ns", step.before_file_ns},
          {"host_alone_ns", step.host_alone_ns},
          {"device_alone_ns", step.device_alone_ns},
          {"predicted_gain_ns", range_json(step.gain_ns)}};
}

Json finding_json(const TraceFinding& f) {
  Json json = {{"rule", f.rule},
               {"target", f.target},
               {"calls", f.calls},
               {"backward", f.backward},
               {"module", mask_text(f.module)},
               {"source", mask_text(f.source)},
               {"region", mask_text(f.region)},
               {"shapes", f.shapes},
               {"operators", f.operators},
               {"proof", "P" + std::to_string(static_cast<int>(f.proof))},
               {"proof_raised_by", f.raised_by},
               {"conditions", f.conditions},
               {"now_ns", f.price.now_ns},
               {"launches", f.price.launches}};
  if (f.priced)
    json["predicted_ns"] = {
        {"low", f.price.low_ns}, {"mid", f.price.mid_ns}, {"high", f.price.high_ns}};
  if (f.backward_calls > 0) {
    json["backward_calls"] = f.backward_calls;
    json["backward_now_ns"] = f.backward_price.now_ns;
    json["backward_launches"] = f.backward_price.launches;
    if (f.backward_price.known)
      json["predicted_backward_ns"] = {{"low", f.backward_price.low_ns},
                                       {"mid", f.backward_price.mid_ns},
                                       {"high", f.backward_price.high_ns}};
  }
  if (f.priced) json["predicted_step_gain_ns"] = range_json(f.step_gain_ns);
  if (!f.refusal.empty()) json["refusal"] = f.refusal;
  return json;
}

Json operators_json(const std::vector<OperatorTime>& operators) {
  Json list = Json::array();
  for (const OperatorTime& op : operators)
    list.push_back({{"name", op.name}, {"calls", op.calls}, {"time_ns", op.time_ns}});
  return list;
}

Json losses_json(const trace::LossLog& losses) {
  Json list = Json::array();
  for (trace::LossKind kind : losses.present()) {
    const trace::LossInfo& info = trace::loss_info(kind);
    static constexpr const char* kSeverity[] = {"note", "repair", "loss"};
    Json entry = {{"name", info.name},
                  {"severity", kSeverity[static_cast<size_t>(info.severity)]},
                  {"count", losses.count(kind)},
                  {"text", info.text}};
    if (losses.of(kind).first_offset >= 0) entry["first_byte"] = losses.of(kind).first_offset;
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace

std::string trace_json(const TraceReport& r) {
  Json findings = Json::array(), refused = Json::array();
  for (const TraceFinding& finding : r.findings) findings.push_back(finding_json(finding));
  for (const TraceFinding& finding : r.refused) refused.push_back(finding_json(finding));
  Json json = {
      {"opfuse_trace_report", kVersion},
      {"path", mask_text(r.path)},
      {"format", r.format},
      {"device", r.device},
      {"rank", r.rank},
      {"events", r.events},
      {"bytes", r.bytes},
      {"span_ns", r.span_ns},
      {"total_ns", r.total_ns},
      {"on_device", r.on_device},
      {"kernels", r.kernels},
      {"orphan_kernels", r.orphan_kernels},
      {"orphan_ns", r.orphan_ns},
      {"busy_share", r.busy_share},
      {"median_queue_ns", r.median_queue_ns},
      {"bound", r.bound},
      {"step", step_json(r.step)},
      {"by_operator_ns", r.by_operator_ns},
      {"by_kernel_ns", r.by_kernel_ns},
      {"steps", r.steps},
      {"edges", {{"P0", r.edges[0]}, {"P1", r.edges[1]}, {"P2", r.edges[2]}, {"P3", r.edges[3]}}},
      {"possible_share", possible_share(r)},
      {"proved_share", possible_share(r, graph::Proof::kP2)},
      {"findings", findings},
      {"refused", refused},
      {"candidates", json_array(r.candidates)},
      {"operators", operators_json(r.operators)},
      {"fused", operators_json(r.fused)},
      {"losses", losses_json(r.losses)},
      {"advice", r.advice}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace opfuse::report
