#pragma once
// A straight-line piece of a graph made callable on given tensors: a site's recorded chain, a
// rule's composition, a call of the target. Runs as it is (under whatever autograd state holds), or
// in fp64 together with magnitudes (every sum and difference replaced by the sum of its terms'
// absolute values).

#include <ATen/core/Tensor.h>

#include <limits>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "opfuse/base/result.h"
#include "opfuse/graph/graph.h"
#include "opfuse/match/match.h"
#include "opfuse/torch/replay_operation.h"

namespace opfuse::torch_bridge {

class Chain {
 public:
  // Values that are neither inputs nor made by `nodes` must be Python numbers.
  static Result<Chain> make(const graph::Graph& graph, std::span<const graph::NodeId> nodes,
                            std::span<const graph::ValueId> inputs,
                            std::span<const graph::ValueId> outputs, const Record* record);

  // `raise`: casts to floating dtypes give double.
  std::vector<at::Tensor> run(std::span<const at::Tensor> inputs, bool raise = false) const;

  // Inputs are double. Values and magnitudes of the outputs. Every result carries at least the
  // magnitude `smallest`, so that later factors scale it up as they scale the error of what
  // underflowed.
  struct Double {
    std::vector<at::Tensor> values, magnitudes;
  };
  Double run_double(std::span<const at::Tensor> inputs,
                    double smallest = std::numeric_limits<double>::min()) const;

  bool pointwise() const { return pointwise_; }
  bool has_dtype_arguments() const { return has_dtype_arguments_; }
  // Operator with an argument that holds sizes, "" when there is none.
  const std::string& size_holder() const { return size_holder_; }

 private:
  // Two uses are the same value if they see the same bytes; autograd may give them two ids.
  using Key = std::tuple<int32_t, uint32_t, int64_t, std::vector<int64_t>, std::vector<int64_t>,
                         DType, graph::ValueId>;
  static Key key_of(const graph::Graph& graph, graph::ValueId value);
  int place_of(const graph::Graph& graph, graph::ValueId value);
  Status add_node(const graph::Graph& graph, graph::NodeId id, const Record* record);

  struct Step {
    Operation operation;  // values are places
    std::string op;       // base name: "mul", "sigmoid_backward"
    std::vector<int> results;
  };
  at::Tensor magnitude(const Step& step, const std::vector<at::Tensor>& values,
                       const std::vector<at::Tensor>& magnitudes, const at::Tensor& result,
                       double smallest) const;

  std::vector<Step> steps_;
  std::map<Key, int> places_;
  std::vector<int> inputs_, outputs_;
  std::map<int, double> numbers_;  // Python numbers by place
  std::map<int, c10::ScalarType> number_dtypes_;
  bool pointwise_ = true, has_dtype_arguments_ = false;
  std::string size_holder_;
};

// The rule's composition with the numbers that the match binds, and a call of the target likewise.
// Inputs are the rule's parameters in order: undefined where one is a number or absent.
Result<Chain> composition_chain(const match::Match& match);
Result<Chain> target_chain(const match::Match& match, const match::Target& target);

}  // namespace opfuse::torch_bridge
