#include "opfuse/torch/site_proof_compare.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/as_strided.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "opfuse/torch/host_memory.h"
#include "opfuse/torch/replay_run.h"

namespace opfuse::torch_bridge {
namespace {

using verify::Comparison;

// Elements of a pointwise chain at a time: a dozen fp64 intermediates stay in the second cache.
constexpr int64_t kPiece = 16384;

// Below autograd.
struct Plain {
  c10::AutoGradMode no_grad{false};
  at::AutoDispatchBelowADInplaceOrView below;
};

// An intermediate that underflows in the run's dtype is off by as much as the smallest normal
// number, as when it is flushed to zero: so much magnitude makes that one roundoff.
double smallest_magnitude(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kBFloat16:
      return 0x1p-126 / 0x1p-8;
    case c10::kDouble:
      return 0x1p-1022 / 0x1p-53;
    default:  // f16 is computed in f32, where nothing underflows that f16 holds
      return 0x1p-126 / 0x1p-24;
  }
}

// All tensors of a call in one list, so that pieces are cut at one place.
std::vector<at::Tensor*> tensors_of(CallValues* call) {
  std::vector<at::Tensor*> all;
  const auto add = [&](at::Tensor& t) {
    if (t.defined()) all.push_back(&t);
  };
  for (at::Tensor& t : call->inputs) add(t);
  add(call->cotangent);
  for (ChainValues* values : {&call->old_values, &call->new_values}) {
    add(values->y);
    for (at::Tensor& t : values->gradients) add(t);
  }
  return all;
}

struct Truth {
  ChainValues values, magnitudes;
};

Truth truth_of(const RecordedChain& chain, const SiteGradients& gradients,
               std::vector<at::Tensor> inputs, const at::Tensor& cotangent, double smallest) {
  if (!cotangent.defined()) {
    Chain::Double all = chain.forward.run_double(inputs, smallest);
    return {{all.values[0], {}}, {all.magnitudes[0], {}}};
  }
  inputs.push_back(cotangent);
  const Chain::Double all = chain.both.run_double(inputs, smallest);
  return {summed(all.values, gradients, cotangent),
          summed(all.magnitudes, gradients, at::abs(cotangent))};
}

void compare_one(const at::Tensor& truth, const at::Tensor& rule, const at::Tensor& magnitude,
                 const at::Tensor& old_value, const at::Tensor& new_value, int64_t base,
                 Comparison* out) {
  const at::Tensor t = truth.contiguous(), r = rule.contiguous(),
                   s = magnitude.expand_as(truth).contiguous();
  compare_function(view_of(t), view_of(r), view_of(s), base, out);
  compare_accuracy(view_of(t), view_of(old_value), view_of(new_value), view_of(s), base, out);
}

void compare_piece(const RecordedChain& chain, const Chain& composition,
                   const SiteGradients& gradients, const CallValues& call, int64_t base,
                   Compared* out) {
  Plain plain;
  const std::vector<at::Tensor> inputs = in_double(call.inputs);
  const at::Tensor cotangent =
      call.cotangent.defined() ? call.cotangent.to(c10::kDouble) : at::Tensor();
  const Truth truth = truth_of(chain, gradients, inputs, cotangent,
                               smallest_magnitude(call.old_values.y.scalar_type()));
  const ChainValues rule = differentiate(composition, inputs, cotangent, gradients.wanted);
  compare_one(truth.values.y, rule.y, truth.magnitudes.y, call.old_values.y, call.new_values.y,
              base, &out->y);
  out->gradients.resize(call.inputs.size());
  if (!cotangent.defined()) return;
  for (size_t i = 0; i < call.inputs.size(); ++i)
    if (gradients.wanted[i])
      compare_one(truth.values.gradients[i], rule.gradients[i], truth.magnitudes.gradients[i],
                  call.old_values.gradients[i], call.new_values.gradients[i], base,
                  &out->gradients[i]);
}

}  // namespace

void merge(const Compared& from, Compared* into) {
  verify::merge(from.y, &into->y);
  into->gradients.resize(std::max(into->gradients.size(), from.gradients.size()));
  for (size_t i = 0; i < from.gradients.size(); ++i)
    verify::merge(from.gradients[i], &into->gradients[i]);
}

