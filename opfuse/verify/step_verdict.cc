#include "opfuse/verify/step_verdict.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>

#include "opfuse/trace/event_table.h"
#include "opfuse/verify/metrics.h"

namespace opfuse::verify {
namespace {

using graph::Graph;
using graph::kNone;
using graph::Node;
using graph::NodeId;
using graph::ValueId;

// As StepProofOptions::fp64_own_roundoffs, in the run's dtype.
constexpr double kOwnRoundoffs = 4;

std::string storage_name(const Graph& graph, int32_t storage) {
  const std::string& label = graph.storages[storage].label;
  return label.empty() ? "storage " + std::to_string(storage) : label;
}

// "grad of fc.weight" where Python named the storage that holds it, else numbered by arrival.
std::string gradient_name(const Graph& graph, const Node& node, ValueId value, size_t number) {
  constexpr std::string_view kLabel = "grad:";
  std::vector<ValueId> holders = {value};
  holders.insert(holders.end(), node.outputs.begin(), node.outputs.end());
  for (ValueId holder : holders) {
    if (holder == kNone || graph.values[holder].storage == kNone) continue;
    const std::string& label = graph.storages[graph.values[holder].storage].label;
    if (label.starts_with(kLabel)) return "grad of " + label.substr(kLabel.size());
  }
  return "gradient " + std::to_string(number);
}

// Gradients that reach a leaf: what AccumulateGrad is given, in order of arrival.
void add_gradients(const Graph& graph, std::vector<StepOutput>* outputs) {
  std::map<int32_t, size_t> done;  // AccumulateGrad scope -> its output
  for (NodeId id = 0; id < static_cast<NodeId>(graph.nodes.size()); ++id) {
    const int32_t scope = graph::enclosing_scope(graph, id, graph::ScopeKind::kAutogradNode);
    if (scope == kNone || graph.scopes[scope].name.find("AccumulateGrad") == std::string::npos)
      continue;
    const Node& node = graph.nodes[id];
    const bool copies = node.op == "aten.copy_" || node.op.rfind("aten.add", 0) == 0;
    const size_t at = copies ? 1 : 0;
    if (node.op.find("empty_strided") != std::string::npos || at >= node.inputs.size()) continue;
    if (node.inputs[at].values.empty() || node.inputs[at].values[0] == kNone) continue;
    if (!done.emplace(scope, outputs->size()).second) continue;
    const ValueId value = node.inputs[at].values[0];
    outputs->push_back(
        {gradient_name(graph, node, value, done.size()), OutputKind::kGradient, value});
  }
}

// The last value of each external storage that the step writes.
void add_state(const Graph& graph, std::vector<StepOutput>* outputs) {
  std::map<int32_t, ValueId> last;
  for (const Node& node : graph.nodes)
    for (ValueId value : node.written) {
      if (value == kNone) continue;
      const int32_t storage = graph.values[value].storage;
      if (storage != kNone && graph.storages[storage].external) last[storage] = value;
    }
  for (const auto& [storage, value] : last)
    outputs->push_back({storage_name(graph, storage), OutputKind::kState, value});
}

void add_loss(const Graph& graph, std::vector<StepOutput>* outputs) {
  for (const Node& node : graph.nodes) {
    if (node.op != "aten.ones_like" || node.inputs.empty() || node.inputs[0].values.empty())
      continue;
    const ValueId value = node.inputs[0].values[0];
    if (value == kNone || graph.values[value].meta.numel() != 1) continue;
    outputs->push_back({"loss", OutputKind::kLoss, value});
    return;
  }
}

// Without a backward pass: what the step made last and nothing read again. What an operator of a
// rewriting, which no event recorded, gives beside the value that is read (the root of a norm) is
// no result of the step.
void add_last_results(const Graph& graph, std::vector<StepOutput>* outputs) {
  std::vector<bool> read(graph.values.size());
  for (const Node& node : graph.nodes)
    for (const graph::Input& input : node.inputs)
      for (ValueId value : input.values)
        if (value != kNone) read[value] = true;
  for (const Node& node : graph.nodes)
    for (ValueId value : node.outputs) {
      if (value == kNone || read[value] || !is_floating(graph.values[value].meta.dtype)) continue;
      const auto is_read = [&](ValueId other) { return other != kNone && read[other]; };
      if (node.event == kNone && std::ranges::any_of(node.outputs, is_read)) continue;
      outputs->push_back(
          {"result " + std::to_string(outputs->size() + 1), OutputKind::kState, value});
    }
}

// One tensor of one replay against another, and the whole.
struct Differences {
  std::vector<double> norms;
  double gradients = 0;  // Euclidean norm over all gradients
};

class StepProof {
 public:
  StepProof(Evaluator& evaluator, const Graph& original, const Graph& rewritten,
            const StepProofOptions& options, std::unique_ptr<Evaluation> exact)
      : evaluator_(evaluator),
        original_(original),
        rewritten_(rewritten),
        options_(options),
        run_original_(std::move(exact)) {}

