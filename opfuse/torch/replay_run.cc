#include "opfuse/torch/replay_run.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <set>
#include <tuple>

#include "opfuse/base/check.h"
#include "opfuse/torch/replay_allocator.h"

namespace opfuse::torch_bridge {
namespace {

using graph::Graph;
using graph::kNone;
using graph::Node;
using graph::NodeId;
using graph::Value;
using graph::ValueId;
using Clock = std::chrono::steady_clock;

// A failure of this replay, as a sentence; turned into an Error at the border of this file.
struct ReplayFailure {
  std::string message;
};

// Below autograd and everything that watches operators.
struct Quiet {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::DisableRecordFunctionGuard no_recording;
  c10::AutoGradMode no_grad{false};
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
  c10::impl::ExcludeDispatchKeyGuard no_modes{
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})};
};

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

struct Slot {
  int32_t storage = kNone;
  int64_t offset = 0;
  std::vector<int64_t> sizes, strides;
  c10::ScalarType dtype = c10::kFloat;
  bool wrapped = false;
  std::optional<double> number;

  auto key() const { return std::tie(storage, offset, sizes, strides, dtype, wrapped); }
  bool operator<(const Slot& other) const { return key() < other.key(); }
};

bool same_layout(const at::Tensor& tensor, const Slot& slot) {
  if (tensor.sizes() != c10::IntArrayRef(slot.sizes)) return false;
  if (tensor.numel() == 0) return true;
  if (tensor.storage_offset() != slot.offset) return false;
  for (size_t i = 0; i < slot.sizes.size(); ++i)
    if (slot.sizes[i] > 1 && tensor.strides()[i] != slot.strides[i]) return false;
  return true;
}

int64_t extent(const Slot& slot) {  // elements that a storage needs to hold the view
  int64_t last = slot.offset;
  for (size_t i = 0; i < slot.sizes.size(); ++i) {
    if (slot.sizes[i] == 0) return slot.offset;
    last += (slot.sizes[i] - 1) * slot.strides[i];
  }
  return last + 1;
}

// Moves each finite value by one unit in the last place, up or down by the bits of a generator.
template <class Bits>
void move_by_one(Bits* values, int64_t n, Bits infinity, uint64_t seed) {
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  constexpr Bits kSign = static_cast<Bits>(Bits{1} << (sizeof(Bits) * 8 - 1));
  for (int64_t i = 0; i < n; ++i) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    const Bits magnitude = values[i] & static_cast<Bits>(~kSign);
    if (magnitude >= static_cast<Bits>(infinity - 1)) continue;
    const bool up = magnitude == 0 || (state >> 40 & 1);
    values[i] = static_cast<Bits>(up ? values[i] + 1 : values[i] - 1);
  }
}

void perturb(const at::Tensor& flat, uint64_t seed) {
  void* data = flat.mutable_data_ptr();
  const int64_t n = flat.numel();
  switch (flat.scalar_type()) {
    case c10::kDouble:
      return move_by_one(static_cast<uint64_t*>(data), n, uint64_t{0x7ff} << 52, seed);
    case c10::kFloat:
      return move_by_one(static_cast<uint32_t*>(data), n, 0x7f800000u, seed);
    case c10::kHalf:
      return move_by_one(static_cast<uint16_t*>(data), n, uint16_t{0x7c00}, seed);
    case c10::kBFloat16:
      return move_by_one(static_cast<uint16_t*>(data), n, uint16_t{0x7f80}, seed);
    default:
      return;
  }
}

class Run {
 public:
  Run(const Record& record, const Graph& graph, const verify::ReplayOptions& options,
      const ReplayWatches& watches, ReplayEvaluation* out)
      : record_(record), graph_(graph), options_(options), watches_(watches), out_(out) {}

