#include "opfuse/verify/value_numbering.h"

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <unordered_map>

#include "opfuse/graph/schema.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::verify {
namespace {

using graph::Graph;
using graph::kNone;
using graph::Node;
using graph::NodeId;
using graph::TensorMeta;
using graph::Value;
using graph::ValueId;

class Hasher {
 public:
  explicit Hasher(std::string_view tag) { add(tag); }
  Hasher& add(uint64_t x) {
    high_ = mix(high_ ^ (x * 0xbf58476d1ce4e5b9u)) + 0x9e3779b97f4a7c15u;
    low_ = mix(low_ + x) * 0x94d049bb133111ebu + 1;
    return *this;
  }
  Hasher& add(const Term& term) { return add(term.high).add(term.low); }
  Hasher& add(std::string_view text) {
    add(uint64_t{text.size()});
    for (size_t i = 0; i < text.size(); i += 8) {
      uint64_t word = 0;
      for (size_t j = i; j < std::min(i + 8, text.size()); ++j)
        word = word << 8 | static_cast<unsigned char>(text[j]);
      add(word);
    }
    return *this;
  }
  Term term() const { return {mix(high_ ^ low_), mix(low_ + std::rotl(high_, 17))}; }

 private:
  static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint64_t high_ = 0x243f6a8885a308d3u, low_ = 0x13198a2e03707344u;
};

constexpr uint16_t kRegionMask = trace::kGradMode | trace::kInferenceMode | trace::kAutocast |
                                 trace::kGraphTask | trace::kPythonMode | trace::kSavedTensorHooks |
                                 trace::kCheckpointRecompute | trace::kCreateGraph;

struct StorageState {
  bool defined = false;
  uint32_t version = 0;
  Term content;
  // The content is a sum made by the autograd engine: its terms in any order.
  std::vector<Term> parts;
  Term sum_geometry;
  size_t sum = 0;  // row of Numberer::sums_
  // The storage is a copy that AccumulateGrad made: seen through this geometry it is its source.
  std::optional<Term> copy_source;
  Term copy_geometry;
  std::map<Term, Term> paths;  // ignore_shapes: geometry -> how the view was made
};

struct Sum {
  Term term;
  NodeId node = kNone;
  bool absorbed = false;  // by a larger sum
};

bool is_size_argument(std::string_view op, std::string_view name) {
  static constexpr std::string_view kSizes[] = {"size",  "sizes", "input_sizes",   "self_sizes",
                                                "shape", "numel", "storage_offset"};
  if (std::find(std::begin(kSizes), std::end(kSizes), name) != std::end(kSizes)) return true;
  if (name == "stride")
    return op.find("strided") != std::string_view::npos || op == "aten._reshape_alias";
  return op.find("group_norm") != std::string_view::npos && (name == "N" || name == "HxW");
}

bool takes_python_data(const Node& node) {
  return node.op.starts_with("aten.lift_fresh") && !node.inputs.empty() &&
         !node.inputs[0].values.empty();
}

bool adopts_storage(const Node& node) { return node.op.starts_with("aten.set_.source_Storage"); }

class Numberer {
 public:
  Numberer(const Graph& graph, const SharedNames& names)
      : graph_(graph), names_(names), storages_(graph.storages.size()) {}

  Numbering run() {
    result_.terms.reserve(graph_.nodes.size());
    for (NodeId id = 0; id < static_cast<NodeId>(graph_.nodes.size()); ++id) {
      visit(id);
      if (!result_.refusal.empty()) return std::move(result_);
    }
    for (const Sum& sum : sums_)
      if (!sum.absorbed) result_.terms.push_back({sum.node, sum.term, sum.term});
    return std::move(result_);
  }

 private:
  void refuse(NodeId node, std::string reason) {
    if (!result_.refusal.empty()) return;
    result_.refusal = std::move(reason);
    result_.refusal_node = node;
  }

  Term geometry(const TensorMeta& meta) const {
    Hasher hash("view");
    hash.add(static_cast<uint64_t>(meta.dtype)).add(uint64_t{meta.shape_known});
    hash.add(uint64_t{meta.shape.size()});
    hash.add(static_cast<uint64_t>(meta.offset));
    for (size_t i = 0; i < meta.shape.size(); ++i) {
      hash.add(static_cast<uint64_t>(meta.shape[i]));
      // The stride of a dimension of one element addresses nothing.
      if (i < meta.strides.size() && meta.shape[i] > 1)
        hash.add(static_cast<uint64_t>(meta.strides[i]));
    }
    return hash.term();
  }

