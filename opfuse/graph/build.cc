#include "opfuse/graph/build.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>

#include "opfuse/graph/build_cut.h"
#include "opfuse/graph/event_attr.h"
#include "opfuse/trace/side_stream.h"

namespace opfuse::graph {
namespace {

using trace::ArgumentKind;
using trace::ArgumentRow;
using trace::EventKind;
using trace::EventRow;
using trace::EventTable;
using trace::TensorRow;

bool holds_tensors(ArgumentKind kind) {
  return kind == ArgumentKind::kTensor || kind == ArgumentKind::kTensorList ||
         kind == ArgumentKind::kOptionalTensorList;
}

// Which view it is, at which version, and on which side of a detach.
struct ValueKey {
  int32_t storage = kNone;
  uint32_t version = 0;
  int32_t branch = kNone;  // tensor id of a detached view, or of a tensor without storage
  int64_t offset = 0;
  DType dtype = DType::kUnknown;
  bool wrapped = false;
  std::vector<int64_t> shape, strides;

  auto tie() const {
    return std::tie(storage, version, branch, offset, dtype, wrapped, shape, strides);
  }
  bool operator<(const ValueKey& other) const { return tie() < other.tie(); }
};

class Builder {
 public:
  Builder(const EventTable& table, Cut cut) : table_(table), cut_(std::move(cut)) {}

  Graph run() {
    add_storages();
    add_positions();
    note_made_tensors();
    for (const trace::StorageWrite& write : table_.outside_writes)
      outside_[write.event].push_back(write.storage);
    for (const trace::StorageWrite& write : table_.undeclared_writes)
      undeclared_[write.event].push_back(write.storage);
    scope_of_event_.assign(table_.events.size(), kNone);
    for (size_t i = 0; i < cut_.nodes.size(); ++i) {
      // A hidden product stands where the operator that made it stands.
      size_t host = i;
      while (cut_.nodes[host].hidden_product) ++host;
      add_node(cut_.nodes[i], cut_.nodes[host].event);
    }
    index_users(&graph_);
    return std::move(graph_);
  }

 private:
  void add_storages() {
    for (size_t row = 0; row < table_.storages.size(); ++row) {
      const trace::StorageRow& from = table_.storages[row];
      Storage storage;
      storage.session_id = from.session_id;
      storage.bytes = from.bytes;
      storage.external = cut_.external[row];
      storage.label = table_.strings.get(from.label);
      graph_.storages.push_back(std::move(storage));
    }
    version_.assign(table_.storages.size(), 0);
    last_writer_.assign(table_.storages.size(), kNone);
    for (const trace::StorageWrite& write : table_.outside_writes)
      graph_.storages[write.storage].opaque_writes = true;
  }

  void add_positions() {
    for (const trace::FrameRow& frame : table_.frames)
      graph_.positions.push_back({std::string(table_.strings.get(frame.file)),
                                  std::string(table_.strings.get(frame.function)), frame.line,
                                  frame.column, frame.end_line, frame.end_column, frame.code});
  }

  // Tensors that operators returned; another tensor on the same view came about without one.
  void note_made_tensors() {
    for (const EventRow& event : table_.events)
      for_each_tensor(event.outputs,
                      [&](int32_t row) { made_tensors_.insert(table_.tensors[row].tensor); });
  }

  int32_t scope_for(int32_t event) {
    if (event == trace::kNone) return kNone;
    if (scope_of_event_[event] != kNone) return scope_of_event_[event];
    const EventRow& row = table_.events[event];
    int32_t parent = scope_for(row.parent);
    Scope scope;
    scope.kind = row.kind == EventKind::kOperator       ? ScopeKind::kOperator
                 : row.kind == EventKind::kAutogradNode ? ScopeKind::kAutogradNode
                 : row.kind == EventKind::kFunction     ? ScopeKind::kFunction
                                                        : ScopeKind::kUserScope;
    scope.name = scope.kind == ScopeKind::kOperator ? dotted_name(table_.name(row))
                                                    : std::string(table_.name(row));
    scope.parent = parent;
    scope.sequence = row.sequence;
    scope.event = event;
    scope_of_event_[event] = static_cast<int32_t>(graph_.scopes.size());
    graph_.scopes.push_back(std::move(scope));
    return scope_of_event_[event];
  }

  // ---- values

