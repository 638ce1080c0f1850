#include "opfuse/torch/site_proof.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/as_strided.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdio>

#include "opfuse/torch/host_memory.h"
#include "opfuse/torch/replay_allocator.h"
#include "opfuse/torch/replay_run.h"
#include "opfuse/torch/replay_values.h"
#include "opfuse/torch/site_gradients.h"
#include "opfuse/torch/site_proof_backward.h"
#include "opfuse/torch/site_proof_chain.h"
#include "opfuse/torch/site_proof_compare.h"
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

// One call: the recorded operators, forward alone and with the backward.
struct RecordedCall {
  const match::Match* match = nullptr;
  Chain composition, target;
  RecordedChain chain;
  SiteGradients gradients;
  at::Tensor y, cotangent;
  std::vector<at::Tensor> contributions;
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
    guarded([&] {
      const Status status = prepare_chains();
      if (!status.ok()) refuse(status.error().message);
    });
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
    if (!calls_.empty()) add_errors(captured_, "", &verdict_.captured);
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
    const match::Match& first = *site_.calls[0];
    for (const match::Match* match : site_.calls) {
      if (auto problem = backward_problem(graph_, *match)) return Error{*problem};
      if (match->outputs.size() != 1) return Error{"expected a chain of one result"};
      if (match->spelling && first.spelling && match->spelling->absent != first.spelling->absent)
        return Error{"optional inputs are there in some calls and absent in others"};
      OPFUSE_TRY(RecordedCall call, recorded_call(*match));
      calls_.push_back(std::move(call));
    }
    return ok_status();
  }

  Result<RecordedCall> recorded_call(const match::Match& match) {
    RecordedCall call;
    call.match = &match;
    OPFUSE_TRY(call.composition, composition_chain(match));
    OPFUSE_TRY(call.target, target_chain(match, *site_.target));
    OPFUSE_TRY(call.chain, recorded_chain(record_, graph_, match));
    OPFUSE_TRY(call.gradients, site_gradients(graph_, match, call.chain));
    return call;
  }

  // ---- during the replay

  at::Tensor hold(ValueId id, const at::Tensor& tensor) const {
    const int32_t storage = graph_.values[id].storage;
    return storage == kNone || written_[storage] ? tensor.clone() : tensor;
  }

  static std::vector<at::Tensor> inputs_of(const RecordedCall& call, const TensorSource& get) {
    std::vector<at::Tensor> inputs;
    for (ValueId value : call.match->inputs)
      inputs.push_back(value == kNone ? at::Tensor() : get(value));
    return inputs;
  }

  static std::vector<ValueId> given(const RecordedCall& call, std::vector<ValueId> values) {
    for (ValueId value : call.match->inputs)
      if (value != kNone) values.push_back(value);
    return values;
  }

  void watch_output(RecordedCall& call, ReplayWatches* watches) {
    const ValueId y = call.match->outputs[0];
    const bool forward_only = call.match->backward.nodes.empty();
    watches->emplace(
        call.match->nodes.back(),
        ReplayWatch{given(call, {y}), [this, &call, y, forward_only](const TensorSource& get) {
                      if (refused()) return;
                      guarded([&] {
                        call.y = hold(y, get(y));
                        if (forward_only) check_call(call, inputs_of(call, get), {});
                      });
                    }});
  }

  // Each contribution is taken where it is made, and the cotangent at the first of them: the engine
  // may add others into either in place.
  void watch_gradient(RecordedCall& call, size_t index, ReplayWatches* watches) {
    const match::BackwardChain& backward = call.match->backward;
    const ValueId gradient = backward.grad_inputs[index], cotangent = backward.grad_output;
    const NodeId at = graph_.values[gradient].producer;
    watches->emplace(
        at, ReplayWatch{given(call, {gradient, cotangent}),
                        [this, &call, gradient, index, cotangent](const TensorSource& get) {
                          if (refused()) return;
                          guarded([&] {
                            call.contributions[index] = hold(gradient, get(gradient));
                            if (!call.cotangent.defined())
                              call.cotangent = hold(cotangent, get(cotangent));
                            if (all_there(call))
                              check_call(call, inputs_of(call, get), call.cotangent);
                          });
                        }});
  }

  static bool all_there(const RecordedCall& call) {
    return std::all_of(call.contributions.begin(), call.contributions.end(),
                       [](const at::Tensor& t) { return t.defined(); });
  }

  static ChainValues summed_gradients(const RecordedCall& call,
                                      const std::vector<at::Tensor>& results,
                                      const at::Tensor& cotangent) {
    c10::AutoGradMode no_grad(false);
    at::AutoDispatchBelowADInplaceOrView below;
    return summed(results, call.gradients, cotangent);
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

  void check_call(RecordedCall& call, std::vector<at::Tensor> inputs, const at::Tensor& cotangent) {
    CallValues values{std::move(inputs), cotangent, {call.y, {}}, {}};
    if (cotangent.defined()) {
      std::vector<at::Tensor> results = {call.y};
      results.insert(results.end(), call.contributions.begin(), call.contributions.end());
      values.old_values = summed_gradients(call, results, cotangent);
    }
    values.new_values = differentiate(call.target, values.inputs, cotangent, call.gradients.wanted);
    const std::string where = "captured call " + std::to_string(verdict_.captured_calls + 1) + " " +
                              shape_text(values.inputs[0]);
    ++verdict_.captured_calls;
    Compared one;
    judge(call, values, where, &one);
    for (const Comparison* c : comparisons(one))
      if (!faithful(*c, static_cast<DType>(call.y.scalar_type())))
        refuse("the recorded results of " + where +
               " are far from their own fp64 values, so nothing can be compared with them");
    merge(one, &captured_);
    keep_whole_numbers(values.inputs);
    call.y = call.cotangent = at::Tensor();
    call.contributions.clear();
  }

  // Classes and indices cannot be made up: generated calls take those of the first captured one.
  void keep_whole_numbers(const std::vector<at::Tensor>& inputs) {
    if (!whole_numbers_.empty()) return;
    for (const at::Tensor& t : inputs)
      whole_numbers_.push_back(t.defined() && !t.is_floating_point() ? t.clone() : at::Tensor());
  }

  static std::vector<const Comparison*> comparisons(const Compared& all) {
    std::vector<const Comparison*> list = {&all.y};
    for (const Comparison& gradient : all.gradients) list.push_back(&gradient);
    return list;
  }

  // ---- comparing

  void judge(const RecordedCall& call, const CallValues& values, const std::string& where,
             Compared* out) {
    if (!same_forms(call, values, where)) return;
    compare_call(call.chain, call.composition, call.gradients, values, out);
    double worst = 0;
    for (const Comparison* c : comparisons(*out)) worst = std::max(worst, badness(*c));
    if (worst > worst_) {
      worst_ = worst;
      verdict_.input_set = where;
    }
    explain(call, values, out->y, "output", where);
    for (size_t i = 0; i < out->gradients.size(); ++i)
      explain(call, values, out->gradients[i], gradient_name(call, i), where);
  }

  static std::string gradient_name(const RecordedCall& call, size_t parameter) {
    return "d/d" + call.match->rule->parameters[parameter].name;
  }

  static double badness(const Comparison& c) {
    return std::max(c.error.same_function / verify::kSameFunction,
                    c.error.excess / verify::kAllowedExcess);
  }

  bool same_forms(const RecordedCall& call, const CallValues& values, const std::string& where) {
    const ChainValues &a = values.old_values, &b = values.new_values;
    if (!same_form(values, a.y, b.y, "output", where)) return false;
    for (size_t i = 0; i < a.gradients.size(); ++i)
      if (a.gradients[i].defined() &&
          !same_form(values, a.gradients[i], b.gradients[i], gradient_name(call, i), where))
        return false;
    return true;
  }

  bool same_form(const CallValues& values, const at::Tensor& a, const at::Tensor& b,
                 const std::string& what, const std::string& where) {
    const std::string place = " of the " + what + " (" + where + ")";
    const auto aliases = [&](const at::Tensor& t) {
      return std::any_of(values.inputs.begin(), values.inputs.end(), [&](const at::Tensor& input) {
        return input.defined() && t.is_alias_of(input);
      });
    };
    if (a.scalar_type() != b.scalar_type())
      refuse(site_.target->op + " changes the dtype" + place);
    else if (a.sizes() != b.sizes())
      refuse(site_.target->op + " changes the shape" + place);
    else if (a.strides() != b.strides())
      refuse(site_.target->op + " changes the strides" + place);
    else if (a.numel() > 0 && aliases(a) != aliases(b))
      refuse(site_.target->op + " changes whether it shares memory with its input" + place);
    return !refused();
  }

  void explain(const RecordedCall& call, const CallValues& values, const Comparison& c,
               const std::string& what, const std::string& where) {
    if (refused() || c.error.elements == 0) return;
    const bool gradient = what[0] == 'd';
    const NodeId last = gradient ? call.match->backward.nodes.back() : call.match->nodes.back();
    const std::string head = what + " at ";
    if (!(c.error.same_function <= verify::kSameFunction))
      return refuse(head + element_text(values, c.function.index) +
                    ": the recorded operators, "
                    "up to " +
                    describe_node(graph_, last) + ", give " + number_text(c.function.truth) +
                    " in fp64, the rule " + number_text(c.function.other) + " (" + where + ")");
    if (c.error.nonfinite_differences > 0)
      return refuse(head + element_text(values, c.nonfinite.index) +
                    ": NaN or infinities differ, " + number_text(c.nonfinite.truth) + " against " +
                    number_text(c.nonfinite.other) + " (" + where + ")");
    if (!same_accuracy(c.error))
      return refuse(head + element_text(values, c.accuracy.index) + ": " + site_.target->op +
                    " is less accurate than the recorded operators by " +
                    number_text(c.error.excess) + " roundoffs (" + where + ")");
  }

  // Indices are in memory order where the pieces were; layouts that differ are small. Where an
  // element depends on many the index itself must do.
  static std::string element_text(const CallValues& values, int64_t index) {
    if (index < 0) return "one element";
    const at::Tensor& x = values.inputs[0];
    const bool one_each = x.defined() && x.numel() == values.old_values.y.numel();
    if (!one_each || index >= x.numel()) return "element " + std::to_string(index);
    const auto at_index = [&](const at::Tensor& on) {
      const at::Tensor t = on_host(on);
      const bool dense = t.is_non_overlapping_and_dense();
      const at::Tensor flat =
          dense ? at::as_strided(t, {t.numel()}, {1}, t.storage_offset()) : t.contiguous().view(-1);
      const at::Tensor one = flat.slice(0, index, index + 1).contiguous();
      return number_text(verify::element(view_of(one), 0));
    };
    std::string text = "x = " + at_index(x);
    if (values.cotangent.defined()) text += ", gradient " + at_index(values.cotangent);
    return text;
  }

  // ---- generated inputs

  // Where the chain ran.
  c10::Device device() const {
    return device_of_code(graph_.values[calls_[0].match->outputs[0]].meta.device);
  }

  std::vector<c10::ScalarType> dtypes() const {
    const RecordedCall& call = calls_[0];
    const DType run = graph_.values[call.match->inputs[0]].meta.dtype;
    const bool fixed =
        call.chain.forward.has_dtype_arguments() || call.chain.both.has_dtype_arguments();
    if (fixed) return {static_cast<c10::ScalarType>(run)};
    std::vector<c10::ScalarType> all;
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
      const std::vector<DType>& allowed = call.match->rule->dtypes;
      const bool in_rule =
          allowed.empty() || std::find(allowed.begin(), allowed.end(), dtype) != allowed.end();
      // Devices may have no fp64: there the truth alone is in it, on the CPU.
      const bool there = dtype != DType::kF64 || device().is_cpu();
      if ((in_rule && there) || dtype == run) all.push_back(static_cast<c10::ScalarType>(dtype));
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
    for (GeneratedCase& one : generated_cases(call, dtype)) {
      if (refused()) return;
      for (at::Tensor& input : one.inputs) input = on_device(input, device());
      one.cotangent = on_device(one.cotangent, device());
      CallValues values{std::move(one.inputs), both ? one.cotangent : at::Tensor(), {}, {}};
      values.old_values = run_recorded(call.chain, call.gradients, values.inputs, values.cotangent);
      values.new_values =
          differentiate(call.target, values.inputs, values.cotangent, call.gradients.wanted);
      Compared compared;
      judge(call, values, "generated: " + one.name + " " + name, &compared);
      if (both && call.match->function_scope != kNone && !refused()) {
        const Scaling scaling =
            check_scaling(call.chain, call.gradients, values.inputs, values.cotangent);
        if (!scaling.linear)
          refuse("the backward is not linear in the incoming gradient, seen at " +
                 element_text(values, scaling.index));
      }
      merge(compared, &total);
      ++verdict_.generated_cases;
    }
    add_errors(total, " " + name, &verdict_.generated);
  }

  // A pointwise chain is tried on every kind of shape; one that reduces, or that holds its sizes,
  // on the recorded shapes.
  std::vector<GeneratedCase> generated_cases(const RecordedCall& call,
                                             c10::ScalarType dtype) const {
    const bool anywhere = call.chain.forward.pointwise() && call.chain.both.pointwise() &&
                          call.composition.pointwise() &&
                          call.chain.forward.size_holder().empty() &&
                          call.chain.both.size_holder().empty() && one_shape(call);
    if (anywhere)
      return generate_cases(dtype, call.match->inputs.size(),
                            call.match->rule->domain.ends_with("finite"));
    return generate_like(tensors_like(graph_, *call.match, false), whole_numbers_,
                         !call.match->backward.nodes.empty(), dtype,
                         call.match->rule->domain.ends_with("finite"));
  }

  bool one_shape(const RecordedCall& call) const {
    const graph::TensorMeta& out = graph_.values[call.match->outputs[0]].meta;
    return std::all_of(call.match->inputs.begin(), call.match->inputs.end(), [&](ValueId value) {
      return value != kNone && graph_.values[value].meta.shape == out.shape &&
             graph_.values[value].meta.dtype == out.dtype;
    });
  }

  void add_errors(const Compared& compared, const std::string& suffix,
                  std::vector<verify::TensorError>* errors) const {
    const auto add = [&](const Comparison& comparison, const std::string& what) {
      if (comparison.error.elements == 0) return;
      errors->push_back(comparison.error);
      errors->back().what = what + suffix;
    };
    add(compared.y, "output");
    for (size_t i = 0; i < compared.gradients.size(); ++i)
      add(compared.gradients[i], gradient_name(calls_[0], i));
  }

  const Record& record_;
  const Graph& graph_;
  const SiteCalls& site_;
  const std::vector<bool> written_;
  std::vector<RecordedCall> calls_;
  Compared captured_;
  std::vector<at::Tensor> whole_numbers_;
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
