#include "opfuse/torch/site_proof.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/as_strided.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdio>

#include "opfuse/torch/replay_allocator.h"
#include "opfuse/torch/replay_run.h"
#include "opfuse/torch/replay_values.h"
#include "opfuse/torch/site_proof_backward.h"
#include "opfuse/torch/site_proof_chain.h"
#include "opfuse/torch/site_proof_inputs.h"
#include "opfuse/verify/metrics.h"
#include "opfuse/verify/step_verdict.h"

namespace opfuse::torch_bridge {
namespace {

using graph::Graph;
using graph::kNone;
using graph::NodeId;
using graph::ValueId;
using verify::Comparison;

// Elements of a pointwise chain at a time: a dozen fp64 intermediates stay in the second cache.
constexpr int64_t kPiece = 16384;

// Ordinary eager execution, whatever the thread's dispatch state is.
struct Eager {
  c10::impl::ForceDispatchKeyGuard keys{c10::default_included_set, c10::default_excluded_set};
  c10::AutoGradMode grad{true};
};
// Below autograd.
struct Plain {
  c10::AutoGradMode no_grad{false};
  at::AutoDispatchBelowADInplaceOrView below;
};

struct Pair {  // a value and, where there is a cotangent, its gradient
  at::Tensor y, dx;
};

// y and d/dx of a chain of one input by autograd; the cotangent may be undefined.
Pair differentiate(const Chain& chain, const at::Tensor& x, const at::Tensor& cotangent) {
  Eager eager;
  const at::Tensor leaf = x.detach();
  if (!cotangent.defined()) {
    c10::AutoGradMode no_grad(false);
    return {chain.run(std::vector<at::Tensor>{leaf})[0], {}};
  }
  leaf.requires_grad_(true);
  const at::Tensor y = chain.run(std::vector<at::Tensor>{leaf})[0];
  const at::Tensor dx = torch::autograd::grad({y}, {leaf}, {cotangent})[0];
  return {y.detach(), dx};
}

at::Tensor sum(const std::vector<at::Tensor>& terms) {
  at::Tensor total = terms[0];
  for (size_t i = 1; i < terms.size(); ++i) total = total + terms[i];
  return total;
}

// One call: the recorded operators, forward alone and with the backward.
struct RecordedCall {
  const match::Match* match = nullptr;
  Chain forward, both;
  at::Tensor y, cotangent;
  std::vector<at::Tensor> contributions;
};

struct Compared {
  Comparison y, dx;
};

std::string shape_text(const at::Tensor& t) {
  std::string text(dtype_name(static_cast<DType>(t.scalar_type())));
  text += "[";
  for (int64_t i = 0; i < t.dim(); ++i) text += (i ? "," : "") + std::to_string(t.size(i));
  return text + "]";
}

std::string number_text(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

class SiteProver {
 public:
  SiteProver(const Record& record, const Graph& graph, const SiteCalls& site)
      : record_(record), graph_(graph), site_(site), written_(written_storages(graph)) {
    verdict_.site = site.site;
  }

  bool refused() const { return !verdict_.reason.empty(); }
  void refuse(std::string reason) {
    if (!refused()) verdict_.reason = std::move(reason);
  }

  void prepare() {
    const Status status = prepare_chains();
    if (!status.ok()) refuse(status.error().message);
  }

  void watch(ReplayWatches* watches) {
    for (RecordedCall& call : calls_) {
      watch_output(call, watches);
      if (call.match->backward.nodes.empty()) continue;
      call.contributions.resize(call.match->backward.grad_inputs.size());
      for (size_t i = 0; i < call.contributions.size(); ++i) watch_gradient(call, i, watches);
    }
  }

  void check_generated() {
    if (refused()) return;
    guarded([&] {
      for (c10::ScalarType dtype : dtypes()) check_dtype(dtype);
    });
  }

  verify::SiteVerdict finish() {
    if (!refused() && verdict_.captured_calls != static_cast<int>(calls_.size()))
      refuse("expected the values of " + std::to_string(calls_.size()) + " calls, found " +
             std::to_string(verdict_.captured_calls));
    if (captured_.y.error.elements > 0) add_errors(captured_, "", &verdict_.captured);
    if (refused()) return verdict_;
    verdict_.accepted = true;
    verdict_.reason = "the same function and as accurate on " +
                      std::to_string(verdict_.captured_calls) + " captured calls and " +
                      std::to_string(verdict_.generated_cases) + " generated inputs";
    return verdict_;
  }

 private:
  // ---- before the replay

  Status prepare_chains() {
    if (site_.calls.empty()) return Error{"the recorded step has no call of the site"};
    if (!site_.target) return Error{"the rule has no target here"};
    const match::Rule& rule = *site_.calls[0]->rule;
    if (rule.parameters.size() != 1)
      return Error{"rule " + rule.name + " has several inputs; only sites of one are proved"};
    OPFUSE_TRY(composition_, composition_chain(rule));
    OPFUSE_TRY(target_, target_chain(rule, *site_.target));
    for (const match::Match* match : site_.calls) {
      if (auto problem = backward_problem(graph_, *match)) return Error{*problem};
      OPFUSE_TRY(RecordedCall call, recorded_call(*match));
      calls_.push_back(std::move(call));
    }
    return ok_status();
  }

  Result<RecordedCall> recorded_call(const match::Match& match) {
    RecordedCall call;
    call.match = &match;
    if (match.inputs.size() != 1 || match.inputs[0] == kNone || match.outputs.size() != 1)
      return Error{"expected a chain of one input and one result"};
    OPFUSE_TRY(call.forward,
               Chain::make(graph_, match.nodes, match.inputs, match.outputs, &record_));
    if (!match.backward.nodes.empty()) {
      std::vector<NodeId> nodes = match.nodes;
      nodes.insert(nodes.end(), match.backward.nodes.begin(), match.backward.nodes.end());
      std::vector<ValueId> inputs = {match.inputs[0], match.backward.grad_output};
      std::vector<ValueId> outputs = match.outputs;
      outputs.insert(outputs.end(), match.backward.grad_inputs.begin(),
                     match.backward.grad_inputs.end());
      OPFUSE_TRY(call.both, Chain::make(graph_, nodes, inputs, outputs, &record_));
    }
    const Chain& all = match.backward.nodes.empty() ? call.forward : call.both;
    if (!all.size_holder().empty())
      return Error{all.size_holder() + " holds sizes: it cannot be tried on other shapes"};
    return call;
  }

  // ---- during the replay

  at::Tensor hold(ValueId id, const at::Tensor& tensor) const {
    const int32_t storage = graph_.values[id].storage;
    return storage == kNone || written_[storage] ? tensor.clone() : tensor;
  }

  void watch_output(RecordedCall& call, ReplayWatches* watches) {
    const ValueId x = call.match->inputs[0], y = call.match->outputs[0];
    const bool forward_only = call.match->backward.nodes.empty();
    watches->emplace(
        call.match->nodes.back(),
        ReplayWatch{{x, y}, [this, &call, x, y, forward_only](const TensorSource& get) {
                      if (refused()) return;
                      guarded([&] {
                        call.y = hold(y, get(y));
                        if (forward_only) check_call(call, get(x), {});
                      });
                    }});
  }

  // Each contribution is taken where it is made, and the cotangent at the first of them: the engine
  // may add others into either in place.
  void watch_gradient(RecordedCall& call, size_t index, ReplayWatches* watches) {
    const match::BackwardChain& backward = call.match->backward;
    const ValueId gradient = backward.grad_inputs[index];
    const ValueId x = call.match->inputs[0], cotangent = backward.grad_output;
    const NodeId at = graph_.values[gradient].producer;
    watches->emplace(
        at, ReplayWatch{{gradient, x, cotangent},
                        [this, &call, gradient, index, x, cotangent](const TensorSource& get) {
                          if (refused()) return;
                          guarded([&] {
                            call.contributions[index] = hold(gradient, get(gradient));
                            if (!call.cotangent.defined())
                              call.cotangent = hold(cotangent, get(cotangent));
                            if (all_there(call)) check_call(call, get(x), call.cotangent);
                          });
                        }});
  }

  static bool all_there(const RecordedCall& call) {
    return std::all_of(call.contributions.begin(), call.contributions.end(),
                       [](const at::Tensor& t) { return t.defined(); });
  }

  template <class F>
  void guarded(F work) {
    try {
      work();
    } catch (const std::exception& error) {
      const std::string text = error.what();
      refuse(text.substr(0, text.find('\n')));
    }
  }

  void check_call(RecordedCall& call, const at::Tensor& x, const at::Tensor& cotangent) {
    Pair old_pair{call.y, cotangent.defined() ? sum(call.contributions) : at::Tensor()};
    const Pair new_pair = differentiate(target_, x, cotangent);
    const std::string where =
        "captured call " + std::to_string(verdict_.captured_calls + 1) + " " + shape_text(x);
    ++verdict_.captured_calls;
    Compared one;
    judge(call, x, cotangent, old_pair, new_pair, where, &one);
    for (const Comparison* c : {&one.y, &one.dx})
      if (!faithful(*c, static_cast<DType>(x.scalar_type())))
        refuse("the recorded results of " + where +
               " are far from their own fp64 values, so nothing can be compared with them");
    merge(one.y, &captured_.y);
    merge(one.dx, &captured_.dx);
    call.y = call.cotangent = at::Tensor();
    call.contributions.clear();
  }

  // ---- comparing

  void judge(const RecordedCall& call, const at::Tensor& x, const at::Tensor& cotangent,
             const Pair& old_pair, const Pair& new_pair, const std::string& where, Compared* out) {
    if (!same_form(x, old_pair.y, new_pair.y, "output", where)) return;
    if (cotangent.defined() && !same_form(x, old_pair.dx, new_pair.dx, "d/dx", where)) return;
    compare(call, x, cotangent, old_pair, new_pair, out);
    const double worst = std::max(badness(out->y), badness(out->dx));
    if (worst > worst_) {
      worst_ = worst;
      verdict_.input_set = where;
    }
    explain(call, x, cotangent, out->y, "output", where);
    explain(call, x, cotangent, out->dx, "d/dx", where);
  }

  static double badness(const Comparison& c) {
    return std::max(c.error.same_function / verify::kSameFunction,
                    c.error.excess / verify::kAllowedExcess);
  }

  bool same_form(const at::Tensor& x, const at::Tensor& a, const at::Tensor& b, const char* what,
                 const std::string& where) {
    const std::string place = std::string(" of the ") + what + " (" + where + ")";
    if (a.scalar_type() != b.scalar_type())
      refuse(site_.target->op + " changes the dtype" + place);
    else if (a.sizes() != b.sizes())
      refuse(site_.target->op + " changes the shape" + place);
    else if (a.strides() != b.strides())
      refuse(site_.target->op + " changes the strides" + place);
    else if (a.numel() > 0 && a.is_alias_of(x) != b.is_alias_of(x))
      refuse(site_.target->op + " changes whether it shares memory with its input" + place);
    return !refused();
  }

  void compare(const RecordedCall& call, const at::Tensor& x, const at::Tensor& cotangent,
               const Pair& old_pair, const Pair& new_pair, Compared* out) {
    const bool both = cotangent.defined();
    const Chain& chain = both ? call.both : call.forward;
    std::vector<at::Tensor> all = {x, old_pair.y, new_pair.y};
    if (both) all.insert(all.end(), {cotangent, old_pair.dx, new_pair.dx});
    const bool flat = chain.pointwise() && composition_.pointwise() &&
                      std::all_of(all.begin(), all.end(), [&](const at::Tensor& t) {
                        return t.is_non_overlapping_and_dense() && t.strides() == x.strides() &&
                               t.sizes() == x.sizes();
                      });
    if (!flat) {
      for (at::Tensor& t : all) t = t.contiguous();
      compare_piece(chain, all, 0, out);
      return;
    }
    for (at::Tensor& t : all) t = at::as_strided(t, {t.numel()}, {1}, t.storage_offset());
    std::vector<Compared> pieces((x.numel() + kPiece - 1) / kPiece);
    at::parallel_for(0, static_cast<int64_t>(pieces.size()), 1, [&](int64_t first, int64_t last) {
      at::DisableRecordFunctionGuard no_recording;
      Plain plain;
      for (int64_t i = first; i < last; ++i) {
        const int64_t begin = i * kPiece, n = std::min(kPiece, x.numel() - begin);
        std::vector<at::Tensor> piece;
        for (const at::Tensor& t : all)
          piece.push_back(at::as_strided(t, {n}, {1}, t.storage_offset() + begin));
        compare_piece(chain, piece, begin, &pieces[i]);
      }
    });
    for (const Compared& piece : pieces) {
      merge(piece.y, &out->y);
      merge(piece.dx, &out->dx);
    }
  }

  // x, old y, new y [, cotangent, old d/dx, new d/dx].
  void compare_piece(const Chain& chain, const std::vector<at::Tensor>& all, int64_t base,
                     Compared* out) {
    Plain plain;
    const bool both = all.size() > 3;
    const at::Tensor x = all[0].to(c10::kDouble);
    const at::Tensor cotangent = both ? all[3].to(c10::kDouble) : at::Tensor();
    std::vector<at::Tensor> inputs = {x};
    if (both) inputs.push_back(cotangent);
    Chain::Double truth = chain.run_double(inputs);
    const Pair rule = differentiate(composition_, x, cotangent);
    compare_one(truth.values[0], rule.y, truth.magnitudes[0], all[1], all[2], base, &out->y);
    if (!both) return;
    truth.values.erase(truth.values.begin());
    truth.magnitudes.erase(truth.magnitudes.begin());
    compare_one(sum(truth.values), rule.dx, sum(truth.magnitudes), all[4], all[5], base, &out->dx);
  }

  static void compare_one(const at::Tensor& truth, const at::Tensor& rule,
                          const at::Tensor& magnitude, const at::Tensor& old_value,
                          const at::Tensor& new_value, int64_t base, Comparison* out) {
    const at::Tensor t = truth.contiguous(), r = rule.contiguous(), s = magnitude.contiguous();
    compare_function(view_of(t), view_of(r), view_of(s), base, out);
    compare_accuracy(view_of(t), view_of(old_value), view_of(new_value), view_of(s), base, out);
  }

  void explain(const RecordedCall& call, const at::Tensor& x, const at::Tensor& cotangent,
               const Comparison& c, const char* what, const std::string& where) {
    if (refused() || c.error.elements == 0) return;
    const bool gradient = what[0] == 'd';
    const NodeId last = gradient ? call.match->backward.nodes.back() : call.match->nodes.back();
    const std::string head = std::string(what) + " at ";
    if (!(c.error.same_function <= verify::kSameFunction))
      return refuse(head + element_text(x, cotangent, c.function.index) +
                    ": the recorded operators, "
                    "up to " +
                    describe_node(graph_, last) + ", give " + number_text(c.function.truth) +
                    " in fp64, the rule " + number_text(c.function.other) + " (" + where + ")");
    if (c.error.nonfinite_differences > 0)
      return refuse(head + element_text(x, cotangent, c.nonfinite.index) +
                    ": NaN or infinities differ, " + number_text(c.nonfinite.truth) + " against " +
                    number_text(c.nonfinite.other) + " (" + where + ")");
    if (!same_accuracy(c.error))
      return refuse(head + element_text(x, cotangent, c.accuracy.index) + ": " + site_.target->op +
                    " is less accurate than the recorded operators by " +
                    number_text(c.error.excess) + " roundoffs (" + where + ")");
  }

  static std::string element_text(const at::Tensor& x, const at::Tensor& cotangent, int64_t index) {
    // Indices are in memory order where the pieces were; layouts that differ are small.
    const auto at_index = [&](const at::Tensor& t) {
      const bool dense = t.is_non_overlapping_and_dense();
      const at::Tensor flat =
          dense ? at::as_strided(t, {t.numel()}, {1}, t.storage_offset()) : t.contiguous().view(-1);
      const at::Tensor one = flat.slice(0, index, index + 1).contiguous();
      return number_text(verify::element(view_of(one), 0));
    };
    if (index < 0) return "one element";
    std::string text = "x = " + at_index(x);
    if (cotangent.defined()) text += ", gradient " + at_index(cotangent);
    return text;
  }

  // ---- generated inputs

  std::vector<c10::ScalarType> dtypes() const {
    const RecordedCall& call = calls_[0];
    const DType run = graph_.values[call.match->inputs[0]].meta.dtype;
    const bool fixed = call.forward.has_dtype_arguments() || call.both.has_dtype_arguments();
    if (fixed) return {static_cast<c10::ScalarType>(run)};
    std::vector<c10::ScalarType> all;
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
      const std::vector<DType>& allowed = call.match->rule->dtypes;
      const bool in_rule =
          allowed.empty() || std::find(allowed.begin(), allowed.end(), dtype) != allowed.end();
      if (in_rule || dtype == run) all.push_back(static_cast<c10::ScalarType>(dtype));
    }
    return all;
  }

  void check_dtype(c10::ScalarType dtype) {
    // Calls differ in nothing but shapes; the first with a backward stands for all.
    const auto with_backward =
        std::find_if(calls_.begin(), calls_.end(),
                     [](const RecordedCall& c) { return !c.match->backward.nodes.empty(); });
    const RecordedCall& call = with_backward == calls_.end() ? calls_[0] : *with_backward;
    const bool both = with_backward != calls_.end();
    const std::string name(dtype_name(static_cast<DType>(dtype)));
    Compared total;
    for (const GeneratedCase& one : generate_cases(dtype)) {
      if (refused()) return;
      const at::Tensor cotangent = both ? one.cotangent : at::Tensor();
      Pair old_pair;
      {
        Plain plain;
        std::vector<at::Tensor> inputs = {one.x};
        if (both) inputs.push_back(cotangent);
        std::vector<at::Tensor> results = (both ? call.both : call.forward).run(inputs);
        old_pair.y = results[0];
        results.erase(results.begin());
        if (both) old_pair.dx = sum(results);
      }
      const Pair new_pair = differentiate(target_, one.x, cotangent);
      Compared compared;
      judge(call, one.x, cotangent, old_pair, new_pair, "generated: " + one.name + " " + name,
            &compared);
      if (both && call.match->function_scope != kNone) check_scaling(call, one);
      merge(compared.y, &total.y);
      merge(compared.dx, &total.dx);
      ++verdict_.generated_cases;
    }
    add_errors(total, " " + name, &verdict_.generated);
  }

  // A backward that is linear in the cotangent scales with it.
  void check_scaling(const RecordedCall& call, const GeneratedCase& one) {
    Plain plain;
    const at::Tensor x = one.x.to(c10::kDouble), g = one.cotangent.to(c10::kDouble);
    const auto gradient = [&](const at::Tensor& cotangent) {
      Chain::Double all = call.both.run_double(std::vector<at::Tensor>{x, cotangent});
      all.values.erase(all.values.begin());
      all.magnitudes.erase(all.magnitudes.begin());
      return std::pair(sum(all.values).contiguous(), sum(all.magnitudes).contiguous());
    };
    constexpr double kFactor = -4;  // exact in every dtype
    const auto [once, size] = gradient(g);
    const auto [scaled, scaled_size] = gradient(g * kFactor);
    const at::Tensor expected = (once * kFactor).contiguous();
    Comparison c;
    compare_function(view_of(scaled), view_of(expected), view_of(scaled_size), 0, &c);
    if (!same_function(c.error))
      refuse("the backward is not linear in the incoming gradient, seen at " +
             element_text(one.x, one.cotangent, std::max(c.function.index, c.nonfinite.index)));
  }

  static void add_errors(const Compared& compared, const std::string& suffix,
                         std::vector<verify::TensorError>* errors) {
    for (const auto& [comparison, what] :
         {std::pair(&compared.y, "output"), std::pair(&compared.dx, "d/dx")}) {
      if (comparison->error.elements == 0) continue;
      errors->push_back(comparison->error);
      errors->back().what = what + suffix;
    }
  }

  const Record& record_;
  const Graph& graph_;
  const SiteCalls& site_;
  const std::vector<bool> written_;
  Chain composition_, target_;
  std::vector<RecordedCall> calls_;
  Compared captured_;
  double worst_ = -1;
  verify::SiteVerdict verdict_;
};

}  // namespace

SiteProofs prove_sites(const Record& record, const Graph& graph, std::span<const SiteCalls> sites,
                       const SiteProofOptions& options) {
  std::vector<SiteProver> provers;
  provers.reserve(sites.size());  // watches refer to them
  ReplayWatches watches;
  for (const SiteCalls& site : sites) {
    provers.emplace_back(record, graph, site);
    provers.back().prepare();
  }
  for (SiteProver& prover : provers)
    if (!prover.refused()) prover.watch(&watches);
  SiteProofs proofs;
  if (!watches.empty()) {
    auto run =
        run_replay(record, graph, verify::exact_replay_options(graph), options.limits, watches);
    if (run.ok()) {
      proofs.exact = std::move(run.value());
    } else {
      for (SiteProver& prover : provers) prover.refuse(run.error().message);
    }
  }
  for (SiteProver& prover : provers) {
    if (options.generated) {
      at::DisableRecordFunctionGuard no_recording;
      prover.check_generated();
    }
    proofs.verdicts.push_back(prover.finish());
  }
  trim_replay_memory();
  return proofs;
}

verify::SiteVerdict prove_site(const Record& record, const Graph& graph, const SiteCalls& site,
                               const SiteProofOptions& options) {
  return prove_sites(record, graph, {&site, 1}, options).verdicts[0];
}

}  // namespace opfuse::torch_bridge