  ValueKey key_of(const TensorRow& row) const {
    ValueKey key;
    key.storage = row.storage;
    key.version = row.storage == kNone ? 0 : version_[row.storage];
    key.offset = row.offset;
    key.dtype = row.dtype;
    key.wrapped = row.flags & trace::kWrappedNumber;
    key.shape = row.shape;
    key.strides = row.strides;
    auto branch = branch_of_tensor_.find(row.tensor);
    if (branch != branch_of_tensor_.end()) key.branch = branch->second;
    if (row.storage == kNone) key.branch = row.tensor;
    // Without strides two views of one shape (x and x.t()) are told apart by their tensors.
    if (row.shape_known && !row.shape.empty() && row.strides.empty()) key.branch = row.tensor;
    return key;
  }

  ValueId intern(const ValueKey& key, const TensorRow& row, NodeId producer, int output) {
    auto [it, is_new] = values_.try_emplace(key, static_cast<ValueId>(graph_.values.size()));
    if (is_new) {
      Value value;
      value.producer = producer;
      value.output = producer == kNone ? 0 : output;
      value.storage = row.storage;
      value.version = key.version;
      value.meta.dtype = row.dtype;
      value.meta.shape_known = row.shape_known;
      value.meta.shape = row.shape;
      value.meta.strides = row.strides;
      value.meta.offset = row.offset;
      value.meta.device = row.device;
      value.meta.flags = row.flags;
      if ((row.flags & trace::kWrappedNumber) && row.number == row.number)
        value.meta.number = row.number;
      if (producer == kNone && row.storage != kNone)
        value.name = table_.strings.get(table_.storages[row.storage].label);
      graph_.values.push_back(std::move(value));
      if (key.storage != kNone && key.branch != kNone) branch_by_value_[it->second] = key.branch;
    }
    Value& value = graph_.values[it->second];
    value.meta.flags |= row.flags & (trace::kRequiresGrad | trace::kHasHooks | trace::kIsParameter |
                                     trace::kExported);
    if (row.flags & trace::kHasHooks) value.escapes |= kEscapesHook;
    if (row.flags & trace::kExported) value.escapes |= kEscapesExport;
    return it->second;
  }

  ValueId read(int32_t tensor, uint16_t event_flags) {
    if (tensor == trace::kNone) return kNone;
    const TensorRow& row = table_.tensors[tensor];
    ValueKey key = key_of(row);
    if (row.storage == kNone) return intern(key, row, kNone, 0);
    auto known = values_.find(key);
    // A tensor that no operator made, without the gradient that its view has: `.data`.
    if (known != values_.end() && (event_flags & trace::kGradMode) &&
        !(row.flags & trace::kRequiresGrad) && !made_tensors_.contains(row.tensor) &&
        (graph_.values[known->second].meta.flags & trace::kRequiresGrad)) {
      branch_of_tensor_[row.tensor] = row.tensor;
      key = key_of(row);
    }
    return intern(key, row, last_writer_[row.storage], -1);
  }

  // ---- nodes

  void add_node(const CutEvent& from, int32_t host) {
    const EventRow& event = table_.events[from.event];
    const auto id = static_cast<NodeId>(graph_.nodes.size());
    apply_outside_writes(host);
    Node node;
    node.op = dotted_name(table_.name(event));
    node.schema = cut_.schemas[from.event];
    node.event = from.event;
    node.forward_sequence = event.forward_sequence;
    node.hidden_product = from.hidden_product;
    node.region.flags = event.flags & kRegionFlags;
    node.scope = scope_for(table_.events[host].parent);
    node.dur_ns = event.dur_ns;
    node.thread = event.thread;
    node.random = (event.flags & trace::kRandom) || (node.schema && node.schema->random);
    node.opaque = node.schema == nullptr || (event.flags & trace::kOpaqueArguments);
    node.positions = stack_of(host);
    graph_.nodes.push_back(std::move(node));
    add_inputs(id, event);
    add_writes(id, from.event);
    add_outputs(id, event);
  }

  void apply_outside_writes(int32_t event) {
    for (; event != trace::kNone; event = table_.events[event].parent) {
      auto it = outside_.find(event);
      if (it == outside_.end()) continue;
      for (int32_t storage : it->second) {
        ++version_[storage];
        last_writer_[storage] = kNone;
      }
      outside_.erase(it);
    }
  }

  std::vector<int32_t> stack_of(int32_t event) const {
    while (event != trace::kNone && table_.events[event].stack == trace::kNone)
      event = table_.events[event].parent;
    std::vector<int32_t> frames;
    if (event == trace::kNone) return frames;
    for (int32_t row = table_.events[event].stack; row != trace::kNone;
         row = table_.stacks[row].parent)
      frames.push_back(table_.stacks[row].frame);
    return frames;
  }

