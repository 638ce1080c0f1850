#include "opfuse/graph/evaluate.h"

#include <fmt/format.h>

#include "opfuse/base/check.h"
#include "opfuse/graph/evaluate_kernels.h"

namespace opfuse::graph {
namespace {

// "aten.mul_.Tensor" computes what "aten.mul.Tensor" does: values are told apart by version.
std::string out_of_place(std::string_view op) {
  std::string name(op);
  const size_t end = name.find('.', 5);
  const size_t last = (end == std::string::npos ? name.size() : end) - 1;
  if (name.size() > 5 && name[last] == '_') name.erase(last, 1);
  return name;
}

const Kernel* kernel_of(std::string_view op) {
  const std::string plain = out_of_place(op);
  for (const auto* table : {&pointwise_kernels(), &reduction_kernels(), &shape_kernels()})
    if (auto it = table->find(plain); it != table->end()) return &it->second;
  return nullptr;
}

std::optional<double> number_in(const Attr& attr) {
  if (auto* d = std::get_if<double>(&attr)) return *d;
  if (auto* i = std::get_if<int64_t>(&attr)) return static_cast<double>(*i);
  if (auto* b = std::get_if<bool>(&attr)) return *b ? 1 : 0;
  return std::nullopt;
}

}  // namespace

int64_t element_count(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  return count;
}

bool Arguments::given(size_t i) const {
  if (i >= node_.inputs.size()) return false;
  const Input& input = node_.inputs[i];
  if (input.kind == InputKind::kAttr) return !std::holds_alternative<NoneAttr>(input.attr);
  return !input.values.empty() && input.values[0] != kNone;
}

Array Arguments::array(size_t i) const {
  OPFUSE_CHECK(given(i), node_.op + " needs its argument");
  const Input& input = node_.inputs[i];
  if (input.kind == InputKind::kAttr) return Array(number(i, 0));
  const Value& value = graph_.values[input.values[0]];
  const auto known = values_.find(input.values[0]);
  if (known != values_.end()) return known->second;
  OPFUSE_CHECK(value.meta.number.has_value(), node_.op + " reads a value that is not given");
  return Array(*value.meta.number);
}

std::vector<Array> Arguments::list(size_t i) const {
  std::vector<Array> arrays;
  for (ValueId value : node_.inputs[i].values) arrays.push_back(values_.at(value));
  return arrays;
}

double Arguments::number(size_t i, double otherwise) const {
  if (i >= node_.inputs.size()) return otherwise;
  if (node_.inputs[i].kind != InputKind::kAttr) return given(i) ? array(i).data[0] : otherwise;
  return number_in(node_.inputs[i].attr).value_or(otherwise);
}

std::string Arguments::text(size_t i) const {
  const auto* text = std::get_if<std::string>(&node_.inputs[i].attr);
  return text ? *text : "";
}

std::vector<int64_t> Arguments::sizes(size_t i) const {
  if (i >= node_.inputs.size()) return {};
  const Attr& attr = node_.inputs[i].attr;
  if (auto* list = std::get_if<std::vector<int64_t>>(&attr)) return *list;
  if (auto one = number_in(attr)) return {static_cast<int64_t>(*one)};
  return {};
}

bool can_evaluate(std::string_view op) { return kernel_of(op) != nullptr; }

Result<Arrays> evaluate(const Graph& graph, const Arrays& externals) {
  Arrays values = externals;
  for (const Node& node : graph.nodes) {
    const Kernel* kernel = kernel_of(node.op);
    if (!kernel) return Error{node.op + ": expected an operator that can be evaluated in fp64"};
    try {
      const std::vector<Array> results = (*kernel)(Arguments(graph, node, values));
      for (size_t i = 0; i < node.outputs.size() && i < results.size(); ++i)
        if (node.outputs[i] != kNone) values[node.outputs[i]] = results[i];
    } catch (const CheckFailed& failure) {
      return Error{node.op + ": " + failure.what()};
    }
  }
  return values;
}

}  // namespace opfuse::graph
