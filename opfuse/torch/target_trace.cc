#include "opfuse/torch/target_trace.h"

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "opfuse/graph/build.h"
#include "opfuse/graph/schema.h"
#include "opfuse/graph/text.h"
#include "opfuse/torch/host_memory.h"
#include "opfuse/torch/recorder.h"
#include "opfuse/torch/site_gradients.h"
#include "opfuse/torch/site_proof_chain.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::torch_bridge {
namespace {

using graph::Graph;
using graph::kNone;
using graph::NodeId;
using graph::ValueId;

std::string meta_text(const graph::TensorMeta& meta) {
  std::string text = std::string(dtype_name(meta.dtype)) + "[";
  for (size_t i = 0; i < meta.shape.size(); ++i)
    text += std::to_string(meta.shape[i]) + ":" + std::to_string(meta.strides[i]) + ",";
  return text + "]" + (meta.flags & trace::kRequiresGrad ? "g" : "");
}

// Everything that the target sees of a call.
std::string signature(const Graph& graph, const match::Match& match, const match::Target& target) {
  std::string text = match.rule->name + "|" + target.op;
  for (ValueId value : match.inputs)
    text += "|" + (value == kNone ? "" : meta_text(graph.values[value].meta));
  for (const auto& number : match.numbers)
    text += "|" + (number ? graph::print_attr(graph::Attr{*number}) : "");
  const uint16_t flags = graph.nodes[match.nodes[0]].region.flags;
  text += "|" + std::to_string(flags & (trace::kGradMode | trace::kInferenceMode));
  if (!match.backward.nodes.empty())
    text += "|" + meta_text(graph.values[match.backward.grad_output].meta);
  return text;
}

struct Execution {
  std::unique_ptr<Record> record;
  std::vector<at::Tensor> inputs, gradients;  // by parameter
  at::Tensor y, cotangent;
};

// The call itself, recorded.
Result<Execution> execute(const Graph& graph, const match::Match& match, const Chain& target,
                          const std::vector<bool>& wanted) {
  Execution run;
  run.inputs = tensors_like(graph, match, false);
  const c10::Device device = device_of_code(graph.values[match.outputs[0]].meta.device);
  for (at::Tensor& input : run.inputs) input = on_device(input, device);
  const bool backward = !match.backward.nodes.empty();
  if (backward) {
    run.cotangent = run.inputs.back();
    run.inputs.pop_back();
  }
  std::vector<at::Tensor> leaves;
  for (size_t i = 0; i < run.inputs.size(); ++i) {
    if (!run.inputs[i].defined()) continue;
    run.inputs[i] = run.inputs[i].detach();
    const bool requires_grad =
        (graph.values[match.inputs[i]].meta.flags & trace::kRequiresGrad) != 0;
    run.inputs[i].requires_grad_(requires_grad);
    if (backward && wanted[i]) leaves.push_back(run.inputs[i].requires_grad_(true));
  }
  const uint16_t flags = graph.nodes[match.nodes[0]].region.flags;
  OPFUSE_TRY_STATUS(start_recording({.values = false, .python_frames = false}));
  std::vector<at::Tensor> gradients;
  try {
    c10::impl::ForceDispatchKeyGuard keys{c10::default_included_set, c10::default_excluded_set};
    c10::AutoGradMode grad{backward || (flags & trace::kGradMode) != 0};
    run.y = target.run(run.inputs)[0];
    if (backward) gradients = torch::autograd::grad({run.y}, leaves, {run.cotangent});
  } catch (const std::exception& error) {
    abandon_recording();
    const std::string text = error.what();
    return Error{text.substr(0, text.find('\n'))};
  }
  OPFUSE_TRY(run.record, stop_recording());
  run.gradients.resize(run.inputs.size());
  for (size_t i = 0, next = 0; backward && i < run.inputs.size(); ++i)
    if (wanted[i]) run.gradients[i] = gradients[next++];
  return run;
}

const void* memory_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

class TraceReader {
 public:
  TraceReader(Execution* run, const match::Target& target) : run_(*run), target_(target) {}