  Term external(const Value& value) {
    const graph::Storage& storage = graph_.storages[value.storage];
    if (storage.session_id >= 0 && names_.session_ids.count(storage.session_id))
      return Hasher("session").add(static_cast<uint64_t>(storage.session_id)).term();
    if (!storage.label.empty() && names_.labels.count(storage.label))
      return Hasher("label").add(std::string_view(storage.label)).term();
    Hasher hash("external");
    hash.add(externals_++).add(static_cast<uint64_t>(value.meta.dtype));
    hash.add(uint64_t{value.meta.shape.size()});
    if (!names_.ignore_shapes)
      for (int64_t size : value.meta.shape) hash.add(static_cast<uint64_t>(size));
    return hash.term();
  }

  Term view_of(StorageState& state, const TensorMeta& meta) {
    const Term where = geometry(meta);
    if (!names_.ignore_shapes) return Hasher("value").add(state.content).add(where).term();
    auto [path, fresh] = state.paths.try_emplace(where);
    if (fresh) {  // not made by a recorded view: told apart by the order of appearance
      path->second = Hasher("path")
                         .add(uint64_t{state.paths.size()})
                         .add(static_cast<uint64_t>(meta.dtype))
                         .add(uint64_t{meta.shape.size()})
                         .term();
    }
    return Hasher("value").add(state.content).add(path->second).term();
  }

  // Learning rates and bias corrections change with every step: inside an optimizer's step real
  // numbers are compared by their place only. No plan touches that code.
  bool is_scheduled(const Node& node) const {
    for (int32_t scope = node.scope; scope != kNone; scope = graph_.scopes[scope].parent)
      if (graph_.scopes[scope].kind == graph::ScopeKind::kUserScope &&
          graph_.scopes[scope].name.starts_with("Optimizer.step#"))
        return true;
    return false;
  }

  Term read(NodeId node, ValueId id) {
    if (id == kNone) return Hasher("undefined").term();
    const Value& value = graph_.values[id];
    if ((value.meta.flags & trace::kWrappedNumber) && is_floating(value.meta.dtype) &&
        is_scheduled(graph_.nodes[node]))
      return Hasher("scheduled number").add(static_cast<uint64_t>(value.meta.dtype)).term();
    if ((value.meta.flags & trace::kWrappedNumber) && value.meta.number)
      return Hasher("number")
          .add(static_cast<uint64_t>(value.meta.dtype))
          .add(std::bit_cast<uint64_t>(*value.meta.number))
          .term();
    if (value.storage == kNone) return read_without_storage(node, id);
    StorageState& state = storages_[value.storage];
    if (!state.defined) {
      if (!graph_.storages[value.storage].external)
        refuse(node, "reads a tensor that was made inside the step by no recorded operator");
      state.defined = true;
      state.version = value.version;
      state.content = external(value);
    }
    if (value.version > state.version && value.producer == kNone) {  // written from outside
      const Term before = state.content;
      state = {};
      state.defined = true;
      state.version = value.version;
      state.content = Hasher("outside").add(before).add(outside_writes_++).term();
    }
    if (state.copy_source && geometry(value.meta) == state.copy_geometry) return *state.copy_source;
    return view_of(state, value.meta);
  }

  Term read_without_storage(NodeId node, ValueId id) {
    auto known = without_storage_.find(id);
    if (known != without_storage_.end()) return known->second;
    if (graph_.values[id].producer != kNone)
      refuse(node, "reads a tensor without storage that no recorded operator had made yet");
    return without_storage_[id] = Hasher("external").add(externals_++).term();
  }

  void add_attr(const Node& node, size_t index, const graph::Attr& attr, NodeId id, Hasher* hash) {
    hash->add(uint64_t{attr.index()});
    const std::string_view name = node.schema && index < node.schema->arguments.size()
                                      ? std::string_view(node.schema->arguments[index].name)
                                      : std::string_view();
    if (names_.ignore_shapes && is_size_argument(node.op, name)) return;
    std::visit([&](const auto& value) { add_value(node, value, id, hash); }, attr);
  }
  void add_value(const Node&, const graph::UnknownAttr&, NodeId id, Hasher*) {
    refuse(id, "has an argument that the record does not hold");
  }
  void add_value(const Node& node, const graph::OpaqueAttr& value, NodeId id, Hasher* hash) {
    // A generator's state is in the draw's number, an adopted storage in its own; a process group
    // belongs to its operator.
    const bool harmless = value.type.find("Generator") != std::string::npos ||
                          node.op.rfind("aten.", 0) != 0 || adopts_storage(node);
    if (!harmless) refuse(id, "has an argument of type " + value.type + ", which has no text form");
    hash->add(std::string_view(value.type));
  }
  void add_value(const Node&, const graph::NoneAttr&, NodeId, Hasher*) {}
  void add_value(const Node&, bool value, NodeId, Hasher* hash) { hash->add(uint64_t{value}); }
  void add_value(const Node&, int64_t value, NodeId, Hasher* hash) {
    hash->add(static_cast<uint64_t>(value));
  }
  void add_value(const Node& node, double value, NodeId, Hasher* hash) {
    if (!is_scheduled(node)) hash->add(std::bit_cast<uint64_t>(value));
  }
  void add_value(const Node&, const std::string& value, NodeId, Hasher* hash) {
    hash->add(std::string_view(value));
  }
  template <class T>
  void add_value(const Node& node, const std::vector<T>& values, NodeId id, Hasher* hash) {
    hash->add(uint64_t{values.size()});
    for (T value : values) add_value(node, value, id, hash);
  }

