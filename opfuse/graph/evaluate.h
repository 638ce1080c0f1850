#pragma once
// The values of a graph in fp64, without torch: what a rule's composition means. Row-major arrays;
// casts do nothing, since every number is a double. Knows the operators that rules are written in
// and the native operators that they aim at.

#include <map>
#include <string_view>
#include <vector>

#include "opfuse/base/result.h"
#include "opfuse/graph/graph.h"

namespace opfuse::graph {

struct Array {
  std::vector<int64_t> shape;
  std::vector<double> data;

  Array() = default;
  explicit Array(double number) : data{number} {}
  Array(std::vector<int64_t> sizes, std::vector<double> values)
      : shape(std::move(sizes)), data(std::move(values)) {}
};

int64_t element_count(const std::vector<int64_t>& shape);

using Arrays = std::map<ValueId, Array>;

// Every value of the graph; `externals` are those without a producer, numbers excepted. An error
// names the operator that is not known or does not take its arguments.
Result<Arrays> evaluate(const Graph& graph, const Arrays& externals);
// False for an operator that evaluate() does not know.
bool can_evaluate(std::string_view op);

}  // namespace opfuse::graph