  Result<std::shared_ptr<const rewrite::TargetTrace>> read() {
    label();
    OPFUSE_TRY(trace_->graph, graph::build_graph(run_.record->table, graph::SchemaTable::builtin(),
                                                 &run_.record->extra_schemas));
    sort_nodes();
    for (const at::Tensor& input : run_.inputs) {
      // An input that the target passes over (a bias that is zero) is no value of the trace.
      trace_->inputs.push_back(input.defined() ? value_of(input) : kNone);
    }
    trace_->outputs = {value_of(run_.y)};
    if (trace_->outputs[0] == kNone) return Error{target_.op + " made its result by no operator"};
    if (run_.cotangent.defined()) trace_->cotangent = value_of(run_.cotangent);
    for (const at::Tensor& gradient : run_.gradients) {
      trace_->gradients.push_back(gradient.defined() ? value_of(gradient) : kNone);
      if (gradient.defined() && trace_->gradients.back() == kNone)
        return Error{target_.op + " made a gradient by no operator"};
    }
    trace_->schemas = std::shared_ptr<const Record>(std::move(run_.record));
    return std::shared_ptr<const rewrite::TargetTrace>(std::move(trace_));
  }

 private:
  void label() {
    const auto add = [&](const at::Tensor& tensor) {
      if (tensor.defined()) labels_.try_emplace(memory_of(tensor), std::to_string(labels_.size()));
    };
    for (const at::Tensor& input : run_.inputs) add(input);
    add(run_.cotangent);
    add(run_.y);
    for (const at::Tensor& gradient : run_.gradients) add(gradient);
    const std::vector<std::pair<const void*, std::string>> labels(labels_.begin(), labels_.end());
    set_storage_labels(run_.record.get(), labels);
  }

  void sort_nodes() {
    const Graph& graph = trace_->graph;
    for (NodeId id = 0; id < static_cast<NodeId>(graph.nodes.size()); ++id) {
      const std::string& op = graph.nodes[id].op;
      if (op == "aten.detach" || op == "aten.alias") continue;  // another name for the same view
      const bool backward = (graph.nodes[id].region.flags & trace::kGraphTask) != 0;
      (backward ? trace_->backward : trace_->forward).push_back(id);
    }
  }

  // The last value that is this view; kNone when no operator met it.
  ValueId value_of(const at::Tensor& tensor) const {
    const Graph& graph = trace_->graph;
    const std::string& label = labels_.at(memory_of(tensor));
    ValueId found = kNone;
    for (ValueId id = 0; id < static_cast<ValueId>(graph.values.size()); ++id) {
      const graph::Value& value = graph.values[id];
      if (value.storage == kNone || graph.storages[value.storage].label != label) continue;
      if (value.meta.offset != tensor.storage_offset() || tensor.sizes() != value.meta.shape ||
          tensor.strides() != value.meta.strides)
        continue;
      if (found == kNone || value.version >= graph.values[found].version) found = id;
    }
    return found;
  }

  Execution& run_;
  const match::Target& target_;
  std::map<const void*, std::string> labels_;
  std::shared_ptr<rewrite::TargetTrace> trace_ = std::make_shared<rewrite::TargetTrace>();
};

}  // namespace

bool needs_trace(const match::Rule& rule, const match::Target& target) {
  return rule.parameters.size() != 1 || target.backward.empty() || target.result >= 0;
}

Result<rewrite::MatchTrace> TargetTracer::trace(const Record& record, const Graph& graph,
                                                const match::Match& match,
                                                const match::Target& target) {
  rewrite::MatchTrace out;
  OPFUSE_TRY(const RecordedChain chain, recorded_chain(record, graph, match));
  OPFUSE_TRY(const SiteGradients gradients, site_gradients(graph, match, chain));
  for (const std::vector<int>& parts : gradients.parts) {
    out.contributions.emplace_back();
    for (int part : parts)
      out.contributions.back().push_back(part == SiteGradients::kCotangent
                                             ? match.backward.grad_output
                                             : match.backward.grad_inputs[part]);
  }
  std::shared_ptr<const rewrite::TargetTrace>& known = known_[signature(graph, match, target)];
  if (!known) {
    OPFUSE_TRY(const Chain call, target_chain(match, target));
    OPFUSE_TRY(Execution run, execute(graph, match, call, gradients.wanted));
    OPFUSE_TRY(known, TraceReader(&run, target).read());
  }
  out.target = known;
  for (size_t i = 0; i < gradients.wanted.size(); ++i) {
    if (!gradients.wanted[i]) continue;
    const bool handed_on = gradients.parts[i].empty();
    if (handed_on != (known->gradients[i] == known->cotangent))
      return Error{target.op + " hands the gradient of " + match.rule->parameters[i].name +
                   " on in another way than the chain"};
  }
  return out;
}

}  // namespace opfuse::torch_bridge
