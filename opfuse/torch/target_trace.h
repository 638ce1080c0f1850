#pragma once
// Runs a target once on tensors like those of a match and records which operators that are,
// forward and backward: what the rewritten graph of a step must hold in the match's place.

#include <map>
#include <memory>
#include <string>

#include "opfuse/base/result.h"
#include "opfuse/graph/graph.h"
#include "opfuse/match/match.h"
#include "opfuse/rewrite/plan.h"
#include "opfuse/torch/record.h"

namespace opfuse::torch_bridge {

// Targets whose rule names the one backward operator need no trace.
bool needs_trace(const match::Rule& rule, const match::Target& target);

// Traces of one session: calls that differ in nothing that the target sees share one. Records, so
// no recording may be under way.
class TargetTracer {
 public:
  // An error says what the target does that cannot stand in the match's place.
  Result<rewrite::MatchTrace> trace(const Record& record, const graph::Graph& graph,
                                    const match::Match& match, const match::Target& target);

 private:
  std::map<std::string, std::shared_ptr<const rewrite::TargetTrace>> known_;
};

}  // namespace opfuse::torch_bridge
