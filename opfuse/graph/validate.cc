#include "opfuse/graph/validate.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "opfuse/graph/schema.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::graph {
namespace {

class Validator {
 public:
  explicit Validator(const Graph& graph) : graph_(graph), version_(graph.storages.size(), -1) {}

  Status run() {
    OPFUSE_TRY_STATUS(scopes());
    for (ValueId id = 0; id < size(graph_.values); ++id) OPFUSE_TRY_STATUS(value(id));
    for (NodeId id = 0; id < size(graph_.nodes); ++id) OPFUSE_TRY_STATUS(node(id));
    for (ValueId result : graph_.results)
      if (!in_range(result, graph_.values))
        return Error{fmt::format("results: no value {}", result)};
    return users();
  }

 private:
  template <class T>
  static int32_t size(const std::vector<T>& items) {
    return static_cast<int32_t>(items.size());
  }
  template <class T>
  static bool in_range(int32_t id, const std::vector<T>& items) {
    return id >= 0 && id < size(items);
  }

  Error node_error(NodeId id, const std::string& sentence) const {
    return Error{fmt::format("node {} ({}): {}", id, graph_.nodes[id].op, sentence)};
  }
  Error value_error(ValueId id, const std::string& sentence) const {
    return Error{fmt::format("value {} (%{}): {}", id, graph_.values[id].name, sentence)};
  }

  Status scopes() const {
    for (int32_t id = 0; id < size(graph_.scopes); ++id)
      if (graph_.scopes[id].parent < kNone || graph_.scopes[id].parent >= id)
        return Error{fmt::format("scope {} ({}): expected an earlier parent, found {}", id,
                                 graph_.scopes[id].name, graph_.scopes[id].parent)};
    return ok_status();
  }

  Status value(ValueId id) const {
    const Value& v = graph_.values[id];
    if (v.storage != kNone && !in_range(v.storage, graph_.storages))
      return value_error(id, fmt::format("no storage {}", v.storage));
    if (v.meta.shape_known && !v.meta.strides.empty() &&
        v.meta.strides.size() != v.meta.shape.size())
      return value_error(
          id, fmt::format("{} strides for {} sizes", v.meta.strides.size(), v.meta.shape.size()));
    bool wrapped = (v.meta.flags & trace::kWrappedNumber) != 0;
    if (v.meta.number && wrapped && v.meta.shape_known && v.meta.numel() != 1)
      return value_error(id, "a wrapped number with more than one element");
    if (v.producer == kNone) return ok_status();
    if (!in_range(v.producer, graph_.nodes))
      return value_error(id, fmt::format("no node {} that makes it", v.producer));
    const Node& producer = graph_.nodes[v.producer];
    if (v.output >= 0) {
      if (!in_range(v.output, producer.outputs) || producer.outputs[v.output] != id)
        return value_error(
            id, fmt::format("is not result {} of node {} ({})", v.output, v.producer, producer.op));
    } else if (!producer.opaque && !touches_storage(producer, v.storage)) {
      return value_error(
          id, fmt::format("is changed by node {} ({}), which does not make or write its storage",
                          v.producer, producer.op));
    }
    return ok_status();
  }

  bool touches_storage(const Node& node, int32_t storage) const {
    const auto is_on_it = [&](ValueId value) {
      return in_range(value, graph_.values) && graph_.values[value].storage == storage;
    };
    return std::ranges::any_of(node.writes, is_on_it) ||
           std::ranges::any_of(node.outputs, is_on_it);
  }

  Status node(NodeId id) {
    const Node& n = graph_.nodes[id];
    if (n.scope != kNone && !in_range(n.scope, graph_.scopes))
      return node_error(id, fmt::format("no scope {}", n.scope));
    for (int32_t position : n.positions)
      if (!in_range(position, graph_.positions))
        return node_error(id, fmt::format("no position {}", position));
    OPFUSE_TRY_STATUS(arguments(id));
    for (const Input& input : n.inputs)
      for (ValueId v : input.values) OPFUSE_TRY_STATUS(read(id, v));
    OPFUSE_TRY_STATUS(writes(id));
    return outputs(id);
  }

