#include "opfuse/graph/infer_nodes.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "opfuse/graph/build_cut.h"
#include "opfuse/graph/event_attr.h"
#include "opfuse/graph/overload.h"

namespace opfuse::graph {
namespace {

using trace::ArgumentKind;
using trace::ArgumentRow;
using trace::EventKind;
using trace::EventRow;
using trace::EventTable;

// Types whose values profilers write as numbers: what is no number there is None.
bool is_number_or_none(std::string_view type) {
  for (std::string_view known : {"ScalarType?", "Layout?", "MemoryFormat?", "bool?", "int?",
                                 "float?", "Scalar?", "int[]?", "float[]?"})
    if (type == known) return true;
  return false;
}

class NodeMaker {
 public:
  NodeMaker(const EventTable& table, const SchemaTable& schemas)
      : table_(table), schemas_(schemas) {}

  InferredNodes run() {
    find_schemas();
    find_leaves();
    add_positions();
    scope_of_.assign(table_.events.size(), kNone);
    node_of_.assign(table_.events.size(), kNone);
    for (int32_t event : leaves_) add_node(event);
    add_device_times();
    return std::move(result_);
  }

 private:
  const EventRow& event(int32_t row) const { return table_.events[row]; }

  void find_schemas() {
    schema_of_.assign(table_.events.size(), nullptr);
    std::unordered_map<uint64_t, const Schema*> known;  // by name and kinds of arguments
    for (size_t row = 0; row < table_.events.size(); ++row) {
      const EventRow& e = table_.events[row];
      if (e.kind != EventKind::kOperator) continue;
      uint64_t key = e.name;
      for (const ArgumentRow& input : e.inputs)
        key = key * 31 + static_cast<uint64_t>(input.kind) + 1;
      auto [it, is_new] = known.try_emplace(key, nullptr);
      if (is_new) it->second = find_overload(schemas_, table_.name(e), e.inputs);
      schema_of_[row] = it->second;
    }
  }

  // Operators without a kernel of their own are descended into; so are those that call themselves.
  void find_leaves() {
    std::vector<char> calls(table_.events.size(), 0), again(table_.events.size(), 0);
    std::vector<char> is_leaf(table_.events.size(), 0), below(table_.events.size(), 0);
    for (size_t row = 0; row < table_.events.size(); ++row) {
      const EventRow& e = table_.events[row];
      if (e.kind != EventKind::kOperator) continue;
      for (int32_t up = e.parent; up != trace::kNone; up = event(up).parent) {
        if (event(up).kind != EventKind::kOperator) continue;
        calls[up] = 1;
        again[up] |= event(up).name == e.name;
      }
    }
    for (size_t row = 0; row < table_.events.size(); ++row) {
      const EventRow& e = table_.events[row];
      if (e.parent != trace::kNone) below[row] = is_leaf[e.parent] || below[e.parent];
      if (e.kind != EventKind::kOperator || below[row]) continue;
      const Schema* schema = schema_of_[row];
      // A composite that called nothing returned its argument.
      if (again[row] || (schema != nullptr && schema->composite_implicit)) continue;
      if (schema == nullptr && calls[row] && is_container(table_.name(e))) continue;
      is_leaf[row] = 1;
      leaves_.push_back(static_cast<int32_t>(row));
    }
    std::ranges::stable_sort(leaves_, {}, [&](int32_t row) { return event(row).start_ns; });
  }

  // Composites whose overload the file does not tell.
  bool is_container(std::string_view name) const {
    const auto overloads = schemas_.overloads(dotted_name(name));
    return !overloads.empty() &&
           std::ranges::all_of(overloads, [](const Schema* s) { return s->composite_implicit; });
  }

  void add_positions() {
    for (const trace::FrameRow& frame : table_.frames)
      result_.graph.positions.push_back({std::string(table_.strings.get(frame.file)),
                                         std::string(table_.strings.get(frame.function)),
                                         frame.line, frame.column, frame.end_line, frame.end_column,
                                         frame.code});
  }

  int32_t scope_for(int32_t row) {
    if (row == trace::kNone) return kNone;
    if (scope_of_[row] != kNone) return scope_of_[row];
    const EventRow& e = event(row);
    Scope scope;
    scope.parent = scope_for(e.parent);
    scope.kind = e.kind == EventKind::kOperator       ? ScopeKind::kOperator
                 : e.kind == EventKind::kAutogradNode ? ScopeKind::kAutogradNode
                 : e.kind == EventKind::kFunction     ? ScopeKind::kFunction
                                                      : ScopeKind::kUserScope;
    scope.name = dotted_name(table_.name(e));
    scope.sequence = e.sequence;
    scope.event = row;
    scope_of_[row] = static_cast<int32_t>(result_.graph.scopes.size());
    result_.graph.scopes.push_back(std::move(scope));
    return scope_of_[row];
  }

