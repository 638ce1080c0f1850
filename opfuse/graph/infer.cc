#include "opfuse/graph/infer.h"

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "opfuse/graph/effects.h"
#include "opfuse/graph/infer_memory.h"
#include "opfuse/graph/infer_nodes.h"
#include "opfuse/graph/shapes.h"

namespace opfuse::graph {
namespace {

// Without allocation events a value is looked for among the results of so many nodes before.
constexpr NodeId kWindow = 64;
constexpr NodeId kNear = 16;

// What an input looks like: shape and dtype decide which values can be meant.
using Look = std::pair<std::vector<int64_t>, DType>;

int64_t bytes_of(const TensorMeta& meta) {
  return meta.shape_known && meta.dtype != DType::kUnknown ? meta.numel() * dtype_size(meta.dtype)
                                                           : -1;
}

bool is_number(const TensorMeta& meta) { return (meta.flags & trace::kWrappedNumber) != 0; }

class EdgeFinder {
 public:
  EdgeFinder(const trace::EventTable& table, InferredNodes nodes)
      : table_(table), nodes_(std::move(nodes)), memory_(table) {}

  InferredGraph run() {
    result_.has_memory = memory_.size() > 0;
    find_readers();
    for (NodeId id = 0; id < static_cast<NodeId>(graph().nodes.size()); ++id) {
      bind_inputs(id);
      add_results(id);
      if (is_other(graph().nodes[id])) last_other_ = id;
    }
    index_users(&graph());
    result_.graph = std::move(nodes_.graph);
    result_.kernels = std::move(nodes_.kernels);
    result_.node_of_kernel = std::move(nodes_.node_of_kernel);
    return std::move(result_);
  }

 private:
  // A value that an input can be.
  struct Candidate {
    ValueId value = kNone;
    NodeId node = kNone;     // its producer; kNone: external
    int32_t buffer = kNone;  // its memory
  };

  Graph& graph() { return nodes_.graph; }
  const TensorMeta& meta(ValueId id) const { return nodes_.graph.values[id].meta; }
  int64_t start(NodeId id) const { return table_.events[nodes_.graph.nodes[id].event].start_ns; }
  int64_t end(NodeId id) const {
    const trace::EventRow& event = table_.events[nodes_.graph.nodes[id].event];
    return event.start_ns + std::max<int64_t>(event.dur_ns, 0);
  }

  // Every input comes with a value of its own that says how it looks; bind_inputs() replaces it.
  void find_readers() {
    for (NodeId id = 0; id < static_cast<NodeId>(graph().nodes.size()); ++id)
      for (const Input& input : graph().nodes[id].inputs)
        for (ValueId value : input.values)
          if (value != kNone && !is_number(meta(value))) {
            result_.has_shapes = true;
            std::vector<NodeId>& readers = readers_[look_of(meta(value))];
            if (readers.empty() || readers.back() != id) readers.push_back(id);
          }
  }

  static Look look_of(const TensorMeta& meta) { return {meta.shape, meta.dtype}; }

  // Nodes behind `from` that began before `until` and read something that looks so; the dtype of
  // what stands in a list is not in the files.
  int readers_between(const Look& look, NodeId from, int64_t until) const {
    int count = 0;
    for (const Look& one : {look, Look(look.first, DType::kUnknown)}) {
      const auto it = readers_.find(one);
      if (it == readers_.end()) continue;
      for (auto node = std::ranges::upper_bound(it->second, from); node != it->second.end();
           ++node) {
        if (start(*node) >= until || ++count > 1) break;
      }
    }
    return count;
  }

  bool alive(const Candidate& candidate, NodeId reader) const {
    if (candidate.buffer != kNone) return memory_.buffer(candidate.buffer).freed_ns > start(reader);
    return candidate.node == kNone || result_.has_memory || reader - candidate.node <= kWindow;
  }

