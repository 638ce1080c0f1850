#pragma once
// A spelling made ready for matching, and the solver that binds one to a place in a canonical
// graph.

#include <string>
#include <unordered_map>
#include <vector>

#include "opfuse/graph/canonical.h"
#include "opfuse/match/rule.h"

namespace opfuse::match {

// Operator names as small numbers; -1 for those that no pattern has.
class OpIndex {
 public:
  int add(std::string_view op) {
    return ids_.try_emplace(std::string(op), static_cast<int>(ids_.size())).first->second;
  }
  int find(const std::string& op) const {
    auto it = ids_.find(op);
    return it == ids_.end() ? -1 : it->second;
  }
  int size() const { return static_cast<int>(ids_.size()); }

 private:
  std::unordered_map<std::string, int> ids_;
};

struct Pattern {
  const Rule* rule = nullptr;
  const Spelling* spelling = nullptr;
  const NearNeighbour* near = nullptr;  // null: a way of writing the rule itself
  graph::NodeId root = graph::kNone;    // the last node; everything else is below it
  std::vector<int> ops;                 // by node
  std::vector<int> root_operands;       // operators below the root
  int parameters = 0;                   // externals 0 … parameters-1

  const graph::Graph& graph() const { return spelling->graph; }
};

Pattern make_pattern(const Rule& rule, const Spelling& spelling, const NearNeighbour* near,
                     OpIndex* ops);

// Where and why a pattern stopped, kept as ids: the sentence is made only for the best one.
struct Mismatch {
  enum class Kind : uint8_t {
    kNothing,
    kOperator,
    kAttribute,
    kUnknown,
    kConstant,
    kBinding,
    kCast
  };
  Kind kind = Kind::kNothing;
  graph::ValueId pattern_value = graph::kNone;
  graph::ValueId value = graph::kNone;     // what stands there
  graph::ValueId expected = graph::kNone;  // kBinding: what it was bound to before
  int input = -1;                          // kAttribute, kUnknown
  std::vector<graph::NodeId> nodes;        // canonical nodes that did match
};

class Solver {
 public:
  // `assume_unknown`: see MatchOptions.
  Solver(const graph::Graph& graph, const std::vector<int>& ops, bool assume_unknown = false)
      : graph_(graph), ops_(ops), assume_unknown_(assume_unknown) {}

  // Binds `pattern` with its root at `root`. The bindings hold until the next call.
  bool solve(const Pattern& pattern, graph::NodeId root);
  const std::vector<graph::NodeId>& nodes() const { return nodes_; }     // by pattern node
  const std::vector<graph::ValueId>& values() const { return values_; }  // by pattern value
  const Mismatch& mismatch() const { return mismatch_; }
  // What had to be assumed for the bindings, as sentences.
  std::vector<std::string> assumed() const;

 private:
  struct Goal {
    graph::ValueId pattern, value;
    DType dtype;  // of the reader's result: constants of f64 chains are compared as f64
  };
  using Goals = std::vector<Goal>;

  bool run(const Goals& goals, size_t next);
  bool match_external(const Goals& goals, size_t next);
  bool match_node(const Goals& goals, size_t next);
  bool match_inputs(const graph::Node& wanted, const graph::Node& found, const Goals& goals,
                    size_t next);
  bool equal_attributes(const graph::Node& wanted, const graph::Node& found, graph::ValueId at,
                        graph::ValueId value);
  bool fail(Mismatch::Kind kind, graph::ValueId pattern, graph::ValueId value,
            graph::ValueId expected = graph::kNone, int input = -1);

  const graph::Graph& graph_;
  const std::vector<int>& ops_;
  const bool assume_unknown_;
  const Pattern* pattern_ = nullptr;
  std::vector<graph::NodeId> nodes_;
  std::vector<graph::ValueId> values_;
  int matched_ = 0, steps_ = 0, best_score_ = -1;
  Mismatch mismatch_;
};

bool is_cast(const graph::Node& node);

// Equal to 1 ulp of f32, or of f64 where the chain computes in f64.
bool same_constant(double a, double b, DType dtype);

}  // namespace opfuse::match