  std::vector<int32_t> stack_of(int32_t row) const {
    std::vector<int32_t> frames;
    for (int32_t at = event(row).stack; at != trace::kNone; at = table_.stacks[at].parent)
      frames.push_back(table_.stacks[at].frame);
    return frames;
  }

  void add_node(int32_t row) {
    const EventRow& e = event(row);
    Node node;
    node.schema = schema_of_[row];
    node.op = node.schema != nullptr ? node.schema->name : dotted_name(table_.name(e));
    node.event = row;
    node.thread = e.thread;
    node.forward_sequence = e.forward_sequence;
    node.region.flags = e.flags & trace::kGraphTask;
    node.scope = scope_for(e.parent);
    node.dur_ns = table_.kernels.empty() ? e.dur_ns : 0;
    node.random = node.schema != nullptr && node.schema->random;
    node.opaque = node.schema == nullptr;
    node.positions = stack_of(row);
    add_inputs(e, &node);
    node_of_[row] = static_cast<int32_t>(result_.graph.nodes.size());
    result_.graph.nodes.push_back(std::move(node));
    result_.kernels.push_back(0);
  }

  void add_inputs(const EventRow& e, Node* node) {
    const size_t count = node->schema != nullptr ? node->schema->arguments.size() : e.inputs.size();
    for (size_t i = 0; i < count; ++i) {
      const ArgumentRow* given = i < e.inputs.size() ? &e.inputs[i] : nullptr;
      const SchemaArgument* formal =
          node->schema != nullptr ? &node->schema->arguments[i] : nullptr;
      node->inputs.push_back(make_input(given, formal));
    }
  }

  Input make_input(const ArgumentRow* given, const SchemaArgument* formal) {
    Input input;
    const bool given_list = given != nullptr && (given->kind == ArgumentKind::kTensorList ||
                                                 given->kind == ArgumentKind::kOptionalTensorList);
    const bool is_list = formal != nullptr ? formal->is_tensor_list() : given_list;
    const bool is_tensor =
        formal != nullptr ? formal->is_tensor() : given->kind == ArgumentKind::kTensor;
    if (is_list || is_tensor) {
      input.kind = is_list ? InputKind::kTensorList : InputKind::kTensor;
      if (given != nullptr)
        for (int32_t tensor : given->tensors) input.values.push_back(look_value(tensor));
      if (is_tensor) input.values.resize(1, kNone);
    } else if (given != nullptr && given->kind == ArgumentKind::kOpaque && given->text == 0) {
      if (formal != nullptr && is_number_or_none(formal->type)) input.attr = NoneAttr{};
    } else if (given != nullptr && given->kind != ArgumentKind::kUnknown) {
      input.attr = attr_of(table_, *given);
    } else if (given == nullptr && formal->has_default) {
      input.attr = formal->default_value;
    }
    return input;
  }

  ValueId look_value(int32_t tensor) {
    const trace::TensorRow& row = table_.tensors[tensor];
    Value value;
    value.meta.dtype = row.dtype;
    value.meta.shape_known = row.shape_known;
    value.meta.shape = row.shape;
    value.meta.strides = row.strides;
    value.meta.device = row.device;
    value.meta.flags = row.flags;
    if ((row.flags & trace::kWrappedNumber) && row.number == row.number)
      value.meta.number = row.number;
    result_.graph.values.push_back(std::move(value));
    return static_cast<ValueId>(result_.graph.values.size() - 1);
  }

  // A kernel belongs to the node at or around the operator that launched it.
  void add_device_times() {
    for (const trace::KernelRow& kernel : table_.kernels) {
      int32_t row = kernel.event;
      while (row != trace::kNone && node_of_[row] == kNone) row = event(row).parent;
      result_.node_of_kernel.push_back(row == trace::kNone ? kNone : node_of_[row]);
      if (row == trace::kNone) continue;
      result_.graph.nodes[node_of_[row]].dur_ns += std::max<int64_t>(kernel.dur_ns, 0);
      ++result_.kernels[node_of_[row]];
    }
  }

  const EventTable& table_;
  const SchemaTable& schemas_;
  std::vector<const Schema*> schema_of_;
  std::vector<int32_t> leaves_, scope_of_, node_of_;
  InferredNodes result_;
};

}  // namespace

InferredNodes infer_nodes(const EventTable& table, const SchemaTable& schemas) {
  return NodeMaker(table, schemas).run();
}

}  // namespace opfuse::graph