  // Values of known shape and dtype must agree; others by the size of their memory.
  std::vector<Candidate> candidates_for(const TensorMeta& wanted, NodeId reader) {
    std::vector<Candidate> found;
    const auto collect = [&](std::vector<Candidate>& list, bool by_size) {
      std::erase_if(list, [&](const Candidate& c) { return !alive(c, reader); });
      for (auto c = list.rbegin(); c != list.rend(); ++c)
        if (!by_size || fits_buffer(bytes_of(wanted), memory_.buffer(c->buffer)))
          found.push_back(*c);
    };
    if (wanted.dtype == DType::kUnknown) {
      static_assert(DType::kUnknown < DType::kU8);  // the first of all in the map's order
      for (auto it = known_.lower_bound({wanted.shape, DType::kUnknown});
           it != known_.end() && it->first.first == wanted.shape; ++it)
        collect(it->second, false);
    } else if (auto it = known_.find(look_of(wanted)); it != known_.end()) {
      collect(it->second, false);
    }
    const int64_t bytes = bytes_of(wanted);
    if (bytes > 0)
      if (auto it = sized_.find(rounded(bytes)); it != sized_.end()) collect(it->second, true);
    return found;
  }

  // At most `count` of the candidates, the likeliest first; of equals, the first.
  std::vector<Candidate> likeliest(const std::vector<Candidate>& candidates, size_t count,
                                   NodeId reader) const {
    using Ranked = std::tuple<int, NodeId, ptrdiff_t>;  // likeliness, then the place from the front
    std::vector<Ranked> ranked;
    ranked.reserve(candidates.size());
    for (const Candidate& candidate : candidates) {
      const auto [rank, node] = likeliness(candidate, reader);
      ranked.emplace_back(rank, node, -static_cast<ptrdiff_t>(ranked.size()));
    }
    count = std::min(count, ranked.size());
    std::ranges::partial_sort(ranked, ranked.begin() + static_cast<ptrdiff_t>(count),
                              std::greater{});
    std::vector<Candidate> first;
    for (size_t i = 0; i < count; ++i) first.push_back(candidates[-std::get<2>(ranked[i])]);
    return first;
  }

  // A result that nothing has read is what is computed with next, the newest first. Then what the
  // pointwise operators since the last other one (a product, a convolution) have made or used: the
  // one that was touched longest ago is a variable (x in x * sigmoid(f(x))), what was read last
  // was most often a temporary. Further back the newest is as good as any. A part is cut out of
  // what the operator just before read, not of what that one made: x * cos + cat(-x2, x1) * sin.
  std::pair<int, NodeId> likeliness(const Candidate& candidate, NodeId reader) const {
    const auto read = last_read_.find(candidate.value);
    if (read != last_read_.end() && read->second == reader - 1) {
      const Node &node = nodes_.graph.nodes[reader], &before = nodes_.graph.nodes[reader - 1];
      if (is_part(node)) return {3, kNone};
      if (node.op == before.op && node.schema != nullptr && node.schema->is_view())
        return {-1, kNone};  // nobody makes the same view twice: cos, then sin
    }
    if (candidate.node == kNone) return {0, kNone};
    if (read == last_read_.end()) return {2, candidate.node};
    if (candidate.node >= last_other_ && reader - read->second <= kNear) return {1, -read->second};
    return {0, candidate.node};
  }

  static bool is_part(const Node& node) {
    for (std::string_view name : {"aten.slice.Tensor", "aten.narrow", "aten.chunk",
                                  "aten.split.Tensor", "aten.split_with_sizes"})
      if (node.op == name) return true;
    return false;
  }

  // No part of a chain of small operators.
  static bool is_other(const Node& node) {
    if (node.schema == nullptr) return true;
    if (node.schema->pointwise || node.schema->is_view()) return false;
    for (std::string_view name : {"aten._to_copy", "aten.clone", "aten.contiguous", "aten.mean.dim",
                                  "aten.sum.dim_IntList", "aten.cat", "aten._unsafe_view"})
      if (node.op == name) return false;
    return true;
  }

