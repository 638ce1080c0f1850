#pragma once
// Binds one pattern to one place of a canonical graph: a search over orders of commutative
// operands, over casts that may be nothing and over changes of shape, then the conditions on
// shapes, numbers and dtypes.

#include <span>
#include <string>
#include <vector>

#include "opfuse/match/pattern.h"

namespace opfuse::match {

// Where and why a pattern stopped, kept as ids: the sentence is made only for the best one.
struct Mismatch {
  enum class Kind : uint8_t {
    kNothing,
    kOperator,
    kAttribute,
    kUnknown,
    kConstant,
    kBinding,
    kCast,
    kShape,   // `input`: the parameter
    kDtype,   // `input`: the parameter
    kNumber,  // `input`: index of Spelling::numbers
    kGuard,   // `input`: index of Rule::guards
    kRandom,  // `input`: the parameter
  };
  Kind kind = Kind::kNothing;
  graph::ValueId pattern_value = graph::kNone;
  graph::ValueId value = graph::kNone;     // what stands there
  graph::ValueId expected = graph::kNone;  // kBinding: what it was bound to before
  int input = -1;                          // kAttribute, kUnknown: the argument
  double number = 0;                       // kNumber: what stands there
  std::vector<graph::NodeId> nodes;        // canonical nodes that did match
};

class Solver {
 public:
  // `assume_unknown`: see MatchOptions.
  Solver(const graph::Graph& graph, const std::vector<int>& ops, bool assume_unknown = false)
      : graph_(graph), ops_(ops), assume_unknown_(assume_unknown) {}

  // Binds `pattern` with its root at `root`. The bindings hold until the next call.
  bool solve(const Pattern& pattern, graph::NodeId root);
  // All operators of the match, in no order; casts and changes of shape included.
  std::vector<graph::NodeId> nodes() const;
  const std::vector<graph::ValueId>& values() const { return values_; }  // by pattern value
  const NumberBindings& numbers() const { return numbers_; }  // by Number::name; sizes too
  bool shapes_known() const { return shapes_known_; }         // of all parameters with a shape
  const Mismatch& mismatch() const { return mismatch_; }
  // What had to be assumed for the bindings, as sentences.
  std::vector<std::string> assumed() const;

 private:
  // What is still to be bound, as a list through the frames of the search: nothing is allocated.
  struct Goal {
    graph::ValueId pattern, value;
    DType dtype;  // of the reader's result: constants of f64 chains are compared as f64
    const Goal* next;
  };
  struct Observation {  // a number that stands where numbers[hole] is expected
    int hole;
    double value;
    DType dtype;
    graph::ValueId at;
  };
  struct DtypeCheck {
    int parameter;
    DType dtype;
    graph::ValueId at;
  };
  // How much has been noted; what came later is forgotten when a choice fails.
  struct Mark {
    size_t observations, dtypes, extras;
  };

  bool run(const Goal* goal);
  bool extend();
  bool match_external(const Goal& goal);
  bool match_node(const Goal& goal);
  bool match_cast(const Goal& goal);
  bool match_reshape(const Goal& goal);
  bool reaches_sizes(const Goal& goal);
  bool match_inputs(graph::NodeId place, const graph::Node& found, const Goal& goal);
  bool go_below(const Goal& goal, graph::NodeId node, graph::ValueId below,
                std::span<const graph::NodeId> extras);
  bool equal_attributes(const graph::Node& wanted, const graph::Node& found, graph::ValueId at,
                        graph::ValueId value);
  bool equal_parts(const graph::Node& wanted, const graph::Node& found) const;

  bool finish();
  bool check_shapes();
  bool shapes_agree_so_far();  // of the parameters that are bound
  bool check_shape(const TensorType& type, graph::ValueId value,
                   std::vector<std::vector<int64_t>>* rest);
  bool check_numbers();
  bool check_dtypes();
  bool check_guards();

  Mark mark() const { return {observations_.size(), dtypes_.size(), extras_.size()}; }
  void forget(const Mark& mark);
  bool fail(Mismatch::Kind kind, graph::ValueId pattern, graph::ValueId value,
            graph::ValueId expected = graph::kNone, int input = -1, double number = 0);

  const graph::Graph& graph_;
  const std::vector<int>& ops_;
  const bool assume_unknown_;
  const Pattern* pattern_ = nullptr;
  std::vector<graph::NodeId> nodes_;
  std::vector<graph::ValueId> values_;
  std::vector<graph::NodeId> extras_;
  std::vector<Observation> observations_;
  std::vector<DtypeCheck> dtypes_;
  NumberBindings numbers_;
  bool shapes_known_ = true;
  int matched_ = 0, steps_ = 0, best_score_ = -1;
  Mismatch mismatch_;
};

// Equal to 1 ulp of f32, or of f64 where the chain computes in f64.
bool same_constant(double a, double b, DType dtype);

// Whether a guard holds for the values bound to the names and for the numbers; unknown is no.
bool guard_holds(const graph::Graph& graph, const Pattern& pattern, const Guard& guard,
                 const std::vector<graph::ValueId>& values, const NumberBindings& numbers);

}  // namespace opfuse::match
