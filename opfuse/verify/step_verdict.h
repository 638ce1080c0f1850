#pragma once
// The whole step, by replay: the recorded step replays exactly (every hash), then in fp64 the
// rewritten step is compared with the original against floors (the original with its externals
// moved by 1 ulp), then in the run's dtype. Works on any Evaluator. Values are named by the
// original graph; a rewritten graph keeps the ValueIds of what it did not touch.

#include <memory>
#include <string>
#include <vector>

#include "opfuse/graph/graph.h"
#include "opfuse/verify/evaluator.h"
#include "opfuse/verify/verdict.h"

namespace opfuse::verify {

enum class OutputKind : uint8_t { kLoss, kGradient, kState };

// A value by which a step is judged.
struct StepOutput {
  std::string name;  // "loss", "grad of fc.weight", "param:fc.weight", "buffer:bn.running_mean"
  OutputKind kind = OutputKind::kState;
  graph::ValueId value = graph::kNone;
};

// The loss (what backward starts from), every gradient that reaches a leaf, and the last value of
// every external storage that the step writes; without a backward pass, the step's last results.
std::vector<StepOutput> step_outputs(const graph::Graph& graph);

// A floor only grows with the replays that make it, so the step is judged after each and accepted
// by the first that suffices: further replays could not change that verdict. Leaving some out
// errs towards refusal.
struct StepProofOptions {
  double accept_floors = 8;  // 16 for a change of layout
  // Errors in fp64 below this many roundoffs of a tensor's own norm are rounding whatever the floor
  // says: a tensor that three perturbed replays happen to leave alone has a floor of zero.
  double fp64_own_roundoffs = 4;
  // The total gradient error is one draw from the distribution that the floors are drawn from: this
  // much larger is still rounding.
  double gradient_tolerance = 1.5;
  int fp64_floor_replays = 3;
  int run_floor_replays = 3;
  // Stands for the rewritten step in fp64, where some target has no kernel for it: there its chain
  // stays as it was. The target is then judged by its site's proof and in the run's dtype.
  const graph::Graph* rewritten_fp64 = nullptr;
  double seconds = 1e9;  // no further floor replays when the proof has taken this long
};

// The options of the first replay: exact, every hash checked, the values to compare kept.
ReplayOptions exact_replay_options(const graph::Graph& original);

// `exact` is the evaluation of the original with exact_replay_options where the caller has it
// already; without it the proof makes its own.
StepVerdict prove_step(Evaluator& evaluator, const graph::Graph& original,
                       const graph::Graph& rewritten, const StepProofOptions& options = {},
                       std::unique_ptr<Evaluation> exact = nullptr);

}  // namespace opfuse::verify
