#pragma once
// A rule: an operator's unfused composition (its meaning, oracle, pattern and price baseline),
// other spellings of it, near neighbours that it is not, its domain and its targets. Parsed from
// rulebook/*.rule, ops/*/*.rule and user files; errors are located ("silu.rule:12:8: expected …").

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "opfuse/base/result.h"
#include "opfuse/graph/graph.h"
#include "opfuse/graph/schema.h"
#include "opfuse/match/rule_number.h"

namespace opfuse::match {

// How exactly a replacement computes the chain's function, weakest row used wins (design: classes).
enum class Equivalence : uint8_t { kE0, kE1, kE2, kE3, kE4 };
std::string_view equivalence_name(Equivalence equivalence);  // "E1"

// One dimension of a tensor type: `...` any sizes, the same wherever it stands in the rule; `*` any
// sizes; `1...` a one for each size of `...`; `_` any one size; a name, the same size wherever it
// stands; a number.
struct Dimension {
  enum class Kind : uint8_t { kRest, kAnyRest, kOnes, kAny, kName, kSize };
  Kind kind = Kind::kAny;
  int64_t size = 0;  // kSize
  int name = -1;     // kName: index as in Number::name
};

// "T", "T[..., n]", "f32[n]", "i64". A capital letter stands for one dtype.
struct TensorType {
  char variable = 0;              // 'T'; 0 for an explicit dtype
  DType dtype = DType::kUnknown;  // explicit dtype
  bool has_shape = false;         // without: the shape of the result
  std::vector<Dimension> shape;
};

struct RuleParameter {
  std::string name;
  std::string type;  // "T", "T[..., n]", "float", …, as written
  bool is_tensor = true;
  bool optional = false;
  bool random = false;  // `random T`: drawn by an operator, scaled by numbers at most
  TensorType tensor = {};
};

// One way of writing the function, as a graph in canonical form. Externals are the parameters, in
// order; `graph.results` the results. Beside ATen operators it may hold `rule.reshape(x)`: any
// number of operators that change the shape alone; its second argument, where it has one, is the
// shape that is reached: "0,_,2", numbers[0], any size, numbers[2]; "..." first for any sizes.
// Attributes that are not fixed are OpaqueAttr: "number 2" is numbers[2], "dtype 0" the dtype of
// parameter 0, "any" what the record holds. Externals named "number.2" are wrapped numbers equal to
// numbers[2].
struct Spelling {
  std::string name;  // "composition", or the spelling's title
  graph::Graph graph;
  int line = 0;
  Equivalence equivalence = Equivalence::kE1;  // of the target to this way of writing it
  uint32_t absent = 0;                         // bit i: optional parameter i is not given
  std::vector<Number> numbers;
  std::vector<std::string> rows;  // of alternative_rows() that made it of a written one
};

// A condition on what two names are bound to, or on numbers.
struct Guard {
  enum class Kind : uint8_t { kNotSame, kSameShape, kOtherShape, kCompare };
  Kind kind = Kind::kNotSame;
  std::string a, b;
  std::string sign;    // kCompare: "==", "!=", "<", "<=", ">", ">="
  Number left, right;  // kCompare
};

struct NearNeighbour {  // what this is not, and why
  std::string title;
  Spelling spelling;                // externals: the rule's parameters, then `others`
  std::vector<std::string> others;  // names of tensors or numbers that are not parameters
  std::vector<Guard> guards;
  std::string why;  // "{beta}" stands for what `beta` is bound to
};

struct Target {
  std::string op;                      // "aten.silu", "npu.npu_silu", "opfuse.rms_norm"
  std::vector<std::string> arguments;  // parameter names or literals, in call order
  int result = -1;                 // `op(x)[1]`: which of its results it is; -1 where it has one
  std::string device;              // "" any, "cpu", "cuda", "npu"
  std::vector<DType> dtypes;       // empty: all of the rule's
  std::vector<std::string> given;  // optional parameters that it cannot do without
  Equivalence equivalence = Equivalence::kE1;  // `class E2`: of the target to the composition
  std::string package, versions;               // `needs torch_npu ">=2.1, <3"`; "" any
  std::string written_only;  // `written only "why"`: put into diffs, never into a running program
  std::string python;        // how a maintainer would call it: "torch.nn.functional.silu"
  std::string backward;      // overload of its backward operator: "aten.silu_backward(grad, x)"; ""
                             // when unknown
  // What Python passes, in call order: "x", "[n]", "cast=\"input\"". Empty: `arguments`.
  std::vector<std::string> python_arguments;
  // The same where the chain stands in a captured graph; "" and empty as for an edit of the source.
  // "@convolution.stride" is the argument `stride` of the chain's operator aten.convolution; with
  // "?" at the end None where the chain has no such operator.
  std::string graph;
  std::vector<std::string> graph_arguments;
};

struct Rule {
  std::string name;  // "silu"
  int version = 1;
  std::string file;
  int line = 0;
  std::vector<RuleParameter> parameters;
  std::vector<TensorType> returns;
  std::vector<std::string> sizes;  // names of dimensions; Number::name counts them after parameters
  std::vector<DType> dtypes;       // `where T in …`
  std::vector<Guard> guards;       // `where a is not b`
  std::string mode;                // "training", "eval" or "" (`requires …`)
  std::string only_found;          // `found only "why"`: why its chains are never replaced
  std::vector<std::string> folds;  // parameters that the target gives other values (`folds …`)
  bool extends = false;            // `extend NAME`: only targets, for a rule of another file
  Spelling composition;
  std::vector<Spelling> spellings;
  std::vector<Spelling> alternatives;  // made of the above: optional parts left out, other orders
  std::vector<NearNeighbour> near;
  std::string
      domain;  // "floating": where the target raises although the composition works; "" total
  std::vector<Target> targets;
  std::string source;  // text of the rule, for reports and hashes

  // Number::name -> what the rule's author called it.
  std::vector<std::string> number_names() const;
};

struct Rulebook {
  std::vector<Rule> rules;
  const Rule* find(std::string_view name) const;
};

Result<std::vector<Rule>> parse_rules(std::string_view text, std::string_view file,
                                      const graph::SchemaTable& schemas);
// The rules compiled into the program (rulebook/*.rule, ops/*/*.rule), then user files in order.
Result<Rulebook> load_rulebook(const std::vector<std::string>& user_files,
                               const graph::SchemaTable& schemas);

}  // namespace opfuse::match