  static int64_t rounded(int64_t bytes) {
    return (bytes + kAllocationGrain - 1) / kAllocationGrain;
  }

  // Its memory was given back before anything else that looks so could read it.
  bool must_be_read_here(const Candidate& candidate, const Look& look) const {
    if (candidate.buffer == kNone || candidate.node == kNone) return false;
    const Buffer& buffer = memory_.buffer(candidate.buffer);
    if (buffer.freed_ns == std::numeric_limits<int64_t>::max()) return false;
    return readers_between(look, candidate.node, buffer.freed_ns) == 1;
  }

  // Inputs of one node that look alike are decided together.
  void bind_inputs(NodeId id) {
    std::map<Look, std::vector<std::pair<int, int>>> groups;
    Node& node = graph().nodes[id];
    for (int i = 0; i < static_cast<int>(node.inputs.size()); ++i)
      for (int k = 0; k < static_cast<int>(node.inputs[i].values.size()); ++k) {
        const ValueId value = node.inputs[i].values[k];
        if (value != kNone && !is_number(meta(value)))
          groups[look_of(meta(value))].emplace_back(i, k);
      }
    for (const auto& [look, places] : groups) bind_group(id, look, places);
  }

  void bind_group(NodeId id, const Look& look, const std::vector<std::pair<int, int>>& places) {
    const TensorMeta wanted =
        meta(graph().nodes[id].inputs[places[0].first].values[places[0].second]);
    std::vector<Candidate> certain, others;
    for (const Candidate& c : candidates_for(wanted, id))
      (must_be_read_here(c, look) ? certain : others).push_back(c);
    std::vector<std::pair<ValueId, Proof>> chosen;
    for (const Candidate& c : likeliest(certain, places.size(), id))
      chosen.emplace_back(c.value, Proof::kP2);
    const size_t open = places.size() - chosen.size();
    const bool only = others.size() <= open;
    for (const Candidate& c : likeliest(others, open, id)) {
      const bool has_memory = c.buffer != kNone;
      chosen.emplace_back(c.value, only ? (has_memory ? Proof::kP2 : Proof::kP1)
                                        : (has_memory ? Proof::kP1 : Proof::kP0));
    }
    if (chosen.empty()) return add_external(id, look, places);
    // x * x: fewer values than places.
    while (chosen.size() < places.size()) chosen.push_back(chosen.back());
    for (const auto& [value, proof] : chosen) {
      if (wanted.dtype != DType::kUnknown) learn_look(value, wanted);
      last_read_[value] = id;
    }
    order_operands(id, places, &chosen);
    for (size_t i = 0; i < places.size(); ++i) {
      Input& input = graph().nodes[id].inputs[places[i].first];
      input.values[places[i].second] = chosen[i].first;
      input.proof = std::min(input.proof, chosen[i].second);
      ++result_.edges[static_cast<size_t>(chosen[i].second)];
    }
  }

  // A value that was known by the size of its memory looks as its reader says.
  void learn_look(ValueId value, const TensorMeta& wanted) {
    TensorMeta& known = graph().values[value].meta;
    if (known.shape_known && known.dtype != DType::kUnknown) return;
    known.shape_known = true;
    known.shape = wanted.shape;
    known.strides = wanted.strides;
    known.dtype = wanted.dtype;
    if (known.device < 0) known.device = wanted.device;
    const auto buffer = buffer_of_.find(value);
    if (buffer == buffer_of_.end()) return;
    std::vector<Candidate>& list = sized_[rounded(memory_.buffer(buffer->second).bytes)];
    std::erase_if(list, [&](const Candidate& c) { return c.value == value; });
    known_[look_of(known)].push_back({value, graph().values[value].producer, buffer->second});
  }