  // The engine's own sum of two gradients: a multiset, because the order of arrival is not data.
  void visit_sum(NodeId id) {
    const Node& node = graph_.nodes[id];
    std::vector<Term> parts;
    for (int side : {0, 1}) {
      const ValueId value = node.inputs[side].values[0];
      const Term single = read(id, value);
      StorageState* state = storage_of(value);
      if (state && !state->parts.empty() &&
          geometry(graph_.values[value].meta) == state->sum_geometry) {
        parts.insert(parts.end(), state->parts.begin(), state->parts.end());
        sums_[state->sum].absorbed = true;
      } else {
        parts.push_back(single);
      }
    }
    std::sort(parts.begin(), parts.end());
    Hasher hash("sum");
    for (const Term& part : parts) hash.add(part);
    const ValueId result = node.writes.empty() ? node.outputs[0] : node.writes[0];
    StorageState* state = storage_of(result);
    if (!state) return;
    *state = {};
    state->defined = true;
    state->content = hash.term();
    state->parts = std::move(parts);
    state->sum_geometry = geometry(graph_.values[result].meta);
    state->version = graph_.values[result].version;
    if (!node.writes.empty()) note_version(node, 0, state);
    state->sum = sums_.size();
    sums_.push_back({hash.term(), id, false});
  }

  StorageState* storage_of(ValueId id) {
    if (id == kNone || graph_.values[id].storage == kNone) return nullptr;
    return &storages_[graph_.values[id].storage];
  }

  // AccumulateGrad keeps a gradient by taking it, by cloning it or by copying it into a new buffer,
  // whichever the reference counts of the moment allow. Returns true when the node is one of these.
  bool visit_accumulate(NodeId id) {
    const Node& node = graph_.nodes[id];
    const int32_t scope = graph::enclosing_scope(graph_, id, graph::ScopeKind::kAutogradNode);
    if (scope == kNone || graph_.scopes[scope].name.find("AccumulateGrad") == std::string::npos)
      return false;
    if (node.op == "aten.new_empty_strided" || node.op == "aten.empty_strided") {
      if (StorageState* state = storage_of(node.outputs[0])) {
        state->defined = true;
        state->version = graph_.values[node.outputs[0]].version;
        state->content = Hasher("buffer").term();
      }
      return true;
    }
    const bool clone = node.op == "aten.clone", copy = node.op == "aten.copy_";
    if (!clone && !copy) return false;
    const ValueId target = clone ? node.outputs[0] : node.inputs[0].values[0];
    const ValueId source = node.inputs[clone ? 0 : 1].values[0];
    StorageState* state = storage_of(target);
    if (!state || source == kNone) return false;
    if (copy && state->content != Hasher("buffer").term()) return false;
    const Term term = read(id, source);
    *state = {};
    state->defined = true;
    state->content = Hasher("copy").add(term).term();
    state->version = graph_.values[target].version;
    if (!node.writes.empty()) note_version(node, 0, state);
    state->copy_source = term;
    state->copy_geometry = geometry(graph_.values[target].meta);
    return true;
  }

  // torch.tensor([1, 2]) fills memory that no operator writes; only a record with values sees it.
  void take_python_data(const Node& node) {
    if (!takes_python_data(node)) return;
    const ValueId value = node.inputs[0].values[0];
    StorageState* state = storage_of(value);
    if (!state) return;
    *state = {};
    state->defined = true;
    state->version = graph_.values[value].version;
    state->content = Hasher("python data").add(externals_++).term();
  }

  void visit(NodeId id) {
    const Node& node = graph_.nodes[id];
    take_python_data(node);
    if (node.op == "aten.detach" || node.op == "aten.alias") {  // the same view again
      note_outputs(node, Hasher("alias").term());
      return;
    }
    if (graph::is_engine_accumulation(graph_, id)) return visit_sum(id);
    if (visit_accumulate(id)) return;
    Hasher all(node.op), reads("reads");
    const bool relaxed = names_.relaxed.count(node.op) != 0;
    all.add(uint64_t{relaxed ? 0u : node.region.flags & kRegionMask});
    if (node.random) all.add(++draws_);
    // Each adopts memory that was filled elsewhere, by a loader's worker: another value each time.
    if (adopts_storage(node)) all.add(externals_++);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const graph::Input& input = node.inputs[i];
      all.add(static_cast<uint64_t>(input.kind)).add(uint64_t{input.values.size()});
      if (input.kind == graph::InputKind::kAttr) add_attr(node, i, input.attr, id, &all);
      for (ValueId value : input.values) {
        const Term term = read(id, value);
        all.add(term);
        reads.add(term);
      }
    }
    const Term term = all.term();
    result_.terms.push_back({id, term, reads.term()});
    note_views(node);
    write(node, term);
    note_outputs(node, term);
  }