  StepVerdict run() {
    const Status status = prove();
    if (!status.ok()) verdict_.reason = status.error().message;
    return verdict_;
  }

 private:
  using Run = std::unique_ptr<Evaluation>;

  Status prove() {
    OPFUSE_TRY_STATUS(prepare());
    OPFUSE_TRY_STATUS(replay_exactly());
    OPFUSE_TRY_STATUS(replay_fp64());
    return replay_run_dtype();
  }

  Status prepare() {
    outputs_ = step_outputs(original_);
    std::vector<StepOutput> others = step_outputs(rewritten_);
    if (outputs_.empty()) return Error{"the step has no loss, gradient or state to compare"};
    if (outputs_.size() != others.size())
      return Error{"the rewritten step has " + std::to_string(others.size()) +
                   " results, expected " + std::to_string(outputs_.size())};
    const std::vector<StepOutput> fp64 = step_outputs(in_fp64());
    if (fp64.size() != outputs_.size())
      return Error{"the step rewritten for fp64 has " + std::to_string(fp64.size()) +
                   " results, expected " + std::to_string(outputs_.size())};
    for (size_t i = 0; i < outputs_.size(); ++i) {
      // A gradient that a new operator makes lies in a storage without a name.
      const bool gradients =
          outputs_[i].kind == OutputKind::kGradient && others[i].kind == OutputKind::kGradient;
      if (!gradients && outputs_[i].name != others[i].name)
        return Error{"the rewritten step gives " + others[i].name + ", expected " +
                     outputs_[i].name};
      if (!is_floating(original_.values[outputs_[i].value].meta.dtype)) continue;
      compared_.push_back(outputs_[i]);
      rewritten_values_.push_back(others[i].value);
      fp64_values_.push_back(fp64[i].value);
      original_values_.push_back(outputs_[i].value);
    }
    return ok_status();
  }

  const Graph& in_fp64() const {
    return options_.rewritten_fp64 ? *options_.rewritten_fp64 : rewritten_;
  }

  const std::vector<ValueId>& values_of(const Graph& graph) const {
    if (&graph == &original_) return original_values_;
    return &graph == &rewritten_ ? rewritten_values_ : fp64_values_;
  }

  Result<Run> replay(const Graph& graph, ReplayOptions options) {
    options.keep = values_of(graph);
    OPFUSE_TRY(Run run, evaluator_.replay(graph, options));
    add_cut_points(*run);
    return run;
  }

  void add_cut_points(const Evaluation& run) {
    for (const std::string& point : run.cut_points)
      if (std::find(verdict_.cut_points.begin(), verdict_.cut_points.end(), point) ==
          verdict_.cut_points.end())
        verdict_.cut_points.push_back(point);
  }

  // Views of the kept values, in the order of compared_.
  Result<std::vector<TensorView>> views(const Evaluation& run, const Graph& graph) {
    std::vector<TensorView> views;
    for (ValueId id : values_of(graph)) {
      OPFUSE_TRY(TensorView view, run.value(id));
      views.push_back(std::move(view));
    }
    return views;
  }

