#pragma once
// The canonical form of a Graph: what is written in several ways becomes one way, by the rows of
// canonical_rows(). A new graph for comparing patterns against; which replacement is legal is
// decided on the original nodes, and storage versions keep their original meaning. Value ids are
// those of the original graph (new literals are appended); nodes that drop out leave their value's
// stand-in.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "opfuse/graph/graph.h"

namespace opfuse::graph {

enum class Exactness : uint8_t {
  kExact,      // bit for bit, in every dtype that the row accepts
  kRounding,   // equal up to rounding of intermediates
  kRealsOnly,  // equal over the reals; may differ by much near overflow or cancellation
};

struct CanonicalRow {
  std::string_view name;  // "div by a constant"
  Exactness exactness;
  std::string_view example;  // "x / 6 -> x * 0.1666…"
};

std::span<const CanonicalRow> canonical_rows();

using RowSet = uint32_t;  // bit i: row i of canonical_rows()

struct CanonicalForm {
  Graph graph;
  std::vector<NodeId> origin;  // by canonical node: the original node
  std::vector<RowSet> rows;    // by canonical node: rows that changed it
  std::vector<ValueId>
      stands_in;                  // by original value: the canonical value, itself when not dropped
  std::vector<RowSet> drop_rows;  // by original value: rows that dropped its producer
};

CanonicalForm canonicalize(const Graph& graph);

}  // namespace opfuse::graph
