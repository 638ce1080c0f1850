#pragma once
// Session: what libopfuse_torch.so keeps between calls from Python: records, their analyses, the
// plan, the running A/B test. One per process. Every method takes and gives JSON
// (docs/architecture.md); an Error becomes {"error": "…"} and changes nothing that was there.

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "opfuse/base/result.h"
#include "opfuse/match/rule.h"
#include "opfuse/pipeline.h"
#include "opfuse/rewrite/plan.h"
#include "opfuse/torch/record.h"
#include "opfuse/torch/replay.h"
#include "opfuse/torch/target_trace.h"
#include "opfuse/verify/statistics.h"

namespace opfuse::torch_bridge {

using Json = nlohmann::ordered_json;

class Session {
 public:
  Result<Json> call(const std::string& method, const Json& request);

 private:
  using Method = Result<Json> (Session::*)(const Json&);
  static const std::map<std::string, Method>& methods();

  struct Step {  // one recorded step
    std::unique_ptr<Record> record;
    std::unique_ptr<Analysis> analysis;  // made on first use
  };

  Result<Json> self_check(const Json&);
  Result<Json> open(const Json& config);
  Result<Json> record_start(const Json& request);
  Result<Json> record_stop(const Json&);
  Result<Json> record_abandon(const Json&);
  Result<Json> set_positions(const Json& request);
  Result<Json> set_labels(const Json& request);
  Result<Json> find(const Json& request);
  Result<Json> plan(const Json& request);
  Result<Json> load_plan(const Json& request);
  Result<Json> prove(const Json& request);
  // {record, seconds} -> the verdict on the recorded step with its weights in channels_last.
  Result<Json> prove_layout(const Json& request);
  Result<Json> validate(const Json& request);
  Result<Json> ab_open(const Json& request);
  Result<Json> ab_add(const Json& request);
  Result<Json> ab_discard(const Json&);
  Result<Json> ab_next(const Json&);
  Result<Json> ab_state(const Json&);
  Result<Json> write_record(const Json& request);
  Result<Json> print(const Json& request);
  // Drops what only a replay reads; the graph stays.
  Result<Json> release_values(const Json& request);
  Result<Json> forget(const Json& request);
  // {text, rules, device, allow} -> the chains of a captured graph (session_captured.cc).
  Result<Json> match_captured(const Json& request);

  // What replays of the record may use beside its snapshots.
  ReplayLimits replay_limits(const Record& record) const;
  Result<Step*> step(const Json& request, const char* key = "record");
  Result<Analysis*> analysis_of(Step* step);
  // The plan with its site ids as `analysis` numbers them; an error names a site that is not there.
  Result<rewrite::Plan> plan_for(const Analysis& analysis) const;
  // What the targets of a planned site run here, where their rule does not say it.
  Status trace_site(const Step& step, const rewrite::Replacement& replacement,
                    rewrite::MatchTraces* traces);
  Result<rewrite::MatchTraces> traces_of(const Step& step, const rewrite::Plan& plan);
  Result<Json> plan_answer(const std::vector<rewrite::SiteFacts>& facts);

  Json config_ = Json::object();
  match::Rulebook rulebook_;
  std::optional<match::Rulebook> captured_rulebook_;  // of the last call of match_captured
  std::vector<std::string> captured_rules_;
  bool opened_ = false;
  int next_record_ = 1;
  std::map<int, Step> steps_;
  rewrite::Plan plan_;
  std::map<int, std::string> site_keys_;  // of the record the plan was made from
  std::map<int, int> site_calls_;
  int planned_record_ = 0;
  std::optional<verify::AbTest> ab_;
  std::vector<verify::StepSample> samples_;
  TargetTracer tracer_;
  StageLog log_;
};

}  // namespace opfuse::torch_bridge