  // Memory without gaps, in any order of the dimensions; true where the strides are not known.
  static bool is_dense(const TensorMeta& meta) {
    if (!meta.shape_known || meta.strides.size() != meta.shape.size()) return true;
    std::vector<std::pair<int64_t, int64_t>> dims;
    for (size_t i = 0; i < meta.shape.size(); ++i)
      if (meta.shape[i] != 1) dims.emplace_back(meta.strides[i], meta.shape[i]);
    std::ranges::sort(dims);
    int64_t packed = 1;
    for (const auto& [stride, size] : dims) {
      if (stride != packed) return false;
      packed *= size;
    }
    return true;
  }

  // Of two operands, one that lies in memory with gaps is a view, not what an operator has just
  // made. Swaps them where that decides; false where it does not.
  bool order_by_strides(NodeId id, const std::vector<std::pair<int, int>>& places,
                        std::vector<std::pair<ValueId, Proof>>* chosen) const {
    if (places.size() != 2 || chosen->size() != 2) return false;
    const auto fits = [&](size_t place, size_t value) {
      const auto& [input, k] = places[place];
      return !fresh_.contains((*chosen)[value].first) ||
             is_dense(meta(nodes_.graph.nodes[id].inputs[input].values[k]));
    };
    const bool straight = fits(0, 0) && fits(1, 1), crossed = fits(0, 1) && fits(1, 0);
    if (straight == crossed) return false;
    if (crossed) std::swap((*chosen)[0], (*chosen)[1]);
    return true;
  }

  // Which of two values is the first operand is a guess where the order matters.
  void order_operands(NodeId id, const std::vector<std::pair<int, int>>& places,
                      std::vector<std::pair<ValueId, Proof>>* chosen) const {
    static constexpr std::string_view kCommutative[] = {"aten.mul.Tensor", "aten.add.Tensor",
                                                        "aten.maximum", "aten.minimum"};
    const std::string& op = nodes_.graph.nodes[id].op;
    if (chosen->size() < 2 || std::ranges::find(kCommutative, op) != std::end(kCommutative)) return;
    if (order_by_strides(id, places, chosen)) return;
    const bool distinct = (*chosen)[0].first != (*chosen)[1].first;
    std::ranges::sort(*chosen);  // older first: as x is before f(x) in most formulas
    if (distinct)
      for (auto& [value, proof] : *chosen) proof = std::min(proof, Proof::kP1);
  }

  // One value for everything that looks so and was made before the file began.
  void add_external(NodeId id, const Look& look, const std::vector<std::pair<int, int>>& places) {
    const ValueId value = graph().nodes[id].inputs[places[0].first].values[places[0].second];
    for (const auto& [i, k] : places) {
      graph().nodes[id].inputs[i].values[k] = value;
      graph().nodes[id].inputs[i].proof = Proof::kP1;
    }
    known_[look].push_back({value, kNone, kNone});
    last_read_[value] = id;
  }

  // ---- results

  std::vector<TensorMeta> input_metas(const Node& node) const {
    std::vector<TensorMeta> metas;
    for (const Input& input : node.inputs)
      for (ValueId value : input.values)
        if (value != kNone) metas.push_back(meta(value));
    return metas;
  }

  void add_results(NodeId id) {
    const Schema* schema = graph().nodes[id].schema;
    const size_t count = schema == nullptr ? 1 : schema->returns.size();
    const trace::EventRow& event = table_.events[graph().nodes[id].event];
    std::vector<int32_t> fresh = memory_.survivors(event.thread, start(id), end(id));
    for (size_t output = 0; output < count; ++output) {
      TensorMeta result;
      if (output == 0) result = infer_result(graph().nodes[id], input_metas(graph().nodes[id]));
      if (output < event.outputs.size() && event.outputs[output].tensors.size() == 1)
        result = recorded_meta(event.outputs[output].tensors[0]);
      const Alias alias =
          schema == nullptr ? Alias{} : schema_alias(graph().nodes[id], static_cast<int>(output));
      if (alias.input != kNone)
        add_alias(id, static_cast<int>(output), alias, result);
      else
        add_fresh(id, static_cast<int>(output), result, &fresh);
    }
  }

