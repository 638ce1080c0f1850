#pragma once
// Kernels of evaluate.h by kind of operator.

#include <functional>
#include <optional>

#include "opfuse/graph/evaluate.h"

namespace opfuse::graph {

// One operator's arguments: arrays in order of its tensors, attributes by position.
class Arguments {
 public:
  Arguments(const Graph& graph, const Node& node, const Arrays& values)
      : graph_(graph), node_(node), values_(values) {}

  bool given(size_t i) const;
  Array array(size_t i) const;  // a tensor, a Python number or a Scalar
  std::vector<Array> list(size_t i) const;
  double number(size_t i, double otherwise) const;
  int64_t whole(size_t i, int64_t otherwise) const {
    return static_cast<int64_t>(number(i, static_cast<double>(otherwise)));
  }
  bool flag(size_t i) const { return number(i, 0) != 0; }
  std::string text(size_t i) const;
  std::vector<int64_t> sizes(size_t i) const;  // a list, or one number as a list; empty for None

 private:
  const Graph& graph_;
  const Node& node_;
  const Arrays& values_;
};

using Kernel = std::function<std::vector<Array>(const Arguments&)>;
const std::map<std::string_view, Kernel>& pointwise_kernels();
const std::map<std::string_view, Kernel>& reduction_kernels();
const std::map<std::string_view, Kernel>& shape_kernels();

// Applies f to broadcast elements.
Array broadcast(const std::vector<Array>& arrays,
                const std::function<double(const std::vector<double>&)>& f);
// The dimension counted from the front.
int64_t positive(int64_t dim, size_t rank);

}  // namespace opfuse::graph