  void note_version(const Node& node, size_t k, StorageState* state) const {
    if (k < node.written.size() && node.written[k] != kNone)
      state->version = std::max(state->version, graph_.values[node.written[k]].version);
  }

  void write(const Node& node, const Term& term) {
    for (size_t k = 0; k < node.writes.size(); ++k) {
      StorageState* state = storage_of(node.writes[k]);
      if (!state) continue;
      Hasher hash("written");
      hash.add(term).add(uint64_t{k});
      state->content = hash.term();
      state->defined = true;
      note_version(node, k, state);
      state->parts.clear();
      state->copy_source.reset();
    }
  }

  void note_outputs(const Node& node, const Term& term) {
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const ValueId id = node.outputs[k];
      if (id == kNone) continue;
      StorageState* state = storage_of(id);
      const Term made = Hasher("made").add(term).add(uint64_t{k}).term();
      if (!state) {
        without_storage_[id] = made;
        continue;
      }
      if (state->defined) continue;  // a view of something known
      state->defined = true;
      state->version = graph_.values[id].version;
      state->content = made;
    }
  }

  // With shapes ignored, a view is known by how it was made instead of by its geometry.
  void note_views(const Node& node) {
    if (!names_.ignore_shapes) return;
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      StorageState* state = storage_of(node.outputs[k]);
      if (!state || !state->defined) continue;
      Hasher hash("made view");
      hash.add(std::string_view(node.op)).add(uint64_t{k});
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (node.inputs[i].kind == graph::InputKind::kAttr)
          add_attr(node, i, node.inputs[i].attr, kNone, &hash);
        for (ValueId value : node.inputs[i].values) {
          if (storage_of(value) != state) continue;
          const auto path = state->paths.find(geometry(graph_.values[value].meta));
          if (path != state->paths.end()) hash.add(path->second);
        }
      }
      state->paths.try_emplace(geometry(graph_.values[node.outputs[k]].meta), hash.term());
    }
  }

  const Graph& graph_;
  const SharedNames& names_;
  std::vector<StorageState> storages_;
  std::unordered_map<ValueId, Term> without_storage_;
  std::vector<Sum> sums_;
  uint64_t externals_ = 0, draws_ = 0, outside_writes_ = 0;
  Numbering result_;
};

// Storages that Python filled inside the step, as torch.tensor([1, 2]) does: what a loader makes in
// one step and the next one reads plays another part in each.
std::unordered_set<int64_t> made_by_python(const Graph& graph) {
  std::unordered_set<int64_t> made;
  for (const Node& node : graph.nodes) {
    if (!takes_python_data(node)) continue;
    for (ValueId value : node.inputs[0].values)
      if (value != kNone && graph.values[value].storage != kNone)
        made.insert(graph.storages[graph.values[value].storage].session_id);
  }
  return made;
}

}  // namespace

SharedNames shared_names(const Graph& expected, const Graph& observed, bool ignore_shapes) {
  SharedNames names;
  names.ignore_shapes = ignore_shapes;
  std::unordered_set<int64_t> ids;
  std::unordered_set<std::string_view> labels;
  for (const graph::Storage& storage : expected.storages) {
    if (!storage.external) continue;
    ids.insert(storage.session_id);
    labels.insert(storage.label);
  }
  for (const graph::Storage& storage : observed.storages) {
    if (!storage.external) continue;
    if (storage.session_id >= 0 && ids.count(storage.session_id))
      names.session_ids.insert(storage.session_id);
    if (!storage.label.empty() && labels.count(storage.label)) names.labels.insert(storage.label);
  }
  const auto recorded = [](const Node& node) { return node.event != kNone; };
  if (std::any_of(expected.nodes.begin(), expected.nodes.end(), recorded)) {
    for (const Node& node : expected.nodes)
      if (!recorded(node)) names.relaxed.insert(node.op);
  }
  for (const Graph* graph : {&expected, &observed})
    for (int64_t id : made_by_python(*graph)) names.session_ids.erase(id);
  return names;
}

Numbering number_values(const Graph& graph, const SharedNames& names) {
  return Numberer(graph, names).run();
}

}  // namespace opfuse::verify