  Status arguments(NodeId id) const {
    const Node& n = graph_.nodes[id];
    for (const Input& input : n.inputs)
      if (input.kind == InputKind::kTensor && input.values.size() != 1)
        return node_error(id, "a tensor argument without exactly one value");
    if (!n.schema) return ok_status();
    if (n.schema->name != n.op)
      return node_error(id, fmt::format("has the schema of {}", n.schema->name));
    if (n.schema->arguments.size() != n.inputs.size())
      return node_error(id, fmt::format("expected {} arguments, found {}",
                                        n.schema->arguments.size(), n.inputs.size()));
    for (size_t i = 0; i < n.inputs.size(); ++i) {
      const SchemaArgument& formal = n.schema->arguments[i];
      InputKind expected = formal.is_tensor()        ? InputKind::kTensor
                           : formal.is_tensor_list() ? InputKind::kTensorList
                                                     : InputKind::kAttr;
      if (n.inputs[i].kind != expected)
        return node_error(id, fmt::format("argument '{}' is not a {}", formal.name, formal.type));
    }
    return ok_status();
  }

  // A value is read after it was made, and while its storage is at its version.
  Status read(NodeId id, ValueId v) {
    if (v == kNone) return ok_status();
    if (!in_range(v, graph_.values)) return node_error(id, fmt::format("reads no value {}", v));
    const Value& value = graph_.values[v];
    if (value.producer != kNone && value.producer >= id)
      return node_error(id,
                        fmt::format("reads value {} before node {} makes it", v, value.producer));
    if (value.storage == kNone) return ok_status();
    int64_t& version = version_[value.storage];
    bool written_outside = graph_.storages[value.storage].opaque_writes && version < value.version;
    if (version >= 0 && version != value.version && !written_outside)
      return node_error(id, fmt::format("reads value {} of version {}, when storage {} is at {}", v,
                                        value.version, value.storage, version));
    version = value.version;
    return ok_status();
  }

  Status writes(NodeId id) {
    const Node& n = graph_.nodes[id];
    if (n.writes.size() != n.written.size())
      return node_error(id, fmt::format("writes {} views, but {} come out of it", n.writes.size(),
                                        n.written.size()));
    for (size_t i = 0; i < n.writes.size(); ++i) {
      if (!in_range(n.writes[i], graph_.values) || !in_range(n.written[i], graph_.values))
        return node_error(id, "writes a value that does not exist");
      const Value& before = graph_.values[n.writes[i]];
      const Value& after = graph_.values[n.written[i]];
      if (before.storage != after.storage || after.version <= before.version)
        return node_error(id, fmt::format("write {} does not advance the version of storage {}", i,
                                          before.storage));
      if (after.storage != kNone) version_[after.storage] = after.version;
    }
    return ok_status();
  }

  Status outputs(NodeId id) {
    const Node& n = graph_.nodes[id];
    if (n.schema) {
      bool lists = std::ranges::any_of(n.schema->returns, &SchemaArgument::is_tensor_list);
      size_t tensors = std::ranges::count_if(n.schema->returns, &SchemaArgument::is_tensor);
      if (!lists && n.outputs.size() > tensors)
        return node_error(
            id, fmt::format("expected at most {} results, found {}", tensors, n.outputs.size()));
    }
    for (ValueId v : n.outputs) {
      if (v == kNone) continue;
      if (!in_range(v, graph_.values)) return node_error(id, fmt::format("makes no value {}", v));
      const Value& value = graph_.values[v];
      if (value.storage == kNone) continue;
      int64_t& version = version_[value.storage];
      if (version >= 0 && version > value.version)
        return node_error(id, fmt::format("makes version {} of storage {}, which is at {}",
                                          value.version, value.storage, version));
      version = value.version;
    }
    return ok_status();
  }

  Status users() const {
    Graph fresh;
    fresh.nodes = graph_.nodes;
    fresh.values.resize(graph_.values.size());
    index_users(&fresh);
    if (fresh.users != graph_.users)
      return Error{"users: expected the readers of every value, found a stale index"};
    return ok_status();
  }

  const Graph& graph_;
  std::vector<int64_t> version_;  // by storage, -1: not seen yet
};

}  // namespace

Status validate_graph(const Graph& graph) { return Validator(graph).run(); }

}  // namespace opfuse::graph
