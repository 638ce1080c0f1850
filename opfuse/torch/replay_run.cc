#include "opfuse/torch/replay_run.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <set>
#include <tuple>

#include "opfuse/base/check.h"
#include "opfuse/torch/host_memory.h"
#include "opfuse/torch/quiet.h"
#include "opfuse/torch/replay_allocator.h"
#include "opfuse/torch/replay_layout.h"
#include "opfuse/torch/replay_values.h"

namespace opfuse::torch_bridge {
namespace {

using graph::Graph;
using graph::kNone;
using graph::Node;
using graph::NodeId;
using graph::ValueId;
using Clock = std::chrono::steady_clock;

class GeneratorState {
 public:
  GeneratorState() : generator_(at::detail::getDefaultCPUGenerator()) {
    std::lock_guard lock(generator_.mutex());
    saved_ = generator_.get_state();
  }
  ~GeneratorState() { set(saved_); }
  void set(const at::Tensor& state) {
    std::lock_guard lock(generator_.mutex());
    generator_.set_state(state);
  }

 private:
  at::Generator generator_;
  at::Tensor saved_;
};

class Run {
 public:
  Run(const Record& record, const Graph& graph, const verify::ReplayOptions& options,
      const ReplayWatches& watches, ReplayEvaluation* out)
      : record_(record),
        graph_(graph),
        options_(options),
        watches_(watches),
        out_(out),
        values_(record, graph, options) {}

  void run() {
    compile();
    plan_lifetimes();
    keep_externals();
    for (size_t i = 0; i < operations_.size(); ++i) {
      const NodeId id = static_cast<NodeId>(i);
      step(operations_[i]);
      keep_results(id);
      look(id);
      for (int32_t storage : free_after_[i]) values_.release(storage);
    }
  }

 private:
  [[noreturn]] static void fail(std::string message) { throw ReplayFailure{std::move(message)}; }

  // ---- before the first node

  void compile() {
    operations_.reserve(graph_.nodes.size());
    for (NodeId id = 0; id < static_cast<NodeId>(graph_.nodes.size()); ++id) {
      Result<Operation> operation = make_operation(graph_, id, &record_);
      if (!operation.ok()) fail(operation.error().message);
      operations_.push_back(std::move(operation.value()));
    }
  }

  void plan_lifetimes() {
    std::vector<NodeId> last(graph_.storages.size(), kNone);
    const auto touch = [&](ValueId value, NodeId node) {
      if (value == kNone || graph_.values[value].storage == kNone) return;
      NodeId& at = last[graph_.values[value].storage];
      at = std::max(at, node);
    };
    last_write_.assign(graph_.storages.size(), kNone);
    for (NodeId id = 0; id < static_cast<NodeId>(graph_.nodes.size()); ++id) {
      const Node& node = graph_.nodes[id];
      for (const graph::Input& input : node.inputs)
        for (ValueId value : input.values) touch(value, id);
      for (ValueId value : node.outputs) touch(value, id);
      for (ValueId value : node.writes) {
        touch(value, id);
        if (value != kNone && graph_.values[value].storage != kNone)
          last_write_[graph_.values[value].storage] = id;
      }
    }
    for (const auto& [node, watch] : watches_)
      for (ValueId value : watch.values) touch(value, node);
    free_after_.resize(graph_.nodes.size());
    for (size_t storage = 0; storage < last.size(); ++storage)
      if (last[storage] != kNone)
        free_after_[last[storage]].push_back(static_cast<int32_t>(storage));
    for (ValueId value : options_.keep) keep_after_.emplace(graph_.values[value].producer, value);
  }

  // ---- values

  // ---- one node

  void step(const Operation& operation) {
    const Node& node = graph_.nodes[operation.node];
    const Call* call = node.event == kNone ? nullptr : &record_.calls[node.event];
    if (node.event != kNone) write_from_outside(node);
    if (!operation.op) return;
    // Some kernels decide by it what they keep for backward.
    c10::GradMode::set_enabled((node.region.flags & trace::kGradMode) != 0);
    const bool draw = call && node.random;
    if (draw && options_.recorded_random && !call->random_results.empty()) {
      take_recorded(operation, *call);
    } else {
      if (draw && call->generator.defined()) generator_.set(call->generator.get_state());
      run_operator(operation);
    }
    if (call && options_.check_hashes) check_hashes(operation, *call);
  }

  // Bytes that something other than the recorded operators wrote before this call.
  void write_from_outside(const Node& node) {
    for (int32_t event = node.event; event != kNone; event = record_.table.events[event].parent) {
      if (record_.calls[event].pokes.empty() || !poked_.insert(event).second) continue;
      for (const auto& [storage, bytes] : record_.calls[event].pokes) {
        if (static_cast<size_t>(storage) >= graph_.storages.size()) continue;
        const std::string& label = graph_.storages[storage].label;
        note_cut((label.empty() ? "a tensor" : label) + " was written from outside before " +
                 describe_node(graph_, static_cast<NodeId>(&node - graph_.nodes.data())));
        values_.overwrite(storage, bytes);
      }
    }
  }