  void add_inputs(NodeId id, const EventRow& event) {
    const Schema* schema = graph_.nodes[id].schema;
    size_t count = event.inputs.size();
    if (schema != nullptr) {
      if (count > schema->arguments.size()) graph_.nodes[id].opaque = true;
      count = schema->arguments.size();
    }
    for (size_t k = 0; k < count; ++k) {
      const ArgumentRow* given = k < event.inputs.size() ? &event.inputs[k] : nullptr;
      const SchemaArgument* formal = schema != nullptr ? &schema->arguments[k] : nullptr;
      graph_.nodes[id].inputs.push_back(make_input(given, formal, event.flags));
    }
  }

  Input make_input(const ArgumentRow* given, const SchemaArgument* formal, uint16_t flags) {
    Input input;
    bool is_list = formal ? formal->is_tensor_list()
                          : given->kind == ArgumentKind::kTensorList ||
                                given->kind == ArgumentKind::kOptionalTensorList;
    bool is_tensor = formal ? formal->is_tensor() : given->kind == ArgumentKind::kTensor;
    if (is_list || is_tensor) {
      input.kind = is_list ? InputKind::kTensorList : InputKind::kTensor;
      if (given != nullptr)
        for (int32_t tensor : given->tensors) input.values.push_back(read(tensor, flags));
      if (is_tensor) input.values.resize(1, kNone);
    } else if (given != nullptr && !holds_tensors(given->kind)) {
      input.attr = attr_of(table_, *given);
    } else if (given == nullptr && formal->has_default) {
      input.attr = formal->default_value;
    }
    return input;
  }

  // Input positions that the node writes.
  std::vector<size_t> written_arguments(NodeId id) const {
    const Node& node = graph_.nodes[id];
    std::vector<size_t> written;
    if (node.schema == nullptr) {  // may write anything
      for (size_t k = 0; k < node.inputs.size(); ++k) written.push_back(k);
      return written;
    }
    if (int condition = write_condition(*node.schema); condition >= 0) {
      const bool* on = std::get_if<bool>(&node.inputs[condition].attr);
      if (on != nullptr && !*on) return written;
    }
    for (size_t k = 0; k < node.inputs.size(); ++k)
      if (node.schema->arguments[k].is_write) written.push_back(k);
    return written;
  }

  void add_writes(NodeId id, int32_t event) {
    Node& node = graph_.nodes[id];
    std::set<int32_t> storages;
    auto add = [&](ValueId value) {
      if (value == kNone) return;
      int32_t storage = graph_.values[value].storage;
      if (storage == kNone) {
        node.opaque = true;
        return;
      }
      if (std::find(node.writes.begin(), node.writes.end(), value) == node.writes.end())
        node.writes.push_back(value);
      storages.insert(storage);
    };
    for (size_t k : written_arguments(id))
      for (ValueId value : node.inputs[k].values) add(value);
    if (auto it = undeclared_.find(event); it != undeclared_.end())
      for (int32_t storage : it->second)
        for (const Input& input : node.inputs)
          for (ValueId value : input.values)
            if (value != kNone && graph_.values[value].storage == storage) add(value);
    for (int32_t storage : storages) {
      ++version_[storage];
      last_writer_[storage] = id;
    }
  }

  void add_outputs(NodeId id, const EventRow& event) {
    for (const ArgumentRow& output : event.outputs)
      for (int32_t tensor : output.tensors) {
        ValueId value = tensor == trace::kNone ? kNone : add_output(id, event, tensor);
        graph_.nodes[id].outputs.push_back(value);
      }
    Node& node = graph_.nodes[id];
    for (ValueId before : node.writes) {
      TensorRow row = row_of(graph_.values[before]);
      ValueKey key = key_of(row);
      key.branch = branch_of_value(before);
      node.written.push_back(intern(key, row, id, -1));
    }
  }

  ValueId add_output(NodeId id, const EventRow& event, int32_t tensor) {
    const TensorRow& row = table_.tensors[tensor];
    if (row.storage == kNone)
      return intern(key_of(row), row, id, static_cast<int>(graph_.nodes[id].outputs.size()));
    const ValueId source = argument_on(id, row.storage);
    if (source == kNone) {
      if (last_writer_[row.storage] == kNone) last_writer_[row.storage] = id;
    } else {
      int32_t branch = branch_of_value(source);
      // The other side of a detach is another value only where gradients are recorded.
      bool detaches = graph_.nodes[id].op == "aten.detach" && (event.flags & trace::kGradMode) &&
                      (graph_.values[source].meta.flags & trace::kRequiresGrad);
      if (detaches) branch = row.tensor;
      if (branch != kNone) branch_of_tensor_[row.tensor] = branch;
    }
    return intern(key_of(row), row, id, static_cast<int>(graph_.nodes[id].outputs.size()));
  }

