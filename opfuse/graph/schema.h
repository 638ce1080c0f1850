#pragma once
// Operator schemas as a generated, versioned table: argument names, types, defaults, aliases and
// writes. opfuse/graph/schemas/torch_2_13.schemas holds one line per overload as PyTorch prints it,
// then a tab and flags (composite random pointwise writes=a,b): "aten::silu(Tensor self) ->
// Tensor\tpointwise". The recorder adds schemas of operators that the table does not know.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "opfuse/base/result.h"
#include "opfuse/graph/graph.h"

namespace opfuse::graph {

struct SchemaArgument {
  std::string name;
  std::string type;   // "Tensor", "Tensor?", "Tensor[]", "Tensor?[]", "Scalar", "int", "int[]",
                      // "ScalarType?", … (SymInt reads as int; the size of "int[2]" is list_size)
  int list_size = 0;  // elements of a list of fixed size, 0 for others
  bool has_default = false;
  Attr default_value = NoneAttr{};
  std::string alias_set;  // "a" of Tensor(a!) ; empty when fresh
  bool is_write = false;
  bool keyword_only = false;

  bool is_tensor() const { return type == "Tensor" || type == "Tensor?"; }
  bool is_tensor_list() const { return type == "Tensor[]" || type == "Tensor?[]"; }
};

struct Schema {
  std::string name;  // "aten.mul.Tensor"
  std::vector<SchemaArgument> arguments;
  std::vector<SchemaArgument> returns;
  bool composite_implicit = false;  // no kernel of its own: descended into
  bool random = false;              // nondeterministic_seeded
  bool pointwise = false;
  bool writes_undeclared =
      false;  // writes arguments that the schema does not mark (native_batch_norm)

  bool is_view() const;  // an output aliases an input without a write
  bool is_mutable() const;
};

// Parses one line as PyTorch prints a schema, with optional flags after a tab.
Result<Schema> parse_schema(std::string_view line);

// A new table is empty and extends the built-in one: find() falls back on it. Schemas are parsed
// when they are first asked for; find() may be called from several threads.
class SchemaTable {
 public:
  // The table compiled into the program.
  static const SchemaTable& builtin();

  const Schema* find(std::string_view name) const;  // "aten.mul.Tensor"; null when unknown
  // Every overload of "aten.mul", in the table's order; empty when there is none.
  std::vector<const Schema*> overloads(std::string_view base) const;
  // Adds or replaces; the pointer stays valid while the table lives.
  const Schema* add(Schema schema);
  size_t size() const;  // without the built-in ones, except for the built-in table itself

  SchemaTable();
  ~SchemaTable();
  SchemaTable(SchemaTable&&) noexcept;
  SchemaTable& operator=(SchemaTable&&) noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// "aten::mul.Tensor" -> "aten.mul.Tensor".
std::string dotted_name(std::string_view torch_name);

}  // namespace opfuse::graph
