#pragma once
// Graph: the only intermediate representation. A flat list of nodes in execution order; a node is a
// leaf of the cut through the recorded call tree (composites without a kernel of their own are
// descended into; autograd nodes, Functions and user scopes are transparent and kept as scopes).
// Built from an EventTable, from the text form, or (later) from captured graphs and foreign traces.
// Three-valued: what the source does not hold is unknown, never a default.
// BORDER: graph -> match, rewrite, verify.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "opfuse/base/dtype.h"

namespace opfuse::graph {

struct Schema;  // schema.h

using NodeId = int32_t;
using ValueId = int32_t;
constexpr int32_t kNone = -1;

// How sure the edge "this input is that value" is.
enum class Proof : uint8_t {
  kP0 = 0,  // operator names and time order
  kP1 = 1,  // unique shapes
  kP2 = 2,  // allocation events
  kP3 = 3,  // tensor ids: storage, offset, sizes, strides, dtype and our storage version
};

struct TensorMeta {
  DType dtype = DType::kUnknown;
  bool shape_known = false;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // elements; empty with rank > 0: unknown
  int64_t offset = 0;            // elements into the storage
  int8_t device = -1;            // as trace::TensorRow
  uint16_t flags = 0;            // trace::TensorFlag
  std::optional<double> number;  // value of a wrapped Python number

  int64_t numel() const;  // -1 when the shape is unknown
};

// Why a value is visible to something other than the recorded operators.
enum Escape : uint16_t {
  kEscapesPython = 1 << 0,      // kept by Python after the frame (name analysis, reference count)
  kEscapesHook = 1 << 1,        // tensor hook, retain_grad, grad_fn hook
  kEscapesModuleHook = 1 << 2,  // a module hook saw it
  kEscapesSaved = 1 << 3,       // saved by another Function
  kEscapesExport = 1 << 4,      // storage exported to numpy or DLPack
  kEscapesStep = 1 << 5,        // still alive when the step ended and not accounted for
};

// One tensor value: a view (storage, offset, shape, strides, dtype) at one storage version. Two
// uses are the same value if and only if the ValueId is equal. `version` is our own counter per
// storage, advanced by every operator whose schema writes it.
struct Value {
  NodeId producer = kNone;  // kNone: external (existed before the step, or given in the text form)
  int output = 0;  // index among the producer's results; -1: changed by it as a side effect
  int32_t storage = kNone;
  uint32_t version = 0;
  TensorMeta meta;
  uint16_t escapes = 0;
  std::string name;  // text form: %name; externals: label such as "param:fc.weight" or ""
};

struct UnknownAttr {
  bool operator==(const UnknownAttr&) const = default;
};
struct NoneAttr {
  bool operator==(const NoneAttr&) const = default;
};
struct OpaqueAttr {  // exists but cannot be written down (generator, object): equal to nothing
  std::string type;
  bool operator==(const OpaqueAttr&) const { return false; }
};
using Attr = std::variant<UnknownAttr, NoneAttr, bool, int64_t, double, std::string,
                          std::vector<int64_t>, std::vector<double>, std::vector<bool>, OpaqueAttr>;

enum class InputKind : uint8_t { kTensor, kTensorList, kAttr };

struct Input {
  InputKind kind = InputKind::kAttr;
  std::vector<ValueId> values;  // kTensor: one (kNone = undefined / None); kTensorList
  Proof proof = Proof::kP3;
  Attr attr;  // kAttr
};

enum class ScopeKind : uint8_t { kOperator, kAutogradNode, kFunction, kUserScope };

// An enclosing call that is not a node: composite operator, autograd node, Function, user scope.
struct Scope {
  ScopeKind kind = ScopeKind::kUserScope;
  std::string name;
  int32_t parent = kNone;
  int64_t sequence = -1;  // pairs the forward of a Function with its backward node
  int32_t event = kNone;  // row of the EventTable
};

// What held while the node ran (trace::EventFlag), beside its scope.
struct Region {
  uint16_t flags = 0;
  bool operator==(const Region&) const = default;
};

struct Position {
  std::string file, function;
  int32_t line = -1, column = -1, end_line = -1, end_column = -1;
  int32_t code = kNone;  // recorder's id of the code object
};

struct Node {
  std::string op;                  // "aten.mul.Tensor", "aten.sigmoid" (no overload), "opfuse.silu"
  const Schema* schema = nullptr;  // null when the operator is not in the table
  std::vector<Input> inputs;       // in schema order, defaults filled in when the schema is known
  std::vector<ValueId> outputs;    // flattened results; kNone for an undefined tensor
  std::vector<ValueId> writes;     // values (before the write) whose storage this node writes
  std::vector<ValueId> written;    // the same views after the write
  Region region;
  int32_t scope = kNone;          // innermost Scope
  int32_t event = kNone;          // row of the EventTable
  int64_t forward_sequence = -1;  // autograd sequence number of the node that made the first output
  std::vector<int32_t> positions;  // rows of Graph::positions, innermost frame first
  int64_t dur_ns = -1;
  int32_t thread = 0;
  bool random = false;          // draws random numbers
  bool opaque = false;          // has arguments or effects that the graph cannot describe
  bool hidden_product = false;  // made inside the operator after it, which needs it (see build.h)
};

struct Storage {
  int64_t session_id = -1;  // equal for the same live storage in all records of a session
  int64_t bytes = -1;
  bool external = false;
  bool opaque_writes = false;  // written from outside (numpy, communication): see losses
  std::string label;
};

struct Graph {
  std::vector<Node> nodes;  // in execution order
  std::vector<Value> values;
  std::vector<Storage> storages;
  std::vector<Scope> scopes;
  std::vector<Position> positions;
  std::vector<ValueId> results;  // text form and rules: what the graph returns

  // users[v]: nodes that read value v, in order. Rebuilt by index_users() after any change.
  std::vector<std::vector<NodeId>> users;
};

void index_users(Graph* graph);

// The nearest enclosing scope of `kind`, or kNone.
int32_t enclosing_scope(const Graph& graph, NodeId node, ScopeKind kind);
// True for a gradient accumulation made by the autograd engine itself between two backward nodes.
bool is_engine_accumulation(const Graph& graph, NodeId node);

}  // namespace opfuse::graph