  // Some files do write what the results look like.
  TensorMeta recorded_meta(int32_t tensor) const {
    const trace::TensorRow& row = table_.tensors[tensor];
    TensorMeta result;
    result.dtype = row.dtype;
    result.shape_known = row.shape_known;
    result.shape = row.shape;
    result.device = row.device;
    return result;
  }

  ValueId add_value(NodeId id, int output, const TensorMeta& result, int32_t storage,
                    uint32_t version) {
    Value value;
    value.producer = id;
    value.output = output;
    value.storage = storage;
    value.version = version;
    value.meta = result;
    graph().values.push_back(std::move(value));
    const auto made = static_cast<ValueId>(graph().values.size() - 1);
    graph().nodes[id].outputs.push_back(made);
    return made;
  }

  // A view, or the argument after the write.
  void add_alias(NodeId id, int output, const Alias& alias, TensorMeta result) {
    const Value base = graph().values[alias.input];
    if (alias.written) result = base.meta;
    const ValueId made =
        add_value(id, output, result, base.storage, base.version + (alias.written ? 1 : 0));
    if (alias.written) {
      Node& node = graph().nodes[id];
      node.writes.push_back(alias.input);
      node.written.push_back(made);
      if (auto it = known_.find(look_of(base.meta)); it != known_.end())
        std::erase_if(it->second, [&](const Candidate& c) { return c.value == alias.input; });
    }
    const auto buffer = buffer_of_.find(alias.input);
    register_value({made, id, buffer == buffer_of_.end() ? kNone : buffer->second});
  }

  void add_fresh(NodeId id, int output, const TensorMeta& result, std::vector<int32_t>* fresh) {
    int32_t buffer = kNone;
    const int64_t bytes = bytes_of(result);
    for (size_t i = 0; i < fresh->size() && buffer == kNone; ++i)
      if (bytes < 0 || fits_buffer(bytes, memory_.buffer((*fresh)[i]))) {
        buffer = (*fresh)[i];
        fresh->erase(fresh->begin() + static_cast<ptrdiff_t>(i));
      }
    Storage storage;
    storage.bytes = buffer == kNone ? bytes : memory_.buffer(buffer).bytes;
    graph().storages.push_back(storage);
    const ValueId made =
        add_value(id, output, result, static_cast<int32_t>(graph().storages.size() - 1), 0);
    fresh_.insert(made);
    register_value({made, id, buffer});
  }

  void register_value(const Candidate& candidate) {
    const TensorMeta& m = meta(candidate.value);
    if (candidate.buffer != kNone) buffer_of_[candidate.value] = candidate.buffer;
    if (m.shape_known && m.dtype != DType::kUnknown)
      known_[look_of(m)].push_back(candidate);
    else if (candidate.buffer != kNone)
      sized_[rounded(memory_.buffer(candidate.buffer).bytes)].push_back(candidate);
  }

  const trace::EventTable& table_;
  InferredNodes nodes_;
  MemoryTimeline memory_;
  InferredGraph result_;
  std::map<Look, std::vector<NodeId>> readers_;
  std::map<Look, std::vector<Candidate>> known_;
  std::unordered_map<int64_t, std::vector<Candidate>> sized_;  // shape not known, by size
  std::unordered_map<ValueId, int32_t> buffer_of_;
  std::unordered_map<ValueId, NodeId> last_read_;
  std::unordered_set<ValueId> fresh_;  // made by an operator, no views
  NodeId last_other_ = kNone;
};

}  // namespace

Result<InferredGraph> infer_graph(const trace::EventTable& table, const SchemaTable& schemas) {
  return EdgeFinder(table, infer_nodes(table, schemas)).run();
}

}  // namespace opfuse::graph
