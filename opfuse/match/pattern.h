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

// Which operators stand 0 … kDepth - 1 levels below one, as bits (several operators may share a
// bit). Casts and operators that change the shape alone are of the level of what is below them.
constexpr int kDepth = 5;
using Cone = std::array<uint64_t, kDepth>;
inline uint64_t op_bit(int op) { return op < 0 ? 0 : uint64_t{1} << (op % 64); }
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
  std::vector<int> ops;                 // by node
  std::vector<int> root_ops;            // operators that a match may end in
  std::vector<Extension> extensions;
  Cone cone{};         // what must stand below the root
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