  ValueId argument_on(NodeId id, int32_t storage) const {
    for (const Input& input : graph_.nodes[id].inputs)
      for (ValueId value : input.values)
        if (value != kNone && graph_.values[value].storage == storage) return value;
    return kNone;
  }

  int32_t branch_of_value(ValueId id) const {
    auto it = branch_by_value_.find(id);
    return it == branch_by_value_.end() ? kNone : it->second;
  }

  static TensorRow row_of(const Value& value) {
    TensorRow row;
    row.storage = value.storage;
    row.offset = value.meta.offset;
    row.dtype = value.meta.dtype;
    row.device = value.meta.device;
    row.flags = value.meta.flags;
    row.shape_known = value.meta.shape_known;
    row.shape = value.meta.shape;
    row.strides = value.meta.strides;
    return row;
  }

  static constexpr uint16_t kRegionFlags =
      trace::kGradMode | trace::kInferenceMode | trace::kAutocast | trace::kGraphTask |
      trace::kPythonMode | trace::kSavedTensorHooks | trace::kCheckpointRecompute |
      trace::kCreateGraph | trace::kSideStream;

  const EventTable& table_;
  Cut cut_;
  Graph graph_;
  std::vector<uint32_t> version_;    // per storage, now
  std::vector<NodeId> last_writer_;  // per storage: the node that made or last wrote it
  std::vector<int32_t> scope_of_event_;
  std::map<ValueKey, ValueId> values_;
  std::unordered_map<ValueId, int32_t> branch_by_value_;
  std::unordered_map<int32_t, int32_t> branch_of_tensor_;
  std::unordered_set<int32_t> made_tensors_;
  std::unordered_map<int32_t, std::vector<int32_t>> outside_, undeclared_;  // by event
};

Status check_rows(const EventTable& table) {
  const auto size = [](const auto& rows) { return static_cast<int64_t>(rows.size()); };
  const auto bad = [](int64_t row, int64_t count) { return row < -1 || row >= count; };
  for (int64_t i = 0; i < size(table.events); ++i) {
    const EventRow& event = table.events[i];
    if (event.parent < -1 || event.parent >= i)
      return Error{fmt::format("event {}: expected an earlier parent, found {}", i, event.parent)};
    if (bad(event.stack, size(table.stacks)))
      return Error{fmt::format("event {}: no stack {}", i, event.stack)};
    for (const auto* arguments : {&event.inputs, &event.outputs})
      for (const ArgumentRow& argument : *arguments)
        for (int32_t tensor : argument.tensors)
          if (bad(tensor, size(table.tensors)))
            return Error{fmt::format("event {}: no tensor row {}", i, tensor)};
  }
  for (int64_t i = 0; i < size(table.tensors); ++i)
    if (bad(table.tensors[i].storage, size(table.storages)))
      return Error{fmt::format("tensor row {}: no storage {}", i, table.tensors[i].storage)};
  for (int64_t i = 0; i < size(table.stacks); ++i)
    if (bad(table.stacks[i].frame, size(table.frames)) || table.stacks[i].frame < 0 ||
        table.stacks[i].parent < -1 || table.stacks[i].parent >= i)
      return Error{fmt::format("stack {}: expected a frame and an earlier parent", i)};
  for (const auto* writes : {&table.outside_writes, &table.undeclared_writes})
    for (const trace::StorageWrite& write : *writes)
      if (write.event < 0 || write.event >= size(table.events) || write.storage < 0 ||
          write.storage >= size(table.storages))
        return Error{fmt::format("write of storage {} at event {}: no such row", write.storage,
                                 write.event)};
  return ok_status();
}

}  // namespace

int write_condition(const Schema& schema) {
  if (!schema.writes_undeclared) return -1;
  for (size_t k = 0; k < schema.arguments.size(); ++k) {
    const SchemaArgument& argument = schema.arguments[k];
    if (argument.type == "bool" && (argument.name == "training" || argument.name == "train" ||
                                    argument.name == "use_input_stats"))
      return static_cast<int>(k);
  }
  return -1;
}

Result<Graph> build_graph(const EventTable& table, const SchemaTable& schemas,
                          const SchemaTable* extra) {
  OPFUSE_TRY_STATUS(check_rows(table));
  return Builder(table, cut_call_tree(table, schemas, extra)).run();
}

}  // namespace opfuse::graph
