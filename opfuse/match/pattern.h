#pragma once
// A spelling made ready for matching: its operators as small numbers, where matching starts, and
// what a place must hold to be worth trying.

#include <array>
#include <cstdint>
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

// What stands 0 … kDepth - 1 levels below an operator, as bits (several may share a bit): which
// operators, and which of them reads the result of which, which number, or one value twice. Casts
// and operators that change the shape alone are of the level of what is below them, and are looked
// through.
constexpr int kDepth = 5;
struct Cone {
  std::array<uint64_t, kDepth> ops{}, reads{};

  // How many bits of this one `other` lacks; `enough` and more are not told apart.
  int missing_ops(const Cone& other, int enough) const { return missing(ops, other.ops, enough); }
  int missing_reads(const Cone& other, int enough) const {
    return missing(reads, other.reads, enough);
  }
  // `other` has every bit.
  bool within(const Cone& other) const {
    for (int i = 0; i < kDepth; ++i)
      if ((reads[i] & ~other.reads[i]) != 0 || (ops[i] & ~other.ops[i]) != 0) return false;
    return true;
  }

 private:
  static int missing(const std::array<uint64_t, kDepth>& wanted,
                     const std::array<uint64_t, kDepth>& found, int enough) {
    int count = 0;
    for (int i = 0; i < kDepth; ++i)
      for (uint64_t lacks = wanted[i] & ~found[i]; lacks != 0; lacks &= lacks - 1)
        if (++count == enough) return count;
    return count;
  }
};
std::vector<Cone> cones_of(const graph::Graph& graph, const std::vector<int>& ops);

// Goes on from what is matched to an operator above it that the root does not need.
struct Extension {
  graph::NodeId node;    // of the pattern
  graph::ValueId below;  // an operand of it that is bound by then
};

struct Pattern {
  const Rule* rule = nullptr;
  const Spelling* spelling = nullptr;
  const NearNeighbour* near = nullptr;  // null: a way of writing the rule itself
  graph::NodeId root = graph::kNone;    // the last node
  enum class Kind : uint8_t { kOperator, kCast, kReshape };
  std::vector<Kind> kinds;        // by node
  std::vector<bool> commutative;  // by node: of its two operands
  std::vector<int> operands;      // by node: how many tensors it takes
  // By node: of a reshape, indices of numbers, -1 for any size, -2 first for any sizes before.
  std::vector<std::vector<int>> sizes;
  std::vector<int> ops;       // by node
  std::vector<int> root_ops;  // operators that a match may end in
  std::vector<Extension> extensions;
  Cone cone;           // what must stand below the root
  int parameters = 0;  // externals 0 … parameters-1

  const graph::Graph& graph() const { return spelling->graph; }
};

Pattern make_pattern(const Rule& rule, const Spelling& spelling, const NearNeighbour* near,
                     OpIndex* ops);

bool is_cast(const graph::Node& node);
// Changes the shape and nothing else, as view, expand and a contiguous copy do.
bool is_shape_change(const graph::Node& node);

// The index of a parameter, or of another name of a neighbour; -1 when it is neither.
int index_of(const Pattern& pattern, const std::string& name);

}  // namespace opfuse::match
