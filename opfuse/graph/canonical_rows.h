#pragma once
// The rows of the canonical form, and what a row sees of the graph that is made. Internal to
// graph/.

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "opfuse/graph/canonical.h"
#include "opfuse/graph/schema.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::graph {

class Canonicalizer;

// Rows that drop a node return the operand that it equals; the others change the node in place.
using Drop = std::optional<int> (*)(const Canonicalizer&, const Node&);
using Change = bool (*)(Canonicalizer&, Node&);

struct Row {
  CanonicalRow text;
  std::vector<std::string_view> ops;  // operators that the row looks at
  Drop drop = nullptr;
  Change change = nullptr;
};

const std::vector<Row>& canonical_table();  // in the order in which rows are tried

constexpr std::string_view kForeach = "foreach";  // the row of canonical_foreach.h

// Makes the form node by node. Its public part is what rows ask of the node at hand and its
// operands, and how they change it.
class Canonicalizer {
 public:
  explicit Canonicalizer(const Graph& graph);
  CanonicalForm run();

  const Value& value(ValueId id) const { return out_.graph.values[id]; }
  const TensorMeta& meta(const Node& node, int input) const {
    static const TensorMeta kUnknownMeta;
    ValueId id = operand(node, input);
    return id == kNone ? kUnknownMeta : value(id).meta;
  }
  static ValueId operand(const Node& node, int input) {
    const Input& argument = node.inputs[input];
    return argument.kind == InputKind::kTensor ? argument.values[0] : kNone;
  }
  // A Python number in a tensor's place, or a Scalar argument.
  std::optional<double> constant(const Node& node, int input) const {
    const Input& argument = node.inputs[input];
    if (argument.kind == InputKind::kAttr) {
      if (auto* d = std::get_if<double>(&argument.attr)) return *d;
      if (auto* i = std::get_if<int64_t>(&argument.attr)) return static_cast<double>(*i);
      return std::nullopt;
    }
    const TensorMeta& m = meta(node, input);
    return (m.flags & trace::kWrappedNumber) != 0 ? m.number : std::nullopt;
  }
  // From here on: what was written before is the value that is read.
  bool storage_is_written(const Node& node, int input) const {
    ValueId id = operand(node, input);
    int32_t storage = id == kNone ? kNone : value(id).storage;
    return storage == kNone || last_writer_[storage] >= current_;
  }
  bool result_is_floating(const Node& node) const {
    return node.outputs.size() == 1 && node.outputs[0] != kNone &&
           is_floating(value(node.outputs[0]).meta.dtype);
  }
  // Both are known and equal: dtype, device and shape.
  bool same_kind(const Node& node, int input) const {
    if (node.outputs.size() != 1 || node.outputs[0] == kNone) return false;
    const TensorMeta& a = meta(node, input);
    const TensorMeta& b = value(node.outputs[0]).meta;
    return a.dtype != DType::kUnknown && a.dtype == b.dtype && a.device == b.device &&
           a.shape_known == b.shape_known && a.shape == b.shape;
  }

  ValueId literal(double number, bool integral) {
    Value result;
    result.meta.dtype = integral ? DType::kI64 : DType::kF64;
    result.meta.shape_known = true;
    result.meta.device = 0;
    result.meta.flags = trace::kWrappedNumber;
    result.meta.number = number;
    out_.graph.values.push_back(std::move(result));
    return static_cast<ValueId>(out_.graph.values.size() - 1);
  }

  // Gives the node another operator over these tensors; further arguments get their defaults.
  bool become(Node* node, std::string_view op, std::vector<ValueId> tensors) const {
    const Schema* schema = SchemaTable::builtin().find(op);
    if (!schema) return false;
    std::vector<Input> inputs;
    for (size_t i = 0; i < schema->arguments.size(); ++i) {
      Input input;
      if (i < tensors.size()) {
        input.kind = InputKind::kTensor;
        input.values = {tensors[i]};
      } else {
        input.attr = schema->arguments[i].default_value;
      }
      inputs.push_back(std::move(input));
    }
    node->op = op;
    node->schema = schema;
    node->inputs = std::move(inputs);
    return true;
  }

  // Argument `input` as a tensor: a Scalar becomes a wrapped number.
  ValueId as_tensor(const Node& node, int input) {
    if (node.inputs[input].kind == InputKind::kTensor) return operand(node, input);
    bool integral = std::holds_alternative<int64_t>(node.inputs[input].attr);
    return literal(*constant(node, input), integral);
  }

 private:
  void index_rows();
  NodeId last_node() const { return static_cast<NodeId>(out_.graph.nodes.size() - 1); }
  // `used`: rows that made `node` of the original one.
  bool add(NodeId id, Node node, RowSet used);
  void dropped(const Node& node, int input, RowSet used);

  const Graph& in_;
  CanonicalForm out_;
  std::vector<NodeId> last_writer_;  // by storage
  NodeId current_ = kNone;
  RowSet foreach_row_ = 0;
  std::unordered_map<std::string_view, std::vector<int>> by_op_;
};

}  // namespace opfuse::graph
