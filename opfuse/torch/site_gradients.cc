#include "opfuse/torch/site_gradients.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "opfuse/torch/replay_operation.h"
#include "opfuse/torch/site_proof_values.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::torch_bridge {
namespace {

using graph::Graph;
using graph::kNone;
using graph::NodeId;
using graph::ValueId;

// Values that differ from each other, both signs, between 0.3 and 2.3.
void fill(const at::Tensor& flat, uint64_t seed) {
  std::vector<double> values(static_cast<size_t>(flat.numel()));
  uint64_t state = 0x9e3779b97f4a7c15u * (seed + 1);
  for (double& x : values) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    const double unit = static_cast<double>(state >> 11) * 0x1p-53;
    x = (state & 1 ? 1 : -1) * (0.3 + 2 * unit);
  }
  const at::Tensor source = at::empty({flat.numel()}, at::kDouble);
  std::copy(values.begin(), values.end(), source.data_ptr<double>());
  flat.copy_(source);
}

at::Tensor tensor_like(const graph::TensorMeta& meta, bool f64, uint64_t seed) {
  int64_t extent = meta.offset + 1;
  for (size_t i = 0; i < meta.shape.size(); ++i) {
    if (meta.shape[i] == 0) extent = meta.offset;
    extent += std::max<int64_t>(meta.shape[i] - 1, 0) * meta.strides[i];
  }
  const auto recorded = static_cast<c10::ScalarType>(meta.dtype);
  const at::Tensor memory =
      at::zeros({std::max<int64_t>(extent, 0)}, f64 ? raised(recorded) : recorded);
  if (memory.is_floating_point()) fill(memory, seed);
  return memory.as_strided(meta.shape, meta.strides, meta.offset);
}

bool requires_grad(const Graph& graph, ValueId value) {
  return value != kNone && (graph.values[value].meta.flags & trace::kRequiresGrad) != 0;
}

// The parts are the same up to rounding at every element.
bool close(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return false;
  const at::Tensor scale = at::abs(a).max() + at::abs(b).max();
  return (at::abs(a - b) <= scale * 1e-11).all().item<bool>();
}

// Assigns contributions to inputs so that all sums agree, in every way there is.
class Assignment {
 public:
  Assignment(const std::vector<at::Tensor>& contributions, const std::vector<at::Tensor>& gradients,
             const at::Tensor& cotangent)
      : contributions_(contributions), gradients_(gradients), cotangent_(cotangent) {
    parts_.resize(gradients.size());
  }

  int search() {
    place(0);
    return found_;
  }
  std::vector<std::vector<int>> first;

 private:
  void place(size_t next) {
    if (found_ > 1) return;
    if (next == contributions_.size()) {
      if (!agrees()) return;
      if (found_++ == 0) first = agreed_;
      return;
    }
    for (size_t i = 0; i < gradients_.size(); ++i) {
      if (!gradients_[i].defined() || gradients_[i].sizes() != contributions_[next].sizes())
        continue;
      parts_[i].push_back(static_cast<int>(next));
      place(next + 1);
      parts_[i].pop_back();
    }
  }

  bool agrees() {
    std::vector<std::vector<int>> whole = parts_;
    for (size_t i = 0; i < gradients_.size(); ++i) {
      if (!gradients_[i].defined()) continue;
      if (close(total(whole[i]), gradients_[i])) continue;
      whole[i].push_back(SiteGradients::kCotangent);
      if (whole[i].size() == 1 || !close(total(whole[i]), gradients_[i])) return false;
    }
    agreed_ = std::move(whole);
    return true;
  }

  at::Tensor total(const std::vector<int>& parts) const {
    if (parts.empty()) return cotangent_;
    std::vector<at::Tensor> terms;
    for (int part : parts)
      terms.push_back(part == SiteGradients::kCotangent ? cotangent_ : contributions_[part]);
    return sum_of(terms);
  }

  const std::vector<at::Tensor>& contributions_;
  const std::vector<at::Tensor>& gradients_;
  const at::Tensor& cotangent_;
  std::vector<std::vector<int>> parts_, agreed_;
  int found_ = 0;
};

