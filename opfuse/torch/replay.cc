#include "opfuse/torch/replay.h"

#include "opfuse/torch/replay_allocator.h"
#include "opfuse/torch/replay_run.h"

namespace opfuse::torch_bridge {
namespace {

class AtenEvaluator final : public verify::Evaluator {
 public:
  AtenEvaluator(const Record& record, const ReplayLimits& limits)
      : record_(record), limits_(limits) {}
  ~AtenEvaluator() override { trim_replay_memory(); }

  Result<std::unique_ptr<verify::Evaluation>> replay(
      const graph::Graph& graph, const verify::ReplayOptions& options) override {
    if (options.magnitude)
      return Error{"replay: expected a site's chain for magnitudes, found a whole step"};
    OPFUSE_TRY(std::unique_ptr<verify::Evaluation> run,
               run_replay(record_, graph, options, limits_));
    return run;
  }

 private:
  const Record& record_;
  const ReplayLimits limits_;
};

}  // namespace

std::unique_ptr<verify::Evaluator> make_evaluator(const Record& record,
                                                  const ReplayLimits& limits) {
  return std::make_unique<AtenEvaluator>(record, limits);
}

}  // namespace opfuse::torch_bridge