  Result<Differences> difference(const Evaluation& run, const Graph& graph,
                                 const std::vector<TensorView>& from) {
    OPFUSE_TRY(std::vector<TensorView> values, views(run, graph));
    Differences differences;
    double gradients = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i].shape != from[i].shape)
        return Error{compared_[i].name + " has another shape in the rewritten step"};
      differences.norms.push_back(difference_norm(values[i], from[i]));
      if (compared_[i].kind == OutputKind::kGradient)
        gradients += differences.norms.back() * differences.norms.back();
    }
    differences.gradients = std::sqrt(gradients);
    return differences;
  }

  Status replay_exactly() {
    if (run_original_) {
      add_cut_points(*run_original_);
    } else {
      OPFUSE_TRY(run_original_, replay(original_, exact_replay_options(original_)));
    }
    verdict_.values_checked = run_original_->values_checked;
    verdict_.values_wrong = run_original_->values_wrong;
    verdict_.first_wrong = run_original_->first_wrong;
    verdict_.replayed_exactly =
        run_original_->values_checked > 0 && run_original_->values_wrong == 0;
    if (verdict_.replayed_exactly) return ok_status();
    if (verdict_.values_checked == 0) return Error{"the record holds no hash to check a replay by"};
    return Error{"the recorded step does not replay exactly: " + verdict_.first_wrong +
                 " gave other bits; nothing is claimed of this step"};
  }

  bool time_left() const {
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start_;
    return taken.count() < options_.seconds;
  }

  // Replays the original with its externals moved, which raises the floors: the largest difference
  // from `truth` per tensor. Stops as soon as `enough()`.
  template <class Enough>
  Status raise_floors(bool f64, int replays, Differences* floors, Enough enough) {
    for (int seed = 1; seed <= replays; ++seed) {
      if (enough() || (seed > 1 && !time_left())) break;
      ReplayOptions options;
      options.f64 = f64;
      options.perturb_seed = seed;
      OPFUSE_TRY(Run run, replay(original_, options));
      OPFUSE_TRY(Differences moved, difference(*run, original_, truth_));
      ++verdict_.floor_replays;
      floors->gradients = std::max(floors->gradients, moved.gradients);
      for (size_t i = 0; i < truth_.size(); ++i)
        floors->norms[i] = std::max(floors->norms[i], moved.norms[i]);
    }
    return ok_status();
  }

  // Largest difference in floors, which are at least `least` of a tensor's own norm; names the
  // tensor.
  double in_floors(const Differences& differences, const Differences& floors, double least,
                   std::string* name) const {
    double worst = 0;
    for (size_t i = 0; i < truth_.size(); ++i) {
      const double floor = std::max(floors.norms[i], least * truth_norms_[i]);
      const double d = differences.norms[i];
      const double ratio = d == 0      ? 0
                           : floor > 0 ? d / floor
                                       : std::numeric_limits<double>::infinity();
      if (ratio <= worst) continue;
      worst = ratio;
      *name = compared_[i].name;
    }
    return worst;
  }

  // A mean that cancels to nothing, as behind a convolution of what was normalized, is rounding of
  // what is averaged: its own norm is no measure. The spread of that stands beside it.
  void widen_means() {
    constexpr std::string_view kMean = "running_mean", kVariance = "running_var";
    for (size_t i = 0; i < compared_.size(); ++i) {
      const std::string& name = compared_[i].name;
      if (!name.ends_with(kMean)) continue;
      const std::string beside =
          name.substr(0, name.size() - kMean.size()) + std::string(kVariance);
      for (size_t j = 0; j < compared_.size(); ++j)
        if (compared_[j].name == beside)
          truth_norms_[i] = std::max(truth_norms_[i], std::sqrt(absolute_sum(truth_[j])));
    }
  }

  Status replay_fp64() {
    ReplayOptions options;
    options.f64 = true;
    OPFUSE_TRY(truth_run_, replay(original_, options));
    OPFUSE_TRY(truth_, views(*truth_run_, original_));
    for (const TensorView& view : truth_) truth_norms_.push_back(norm(view));
    widen_means();
    Differences rewritten, floors;
    {
      OPFUSE_TRY(Run run, replay(in_fp64(), options));
      OPFUSE_TRY(rewritten, difference(*run, in_fp64(), truth_));
    }
    floors.norms.resize(truth_.size());
    const auto close = [&] {
      verdict_.fp64_floors =
          in_floors(rewritten, floors, options_.fp64_own_roundoffs * unit_roundoff(DType::kF64),
                    &verdict_.worst_tensor);
      return verdict_.floor_replays > 0 && verdict_.fp64_floors <= options_.accept_floors;
    };
    OPFUSE_TRY_STATUS(raise_floors(true, options_.fp64_floor_replays, &floors, close));
    if (close()) return ok_status();
    return refuse("in fp64 the rewritten step is", verdict_.fp64_floors,
                  ": it is not the same function");
  }

  // The original's own error is the first floor.
  Status replay_run_dtype() {
    OPFUSE_TRY(Differences old_error, difference(*run_original_, original_, truth_));
    run_original_.reset();
    Differences floors = old_error, new_error;
    {
      OPFUSE_TRY(Run run, replay(rewritten_, {}));
      OPFUSE_TRY(new_error, difference(*run, rewritten_, truth_));
    }
    verdict_.gradient_error_old = old_error.gradients;
    verdict_.gradient_error_new = new_error.gradients;
    std::string worst;
    const auto steep = [&] { return !within(new_error.gradients, floors); };
    const auto close = [&] {
      verdict_.run_floors = in_floors(new_error, floors, kOwnRoundoffs * run_roundoff(), &worst);
      return verdict_.run_floors <= options_.accept_floors && !steep();
    };
    OPFUSE_TRY_STATUS(raise_floors(false, options_.run_floor_replays, &floors, close));
    verdict_.accepted = close();
    if (!verdict_.accepted && verdict_.run_floors <= options_.accept_floors) {
      OPFUSE_TRY(verdict_.accepted, mostly_within(floors));
      if (!verdict_.accepted) return refuse_gradients(new_error.gradients, floors);
    }
    if (verdict_.accepted) {
      verdict_.reason = "the rewritten step is the same function and as accurate";
      return ok_status();
    }
    verdict_.worst_tensor = worst;
    return refuse("in the run's own dtype the rewritten step is", verdict_.run_floors, "");
  }

  bool within(double gradients, const Differences& floors) const {
    return gradients <= options_.gradient_tolerance * floors.gradients;
  }

  // In an ill-conditioned step (a BatchNorm over two values) rounding alone moves the gradients by
  // much of their norm, and the total errors of equally accurate steps lie decades apart. One that
  // is too large says little, then: as many are drawn of the rewritten step as of the original, and
  // at least half of them have to be within.
  Result<bool> mostly_within(const Differences& floors) {
    const int draws = options_.run_floor_replays + 1;  // the first one is known, and too large
    int good = 0;
    for (int seed = 1; seed < draws && 2 * good < draws && time_left(); ++seed) {
      ReplayOptions options;
      options.perturb_seed = seed;
      OPFUSE_TRY(Run run, replay(rewritten_, options));
      OPFUSE_TRY(const Differences moved, difference(*run, rewritten_, truth_));
      good += within(moved.gradients, floors);
    }
    return 2 * good >= draws;
  }

  Error refuse_gradients(double gradients, const Differences& floors) const {
    double squares = 0;
    for (size_t i = 0; i < truth_.size(); ++i)
      if (compared_[i].kind == OutputKind::kGradient) squares += truth_norms_[i] * truth_norms_[i];
    char numbers[128];
    std::snprintf(numbers, sizeof numbers,
                  " (by %.3g of their norm; rounding moves the original's by at most %.3g)",
                  gradients / std::sqrt(squares), floors.gradients / std::sqrt(squares));
    return Error{"the rewritten step's gradients are further from fp64 than the original's" +
                 std::string(numbers)};
  }

  double run_roundoff() const {
    double unit = 0;
    for (const StepOutput& output : compared_)
      unit = std::max(unit, unit_roundoff(original_.values[output.value].meta.dtype));
    return unit;
  }

  Error refuse(const std::string& what, double floors, const std::string& end) const {
    char numbers[96];
    std::snprintf(numbers, sizeof numbers, " %.3g rounding floors from the original (at most %g)",
                  floors, options_.accept_floors);
    return Error{what + numbers + " at " + verdict_.worst_tensor + end};
  }

  Evaluator& evaluator_;
  const Graph &original_, &rewritten_;
  const StepProofOptions options_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::vector<StepOutput> outputs_, compared_;
  std::vector<ValueId> original_values_, rewritten_values_, fp64_values_;
  Run run_original_, truth_run_;
  std::vector<TensorView> truth_;
  std::vector<double> truth_norms_;
  StepVerdict verdict_;
};

}  // namespace

std::vector<StepOutput> step_outputs(const Graph& graph) {
  std::vector<StepOutput> outputs;
  add_loss(graph, &outputs);
  add_gradients(graph, &outputs);
  const bool backward = !outputs.empty();
  add_state(graph, &outputs);
  if (!backward) add_last_results(graph, &outputs);
  return outputs;
}

ReplayOptions exact_replay_options(const Graph& original) {
  ReplayOptions options;
  options.check_hashes = true;
  options.recorded_random = false;
  for (const StepOutput& output : step_outputs(original))
    if (is_floating(original.values[output.value].meta.dtype)) options.keep.push_back(output.value);
  return options;
}

StepVerdict prove_step(Evaluator& evaluator, const Graph& original, const Graph& rewritten,
                       const StepProofOptions& options, std::unique_ptr<Evaluation> exact) {
  return StepProof(evaluator, original, rewritten, options, std::move(exact)).run();
}

}  // namespace opfuse::verify