// Several contributions to one input must meet in sums that the engine makes.
std::optional<std::string> summed_elsewhere(const Graph& graph, const match::Match& match,
                                            const std::vector<int>& parts) {
  const std::vector<NodeId>& own = match.backward.nodes;
  bool meets_cotangent = false;
  for (int part : parts) {
    if (part == SiteGradients::kCotangent) continue;
    for (NodeId user : graph.users[match.backward.grad_inputs[part]]) {
      const bool sum = graph::is_engine_accumulation(graph, user);
      if (std::find(own.begin(), own.end(), user) == own.end() && !sum)
        return "a part of a gradient is read by " + describe_node(graph, user);
      for (const graph::Input& input : graph.nodes[user].inputs)
        meets_cotangent |= sum && input.kind == graph::InputKind::kTensor &&
                           input.values[0] == match.backward.grad_output;
    }
  }
  const bool with_cotangent =
      std::find(parts.begin(), parts.end(), SiteGradients::kCotangent) != parts.end();
  if (with_cotangent && (!meets_cotangent || parts.size() != 2))
    return "the cotangent is a part of a gradient, and summed elsewhere";
  return std::nullopt;
}

}  // namespace

Result<RecordedChain> recorded_chain(const Record& record, const Graph& graph,
                                     const match::Match& match) {
  RecordedChain chain;
  OPFUSE_TRY(chain.forward, Chain::make(graph, match.nodes, match.inputs, match.outputs, &record));
  if (match.backward.nodes.empty()) return chain;
  std::vector<NodeId> nodes = match.nodes;
  nodes.insert(nodes.end(), match.backward.nodes.begin(), match.backward.nodes.end());
  std::vector<ValueId> inputs = match.inputs, outputs = match.outputs;
  inputs.push_back(match.backward.grad_output);
  outputs.insert(outputs.end(), match.backward.grad_inputs.begin(),
                 match.backward.grad_inputs.end());
  OPFUSE_TRY(chain.both, Chain::make(graph, nodes, inputs, outputs, &record));
  return chain;
}

std::vector<at::Tensor> tensors_like(const Graph& graph, const match::Match& match, bool f64) {
  std::vector<ValueId> values = match.inputs;
  if (!match.backward.nodes.empty()) values.push_back(match.backward.grad_output);
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < values.size(); ++i)
    tensors.push_back(values[i] == kNone ? at::Tensor()
                                         : tensor_like(graph.values[values[i]].meta, f64, i));
  return tensors;
}

Result<SiteGradients> site_gradients(const Graph& graph, const match::Match& match,
                                     const RecordedChain& chain) {
  SiteGradients out;
  const size_t count = match.inputs.size();
  out.wanted.assign(count, false);
  out.parts.resize(count);
  const match::BackwardChain& backward = match.backward;
  if (backward.nodes.empty()) return out;
  if (count == 1) {  // all are contributions to the one input
    out.wanted[0] = true;
    for (size_t i = 0; i < backward.grad_inputs.size(); ++i)
      out.parts[0].push_back(static_cast<int>(i));
    return out;
  }
  for (size_t i = 0; i < count; ++i) out.wanted[i] = requires_grad(graph, match.inputs[i]);
  at::DisableRecordFunctionGuard no_recording;
  std::vector<at::Tensor> inputs = tensors_like(graph, match, true);
  std::vector<at::Tensor> contributions;
  {
    c10::AutoGradMode no_grad(false);
    contributions = chain.both.run(inputs, true);
  }
  contributions.erase(contributions.begin());
  const at::Tensor cotangent = inputs.back();
  inputs.pop_back();
  const ChainValues truth = differentiate(chain.forward, inputs, cotangent, out.wanted, true);
  Assignment assignment(contributions, truth.gradients, cotangent);
  const int ways = assignment.search();
  if (ways != 1)
    return Error{ways == 0 ? "the recorded gradients are not those of its operators"
                           : "the recorded gradients cannot be told apart"};
  out.parts = std::move(assignment.first);
  for (const std::vector<int>& parts : out.parts)
    if (parts.size() > 1)
      if (auto problem = summed_elsewhere(graph, match, parts)) return Error{*problem};
  return out;
}

}  // namespace opfuse::torch_bridge