  void take_recorded(const Operation& operation, const Call& call) {
    const Node& node = graph_.nodes[operation.node];
    for (const auto& [row, recorded] : call.random_results) {
      const int slot = values_.slot_for_row(row);
      if (slot == kNone) continue;
      at::Tensor tensor = recorded.to(values_.stored_dtype(recorded.scalar_type()))
                              .to(values_.device_of(values_.slot(slot).storage));
      if (values_.has_memory(values_.slot(slot))) {
        values_.get(slot).copy_(tensor);
      } else {
        bind_result(operation, slot, tensor.is_same(recorded) ? tensor.clone() : tensor);
      }
    }
    if (draws_from_values(node))
      note_cut("the result of " + describe_node(graph_, operation.node) + " comes from the record");
  }

  // Random results that depend continuously on an input: taking them from the record cuts it off.
  static bool draws_from_values(const Node& node) {
    return node.op.starts_with("aten.native_dropout") || node.op.starts_with("aten.rrelu") ||
           node.op.starts_with("aten.normal.Tensor") || node.op.starts_with("aten._standard_gamma");
  }

  void run_operator(const Operation& operation) {
    const Node& node = graph_.nodes[operation.node];
    c10::ScalarType result = c10::kLong;
    if (!node.outputs.empty() && node.outputs[0] != kNone)
      result = static_cast<c10::ScalarType>(graph_.values[node.outputs[0]].meta.dtype);
    const TensorSource source = [&](ValueId id) {
      at::Tensor tensor = values_.value(id);
      return operation.changes_geometry && tensor.defined() ? tensor.alias() : tensor;
    };
    torch::jit::Stack stack;
    try {
      stack = make_stack(operation, source, options_.f64, result);
      if (options_.channels_last && reshapes(graph_, node))
        stack = {reshaped(node, stack)};
      else
        operation.op->callBoxed(stack);
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const std::exception& error) {
      if (!options_.f64 || options_.channels_last)
        fail(describe_node(graph_, operation.node) + ": " + first_line(error));
      stack = run_in_recorded_dtype(operation, result, first_line(error));
    }
    const std::vector<at::Tensor> results = flatten_results(stack);
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      if (node.outputs[k] == kNone) continue;
      if (k >= results.size() || !results[k].defined())
        fail(describe_node(graph_, operation.node) + " gave no result " + std::to_string(k));
      const int slot = values_.slot_of(node.outputs[k]);
      if (slot != kNone) bind_result(operation, slot, results[k]);
    }
  }

  // The shape is the record's.
  at::Tensor reshaped(const Node& node, const torch::jit::Stack& stack) const {
    return stack.front().toTensor().reshape(graph_.values[node.outputs[0]].meta.shape);
  }

  // The truth is computed on the CPU: devices may have no fp64.
  static void use_host(torch::jit::Stack* stack) {
    for (c10::IValue& value : *stack)
      if (value.isDevice()) value = c10::Device(c10::kCPU);
  }

  static std::string first_line(const std::exception& error) {
    const std::string text = error.what();
    return text.substr(0, text.find('\n'));
  }

  // Where an operator without a kernel of the CPU runs: a vendor's, on the vendor's device.
  c10::Device home_of(const c10::OperatorHandle& op) const {
    for (const auto& [storage, device] : record_.devices) {
      const c10::DispatchKey key =
          device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::PrivateUse1;
      if (!op.hasKernelForDispatchKey(c10::DispatchKey::CPU) && op.hasKernelForDispatchKey(key))
        return device;
    }
    return c10::Device(c10::kCPU);
  }

  // No kernel for double: cast the arguments down, run, cast the results up.
  torch::jit::Stack run_in_recorded_dtype(const Operation& operation, c10::ScalarType result,
                                          const std::string& why) {
    std::vector<std::pair<ValueId, at::Tensor>> lowered;
    const c10::Device home = home_of(*operation.op);
    const TensorSource source = [&](ValueId id) {
      at::Tensor tensor = values_.value(id);
      if (!tensor.defined() || values_.slot_of(id) == kNone) return tensor;
      tensor = tensor.to(home, values_.slot(values_.slot_of(id)).dtype, false, true);
      lowered.emplace_back(id, tensor);
      return tensor;
    };
    torch::jit::Stack stack;
    try {
      stack = make_stack(operation, source, false, result);
      if (home.is_cpu()) use_host(&stack);
      operation.op->callBoxed(stack);
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const std::exception& error) {
      fail(describe_node(graph_, operation.node) + " in fp64: " + why);
    }
    note_cut(describe_node(graph_, operation.node) +
             " has no fp64 kernel and ran in its own dtype");
    const Node& node = graph_.nodes[operation.node];
    for (const auto& [id, tensor] : lowered)
      if (std::find(node.writes.begin(), node.writes.end(), id) != node.writes.end())
        values_.value(id).copy_(tensor);
    torch::jit::Stack results;
    for (at::Tensor& tensor : flatten_results(stack)) {
      at::Tensor up = tensor;
      for (const auto& [id, low] : lowered)
        if (tensor.defined() && low.is_same(tensor)) up = values_.value(id);
      if (up.defined()) up = on_host(up).to(raised(up.scalar_type()));
      results.emplace_back(std::move(up));
    }
    return results;
  }

