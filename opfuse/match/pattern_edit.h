#pragma once
// Editing the graph of a pattern: new operators, other operands, and putting it in order again.

#include <string_view>
#include <vector>

#include "opfuse/graph/graph.h"

namespace opfuse::match {

class PatternEdit {
 public:
  explicit PatternEdit(graph::Graph graph) : graph_(std::move(graph)) {}

  graph::ValueId number(double value, bool integral);
  // A new operator over tensors; further arguments have their defaults.
  graph::ValueId add(std::string_view op, const std::vector<graph::ValueId>& tensors);
  // The same with an attribute in place of argument `index`.
  graph::ValueId add(std::string_view op, const std::vector<graph::ValueId>& tensors, int index,
                     graph::Attr attribute);
  // Readers and results of `old` take `now` instead.
  void replace(graph::ValueId old, graph::ValueId now);
  // Drops what nothing needs and orders the operators. `parameters` externals stay in place.
  graph::Graph finish(int externals);

 private:
  graph::Graph graph_;
};

}  // namespace opfuse::match