  void run() {
    compile();
    plan_lifetimes();
    keep_externals();
    for (size_t i = 0; i < operations_.size(); ++i) {
      const NodeId id = static_cast<NodeId>(i);
      step(operations_[i]);
      keep_results(id);
      look(id);
      for (int32_t storage : free_after_[i]) release(storage);
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
    bound_by_storage_.resize(graph_.storages.size());
    bases_.resize(graph_.storages.size());
    written_ = written_storages(graph_);
    slot_of_value_.reserve(graph_.values.size());
    for (const Value& value : graph_.values) slot_of_value_.push_back(slot_for(value));
  }

  int slot_for(const Value& value) {
    if (value.storage == kNone || !value.meta.shape_known) return kNone;
    Slot slot;
    slot.storage = value.storage;
    slot.offset = value.meta.offset;
    slot.sizes = value.meta.shape;
    slot.strides = value.meta.strides;
    slot.dtype = static_cast<c10::ScalarType>(value.meta.dtype);
    slot.wrapped = value.meta.flags & trace::kWrappedNumber;
    slot.number = value.meta.number;
    return slot_for(std::move(slot));
  }

  int slot_for(Slot slot) {
    const auto [at, fresh] = slot_ids_.emplace(std::move(slot), static_cast<int>(slots_.size()));
    if (fresh) {
      slots_.push_back(at->first);
      bound_.emplace_back();
    }
    return at->second;
  }

  int slot_for_row(int32_t row) {
    const trace::TensorRow& tensor = record_.table.tensors[row];
    if (tensor.storage == kNone) return kNone;
    Slot slot{tensor.storage,
              tensor.offset,
              tensor.shape,
              tensor.strides,
              static_cast<c10::ScalarType>(tensor.dtype),
              (tensor.flags & trace::kWrappedNumber) != 0,
              {}};
    return slot_for(std::move(slot));
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

  at::Tensor value(ValueId id) {
    if (id == kNone) return {};
    const int slot = slot_of_value_[id];
    if (slot == kNone)
      fail("a value of " +
           (graph_.values[id].producer == kNone
                ? std::string("the step's inputs")
                : describe_node(graph_, graph_.values[id].producer)) +
           " has no known storage or shape");
    return get(slot);
  }

  at::Tensor get(int id) {
    if (bound_[id].defined()) return bound_[id];
    const Slot& slot = slots_[id];
    if (slot.wrapped && slot.number && !has_snapshot(slot.storage)) return bind(id, number(slot));
    const at::Tensor base = base_of(slot);
    at::Tensor tensor;
    if (base.scalar_type() == stored_dtype(slot.dtype)) {
      tensor = at::as_strided(base, slot.sizes, slot.strides, slot.offset);
    } else {  // the same bytes read as another dtype
      if (options_.f64)
        fail("the step reads the bytes of a tensor as another dtype: no fp64 replay");
      tensor = at::empty({0}, base.options().dtype(slot.dtype));
      tensor.set_(base.storage(), slot.offset, slot.sizes, slot.strides);
    }
    if (slot.wrapped) tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    return bind(id, std::move(tensor));
  }

  at::Tensor number(const Slot& slot) const {
    at::Tensor tensor = c10::isIntegralType(slot.dtype, true)
                            ? at::scalar_tensor(static_cast<int64_t>(*slot.number), slot.dtype)
                            : at::scalar_tensor(*slot.number, stored_dtype(slot.dtype));
    tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    return tensor;
  }

  c10::ScalarType stored_dtype(c10::ScalarType dtype) const {
    return options_.f64 ? raised(dtype) : dtype;
  }

  bool has_snapshot(int32_t storage) const {
    return static_cast<size_t>(storage) < record_.snapshots.size() &&
           record_.snapshots[storage].defined();
  }

  // Some tensor on the slot's storage: one that is bound, else the snapshot.
  at::Tensor base_of(const Slot& slot) {
    const std::vector<int>& bound = bound_by_storage_[slot.storage];
    if (!bound.empty()) return bound_[bound.front()];
    at::Tensor& base = bases_[slot.storage];
    if (!base.defined()) {
      if (!has_snapshot(slot.storage))
        fail("the record holds no bytes of storage " + std::to_string(slot.storage) + " " +
             graph_.storages[slot.storage].label + " that the step reads");
      base = from_bytes(record_.snapshots[slot.storage], slot.dtype, written_[slot.storage]);
      if (options_.perturb_seed != 0 && !slot.wrapped && c10::isFloatingType(slot.dtype)) {
        if (!options_.f64 && !written_[slot.storage]) base = base.clone();
        perturb(base, static_cast<uint64_t>(options_.perturb_seed) * 1000003 + slot.storage);
      }
    }
    return base;
  }

  // A flat tensor of the bytes, raised in fp64. Without `copy` it may share the record's memory.
  at::Tensor from_bytes(const at::Tensor& bytes, c10::ScalarType dtype, bool copy) const {
    const int64_t n = bytes.numel() / static_cast<int64_t>(c10::elementSize(dtype));
    at::Tensor flat = at::empty({0}, bytes.options().dtype(dtype));
    flat.set_(bytes.storage(), 0, {n}, {1});
    if (options_.f64 && raised(dtype) != dtype) return flat.to(raised(dtype));
    return copy || options_.f64 ? flat.clone() : flat;
  }

  at::Tensor bind(int id, at::Tensor tensor) {
    if (!bound_[id].defined()) bound_by_storage_[slots_[id].storage].push_back(id);
    bound_[id] = std::move(tensor);
    return bound_[id];
  }

  void release(int32_t storage) {
    for (int slot : bound_by_storage_[storage]) bound_[slot] = at::Tensor();
    bound_by_storage_[storage].clear();
    bases_[storage] = at::Tensor();
  }

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
        if (static_cast<size_t>(storage) >= bases_.size()) continue;
        const std::string& label = graph_.storages[storage].label;
        note_cut((label.empty() ? "a tensor" : label) + " was written from outside before " +
                 describe_node(graph_, static_cast<NodeId>(&node - graph_.nodes.data())));
        const std::vector<int>& bound = bound_by_storage_[storage];
        const c10::ScalarType dtype = dtype_of_storage(storage);
        const at::Tensor fresh = from_bytes(bytes, dtype, true);
        if (bound.empty()) {
          bases_[storage] = fresh;
        } else {
          at::as_strided(bound_[bound.front()], {fresh.numel()}, {1}, 0).copy_(fresh);
        }
      }
    }
  }

  c10::ScalarType dtype_of_storage(int32_t storage) const {
    for (const Slot& slot : slots_)
      if (slot.storage == storage) return slot.dtype;
    return c10::kByte;
  }

  void take_recorded(const Operation& operation, const Call& call) {
    const Node& node = graph_.nodes[operation.node];
    for (const auto& [row, recorded] : call.random_results) {
      const int slot = slot_for_row(row);
      if (slot == kNone) continue;
      at::Tensor tensor = recorded.to(stored_dtype(recorded.scalar_type()));
      if (bound_[slot].defined() || !bound_by_storage_[slots_[slot].storage].empty() ||
          bases_[slots_[slot].storage].defined() || has_snapshot(slots_[slot].storage)) {
        get(slot).copy_(tensor);
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
      at::Tensor tensor = value(id);
      return operation.changes_geometry && tensor.defined() ? tensor.alias() : tensor;
    };
    torch::jit::Stack stack;
    try {
      stack = make_stack(operation, source, options_.f64, result);
      operation.op->callBoxed(stack);
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const std::exception& error) {
      if (!options_.f64) fail(describe_node(graph_, operation.node) + ": " + first_line(error));
      stack = run_in_recorded_dtype(operation, result, first_line(error));
    }
    const std::vector<at::Tensor> results = flatten_results(stack);
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      if (node.outputs[k] == kNone) continue;
      if (k >= results.size() || !results[k].defined())
        fail(describe_node(graph_, operation.node) + " gave no result " + std::to_string(k));
      const int slot = slot_of_value_[node.outputs[k]];
      if (slot != kNone) bind_result(operation, slot, results[k]);
    }
  }

  static std::string first_line(const std::exception& error) {
    const std::string text = error.what();
    return text.substr(0, text.find('\n'));
  }

  // No kernel for double: cast the arguments down, run, cast the results up.
  torch::jit::Stack run_in_recorded_dtype(const Operation& operation, c10::ScalarType result,
                                          const std::string& why) {
    std::vector<std::pair<ValueId, at::Tensor>> lowered;
    const TensorSource source = [&](ValueId id) {
      at::Tensor tensor = value(id);
      if (!tensor.defined() || slot_of_value_[id] == kNone) return tensor;
      tensor = tensor.to(slots_[slot_of_value_[id]].dtype, false, true);
      lowered.emplace_back(id, tensor);
      return tensor;
    };
    torch::jit::Stack stack;
    try {
      stack = make_stack(operation, source, false, result);
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
        value(id).copy_(tensor);
    torch::jit::Stack results;
    for (at::Tensor& tensor : flatten_results(stack)) {
      at::Tensor up = tensor;
      for (const auto& [id, low] : lowered)
        if (tensor.defined() && low.is_same(tensor)) up = value(id);
      if (up.defined()) up = up.to(raised(up.scalar_type()));
      results.emplace_back(std::move(up));
    }
    return results;
  }

  // In the replay every view must lie where the record says, or later views would read elsewhere.
  void bind_result(const Operation& operation, int id, at::Tensor tensor) {
    const Slot& slot = slots_[id];
    if (tensor.sizes() != c10::IntArrayRef(slot.sizes))
      fail(describe_node(graph_, operation.node) + " gave another shape than in the record");
    const c10::ScalarType dtype = stored_dtype(slot.dtype);
    if (tensor.scalar_type() != dtype) {
      if (!options_.f64)
        fail(describe_node(graph_, operation.node) + " gave another dtype than in the record");
      tensor = tensor.to(dtype);
    }
    if (!same_layout(tensor, slot)) {
      if (bound_by_storage_[slot.storage].empty() && !bases_[slot.storage].defined()) {
        at::Tensor placed = at::as_strided(at::empty({extent(slot)}, tensor.options()), slot.sizes,
                                           slot.strides, slot.offset);
        placed.copy_(tensor);
        tensor = std::move(placed);
      } else {
        fail(describe_node(graph_, operation.node) + " gave other strides than in the record");
      }
    }
    bind(id, std::move(tensor));
  }

  void check_hashes(const Operation& operation, const Call& call) {
    for (const auto& [row, hash] : call.hashes) {
      const int slot = slot_for_row(row);
      if (slot == kNone) continue;
      ++out_->values_checked;
      if (torch_bridge::hash_tensor(get(slot)) == hash) continue;
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
    at::Tensor tensor = value(id);
    const int32_t storage = graph_.values[id].storage;
    out_->kept[id] = last_write_[storage] > now ? tensor.clone() : tensor;
  }

  void look(NodeId id) {
    const auto [begin, end] = watches_.equal_range(id);
    for (auto at = begin; at != end; ++at)
      at->second.look([this](ValueId value_id) { return value(value_id); });
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

  Quiet quiet_;
  GeneratorState generator_;
  std::vector<Operation> operations_;
  std::vector<Slot> slots_;
  std::map<Slot, int> slot_ids_;
  std::vector<int> slot_of_value_;
  std::vector<at::Tensor> bound_;                   // per slot
  std::vector<std::vector<int>> bound_by_storage_;  // slots that are bound
  std::vector<at::Tensor> bases_;                   // externals: flat
  std::vector<bool> written_;
  std::vector<NodeId> last_write_;
  std::vector<std::vector<int32_t>> free_after_;
  std::multimap<NodeId, ValueId> keep_after_;
  std::set<int32_t> poked_;
};

}  // namespace

std::vector<bool> written_storages(const Graph& graph) {
  std::vector<bool> written(graph.storages.size());
  for (const Node& node : graph.nodes)
    for (ValueId value : node.writes)
      if (value != kNone && graph.values[value].storage != kNone)
        written[graph.values[value].storage] = true;
  return written;
}

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
    tensor = found->second.contiguous();
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