  // In the replay every view must lie where the record says, or later views would read elsewhere.
  void bind_result(const Operation& operation, int id, at::Tensor tensor) {
    const Slot& slot = values_.slot(id);
    if (tensor.sizes() != c10::IntArrayRef(slot.sizes))
      fail(describe_node(graph_, operation.node) + " gave another shape than in the record");
    const c10::ScalarType dtype = values_.stored_dtype(slot.dtype);
    if (tensor.scalar_type() != dtype) {
      if (!options_.f64)
        fail(describe_node(graph_, operation.node) + " gave another dtype than in the record");
      tensor = tensor.to(dtype);
    }
    if (!options_.channels_last && !same_layout(tensor, slot)) {
      if (!values_.is_placed(slot.storage)) {
        at::Tensor placed = at::as_strided(at::empty({extent(slot)}, tensor.options()), slot.sizes,
                                           slot.strides, slot.offset);
        placed.copy_(tensor);
        tensor = std::move(placed);
      } else {
        fail(describe_node(graph_, operation.node) + " gave other strides than in the record");
      }
    }
    values_.bind(id, std::move(tensor));
  }

  void check_hashes(const Operation& operation, const Call& call) {
    for (const auto& [row, hash] : call.hashes) {
      const int slot = values_.slot_for_row(row);
      if (slot == kNone) continue;
      ++out_->values_checked;
      if (torch_bridge::hash_tensor(values_.get(slot)) == hash) continue;
      if (out_->values_wrong++ == 0) out_->first_wrong = describe_node(graph_, operation.node);
    }
  }

  // ---- what is kept and looked at

  void keep_externals() {
    const auto [begin, end] = keep_after_.equal_range(kNone);
    for (auto at = begin; at != end; ++at) keep(at->second, kNone);
  }

  void keep_results(NodeId id) {
    const auto [begin, end] = keep_after_.equal_range(id);
    for (auto at = begin; at != end; ++at) keep(at->second, id);
  }

  void keep(ValueId id, NodeId now) {
    at::Tensor tensor = values_.value(id);
    const int32_t storage = graph_.values[id].storage;
    out_->kept[id] = last_write_[storage] > now ? tensor.clone() : tensor;
  }

  void look(NodeId id) {
    const auto [begin, end] = watches_.equal_range(id);
    for (auto at = begin; at != end; ++at)
      at->second.look([this](ValueId value_id) { return values_.value(value_id); });
  }

  void note_cut(std::string what) {
    if (std::find(out_->cut_points.begin(), out_->cut_points.end(), what) == out_->cut_points.end())
      out_->cut_points.push_back(std::move(what));
  }

  const Record& record_;
  const Graph& graph_;
  const verify::ReplayOptions& options_;
  const ReplayWatches& watches_;
  ReplayEvaluation* out_;
  ReplayValues values_;

  Quiet quiet_;
  GeneratorState generator_;
  std::vector<Operation> operations_;
  std::vector<NodeId> last_write_;
  std::vector<std::vector<int32_t>> free_after_;
  std::multimap<NodeId, ValueId> keep_after_;
  std::set<int32_t> poked_;
};

}  // namespace

TensorView view_of(const at::Tensor& contiguous) {
  return {contiguous.const_data_ptr(), static_cast<DType>(contiguous.scalar_type()),
          contiguous.sizes().vec()};
}

Result<TensorView> ReplayEvaluation::value(ValueId id) const {
  const auto found = kept.find(id);
  if (found == kept.end()) return Error{"replay: expected a value that was kept, found another"};
  at::Tensor& tensor = contiguous_[id];
  if (!tensor.defined()) {
    Quiet quiet;
    tensor = on_host(found->second).contiguous();
  }
  return view_of(tensor);
}

const at::Tensor* ReplayEvaluation::tensor(ValueId id) const {
  const auto found = kept.find(id);
  return found == kept.end() ? nullptr : &found->second;
}

Result<std::unique_ptr<ReplayEvaluation>> run_replay(const Record& record, const Graph& graph,
                                                     const verify::ReplayOptions& options,
                                                     const ReplayLimits& limits,
                                                     const ReplayWatches& watches) {
  if (!record.with_values) return Error{"replay: expected a record with values"};
  if (!record.complete) return Error{"replay: the record was cut off at its cap"};
  if (!record.declined.empty()) return Error{"replay: the step has " + record.declined.front()};
  const Clock::time_point start = Clock::now();
  auto out = std::make_unique<ReplayEvaluation>();
  try {
    ReplayMemory memory(limits.max_bytes);
    Run(record, graph, options, watches, out.get()).run();
    out->peak_bytes = memory.peak_bytes();
  } catch (const ReplayFailure& failure) {
    return Error{"replay: " + failure.message};
  } catch (const c10::OutOfMemoryError& error) {
    return Error{error.what_without_backtrace()};
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return Error{"replay: " + text.substr(0, text.find('\n'))};
  }
  out->seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return out;
}

}  // namespace opfuse::torch_bridge