void compare_call(const RecordedChain& chain, const Chain& composition,
                  const SiteGradients& gradients, const CallValues& call, Compared* out) {
  CallValues whole = call;
  std::vector<at::Tensor*> all = tensors_of(&whole);
  for (at::Tensor* t : all) *t = on_host(*t);
  const at::Tensor like = whole.old_values.y;
  const Chain& recorded = call.cotangent.defined() ? chain.both : chain.forward;
  const bool flat = recorded.pointwise() && composition.pointwise() &&
                    std::all_of(all.begin(), all.end(), [&](const at::Tensor* t) {
                      return t->is_non_overlapping_and_dense() && t->strides() == like.strides() &&
                             t->sizes() == like.sizes();
                    });
  if (!flat) {
    for (at::Tensor* t : all) *t = t->contiguous();
    compare_piece(chain, composition, gradients, whole, 0, out);
    return;
  }
  for (at::Tensor* t : all) *t = at::as_strided(*t, {t->numel()}, {1}, t->storage_offset());
  std::vector<Compared> pieces((like.numel() + kPiece - 1) / kPiece);
  at::parallel_for(0, static_cast<int64_t>(pieces.size()), 1, [&](int64_t first, int64_t last) {
    at::DisableRecordFunctionGuard no_recording;
    Plain plain;
    for (int64_t i = first; i < last; ++i) {
      const int64_t begin = i * kPiece, n = std::min(kPiece, like.numel() - begin);
      CallValues piece = whole;
      for (at::Tensor* t : tensors_of(&piece))
        *t = at::as_strided(*t, {n}, {1}, t->storage_offset() + begin);
      compare_piece(chain, composition, gradients, piece, begin, &pieces[i]);
    }
  });
  for (const Compared& piece : pieces) merge(piece, out);
}

ChainValues summed(const std::vector<at::Tensor>& results, const SiteGradients& gradients,
                   const at::Tensor& cotangent) {
  ChainValues out;
  out.y = results[0];
  for (size_t i = 0; i < gradients.wanted.size(); ++i) {
    std::vector<at::Tensor> terms;
    for (int part : gradients.parts[i])
      terms.push_back(part == SiteGradients::kCotangent ? cotangent : results[1 + part]);
    out.gradients.push_back(!gradients.wanted[i] ? at::Tensor()
                            : terms.empty()      ? cotangent
                                                 : sum_of(terms));
  }
  return out;
}

ChainValues run_recorded(const RecordedChain& chain, const SiteGradients& gradients,
                         const std::vector<at::Tensor>& inputs, const at::Tensor& cotangent) {
  Plain plain;
  if (!cotangent.defined()) return {chain.forward.run(inputs)[0], {}};
  std::vector<at::Tensor> given = inputs;
  given.push_back(cotangent);
  return summed(chain.both.run(given), gradients, cotangent);
}

Scaling check_scaling(const RecordedChain& chain, const SiteGradients& gradients,
                      const std::vector<at::Tensor>& inputs, const at::Tensor& cotangent) {
  Plain plain;
  const std::vector<at::Tensor> x = in_double(inputs);
  const at::Tensor g = on_host(cotangent).to(c10::kDouble);
  constexpr double kFactor = -4;  // exact in every dtype
  constexpr double kSmallest = std::numeric_limits<double>::min();
  const Truth once = truth_of(chain, gradients, x, g, kSmallest);
  const Truth scaled = truth_of(chain, gradients, x, g * kFactor, kSmallest);
  Comparison c;
  for (size_t i = 0; i < x.size(); ++i) {
    if (!gradients.wanted[i]) continue;
    const at::Tensor expected = (once.values.gradients[i] * kFactor).contiguous();
    const at::Tensor found = scaled.values.gradients[i].contiguous(),
                     size = scaled.magnitudes.gradients[i].contiguous();
    compare_function(view_of(found), view_of(expected), view_of(size), 0, &c);
  }
  return {same_function(c.error), std::max(c.function.index, c.nonfinite.index)};
}

}  // namespace opfuse::torch_bridge
