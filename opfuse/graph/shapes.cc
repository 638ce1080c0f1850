#include "opfuse/graph/shapes.h"

#include <algorithm>
#include <string_view>

#include "opfuse/graph/schema.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::graph {
namespace {

using Shape = std::vector<int64_t>;

const Attr* attr(const Node& node, std::string_view name) {
  if (node.schema == nullptr) return nullptr;
  for (size_t i = 0; i < node.inputs.size() && i < node.schema->arguments.size(); ++i)
    if (node.schema->arguments[i].name == name && node.inputs[i].kind == InputKind::kAttr)
      return &node.inputs[i].attr;
  return nullptr;
}

std::optional<int64_t> int_attr(const Node& node, std::string_view name) {
  const Attr* found = attr(node, name);
  const auto* value = found == nullptr ? nullptr : std::get_if<int64_t>(found);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

std::optional<Shape> ints_attr(const Node& node, std::string_view name) {
  const Attr* found = attr(node, name);
  if (found == nullptr) return std::nullopt;
  if (const auto* list = std::get_if<std::vector<int64_t>>(found)) return *list;
  if (const auto* one = std::get_if<int64_t>(found)) return Shape{*one};
  return std::nullopt;
}

// False for a size that no tensor has.
bool set_shape(TensorMeta* result, Shape shape) {
  constexpr int64_t kMost = int64_t{1} << 48;
  int64_t count = 1;
  for (int64_t size : shape)
    if (size < 0 || __builtin_mul_overflow(count, size, &count) || count > kMost) return false;
  result->shape_known = true;
  result->shape = std::move(shape);
  return true;
}

bool broadcast(const std::vector<TensorMeta>& inputs, Shape* shape) {
  for (const TensorMeta& input : inputs) {
    if (!input.shape_known) return false;
    const size_t rank = std::max(shape->size(), input.shape.size());
    shape->insert(shape->begin(), rank - shape->size(), 1);
    for (size_t i = 0; i < input.shape.size(); ++i) {
      int64_t& to = (*shape)[rank - input.shape.size() + i];
      if (to == 1)
        to = input.shape[i];
      else if (input.shape[i] != 1 && input.shape[i] != to)
        return false;
    }
  }
  return true;
}

// Tensors with dimensions decide before Python numbers; among equals the wider one.
DType promoted(const std::vector<TensorMeta>& inputs) {
  const auto rank = [](DType dtype) {
    static constexpr DType kOrder[] = {DType::kBool, DType::kU8,  DType::kI8,  DType::kI16,
                                       DType::kI32,  DType::kI64, DType::kF16, DType::kBF16,
                                       DType::kF32,  DType::kF64};
    return static_cast<int>(std::ranges::find(kOrder, dtype) - std::begin(kOrder));
  };
  DType best = DType::kUnknown;
  for (const bool numbers : {false, true}) {
    for (const TensorMeta& input : inputs) {
      if (((input.flags & trace::kWrappedNumber) != 0) != numbers) continue;
      if (input.dtype == DType::kUnknown) return DType::kUnknown;
      if (best == DType::kUnknown || rank(input.dtype) > rank(best)) best = input.dtype;
    }
    if (best != DType::kUnknown) return best;
  }
  return best;
}

bool is_comparison(std::string_view op) {
  for (std::string_view name : {"eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and",
                                "logical_or", "isnan", "isinf"})
    if (op.starts_with("aten.") && op.substr(5).starts_with(name) &&
        (op.size() == 5 + name.size() || op[5 + name.size()] == '.'))
      return true;
  return false;
}

bool normal(int64_t* dim, size_t rank) {
  if (*dim < 0) *dim += static_cast<int64_t>(rank);
  return *dim >= 0 && *dim < static_cast<int64_t>(rank);
}

bool reduce(const Node& node, const TensorMeta& input, TensorMeta* result) {
  const auto dims = ints_attr(node, "dim");
  const Attr* keep = attr(node, "keepdim");
  const bool* keepdim = keep == nullptr ? nullptr : std::get_if<bool>(keep);
  if (!input.shape_known || !dims || dims->empty()) return false;
  Shape shape = input.shape;
  for (int64_t dim : *dims) {
    if (!normal(&dim, input.shape.size())) return false;
    shape[dim] = keepdim != nullptr && *keepdim ? 1 : -1;
  }
  std::erase(shape, -1);
  return set_shape(result, std::move(shape));
}

bool view(const Node& node, const TensorMeta& input, TensorMeta* result) {
  auto size = ints_attr(node, node.op.starts_with("aten.reshape") ? "shape" : "size");
  if (!size || !input.shape_known) return false;
  int64_t known = 1;
  for (int64_t n : *size)
    if (n >= 0 && __builtin_mul_overflow(known, n, &known)) return false;
  for (int64_t& n : *size)
    if (n < 0) n = known == 0 ? 0 : input.numel() / known;
  return set_shape(result, std::move(*size));
}

bool expand(const Node& node, const TensorMeta& input, TensorMeta* result) {
  auto size = ints_attr(node, "size");
  if (!size || !input.shape_known || size->size() < input.shape.size()) return false;
  const size_t more = size->size() - input.shape.size();
  for (size_t i = more; i < size->size(); ++i)
    if ((*size)[i] < 0) (*size)[i] = input.shape[i - more];
  return set_shape(result, std::move(*size));
}

bool transpose(const Node& node, const TensorMeta& input, TensorMeta* result) {
  if (!input.shape_known) return false;
  Shape shape = input.shape;
  if (node.op == "aten.t") {
    if (shape.size() == 2) std::swap(shape[0], shape[1]);
    return set_shape(result, std::move(shape));
  }
  auto a = int_attr(node, "dim0"), b = int_attr(node, "dim1");
  if (!a || !b || !normal(&*a, shape.size()) || !normal(&*b, shape.size())) return false;
  std::swap(shape[*a], shape[*b]);
  return set_shape(result, std::move(shape));
}

bool slice(const Node& node, const TensorMeta& input, TensorMeta* result) {
  auto dim = int_attr(node, "dim");
  const auto step = int_attr(node, "step");
  constexpr int64_t kLongestStep = int64_t{1} << 48;
  if (!input.shape_known || !dim || !step || *step <= 0 || *step > kLongestStep ||
      !normal(&*dim, input.shape.size()))
    return false;
  const int64_t size = input.shape[*dim];
  int64_t start = int_attr(node, "start").value_or(0), end = int_attr(node, "end").value_or(size);
  start = std::clamp<int64_t>(start < 0 ? start + size : start, 0, size);
  end = std::clamp<int64_t>(end < 0 ? end + size : end, start, size);
  Shape shape = input.shape;
  shape[*dim] = (end - start + *step - 1) / *step;
  return set_shape(result, std::move(shape));
}

bool unsqueeze(const Node& node, const TensorMeta& input, TensorMeta* result) {
  auto dim = int_attr(node, "dim");
  if (!input.shape_known || !dim || !normal(&*dim, input.shape.size() + 1)) return false;
  Shape shape = input.shape;
  shape.insert(shape.begin() + *dim, 1);
  return set_shape(result, std::move(shape));
}

bool product(const Node& node, const std::vector<TensorMeta>& inputs, TensorMeta* result) {
  const size_t first = node.op == "aten.addmm" || node.op == "aten.baddbmm" ? 1 : 0;
  if (inputs.size() < first + 2 || !inputs[first].shape_known || !inputs[first + 1].shape_known ||
      inputs[first].shape.size() < 2 || inputs[first + 1].shape.empty())
    return false;
  Shape shape = inputs[first].shape;
  shape.back() = inputs[first + 1].shape.back();
  return set_shape(result, std::move(shape));
}

bool concatenate(const Node& node, const std::vector<TensorMeta>& inputs, TensorMeta* result) {
  auto dim = int_attr(node, "dim");
  if (!dim || inputs.empty() || !inputs[0].shape_known || !normal(&*dim, inputs[0].shape.size()))
    return false;
  Shape shape = inputs[0].shape;
  shape[*dim] = 0;
  for (const TensorMeta& input : inputs) {
    if (!input.shape_known || input.shape.size() != shape.size()) return false;
    shape[*dim] += input.shape[*dim];
  }
  return set_shape(result, std::move(shape));
}

bool same_as_first(std::string_view op) {
  for (std::string_view name :
       {"aten.clone", "aten._to_copy", "aten._softmax", "aten._log_softmax",
        "aten.native_layer_norm", "aten.native_batch_norm", "aten.cudnn_batch_norm",
        "aten.native_dropout", "aten.detach", "aten.alias", "aten.contiguous", "aten.zeros_like",
        "aten.ones_like", "aten.empty_like", "aten.copy_", "aten.cumsum"})
    if (op == name) return true;
  return false;
}

bool is_reduction(std::string_view op) {
  for (std::string_view name : {"aten.mean.dim", "aten.sum.dim_IntList", "aten.amax", "aten.amin"})
    if (op == name) return true;
  return false;
}

bool infer_shape(const Node& node, const std::vector<TensorMeta>& inputs, TensorMeta* result) {
  const std::string& op = node.op;
  if (inputs.empty()) return false;
  if (node.schema != nullptr && node.schema->pointwise) {
    Shape shape;
    return broadcast(inputs, &shape) && set_shape(result, std::move(shape));
  }
  if (same_as_first(op)) return inputs[0].shape_known && set_shape(result, inputs[0].shape);
  if (is_reduction(op)) return reduce(node, inputs[0], result);
  if (op == "aten.view" || op == "aten._unsafe_view" || op == "aten.reshape" ||
      op == "aten._reshape_alias")
    return view(node, inputs[0], result);
  if (op == "aten.expand") return expand(node, inputs[0], result);
  if (op == "aten.t" || op == "aten.transpose.int") return transpose(node, inputs[0], result);
  if (op == "aten.slice.Tensor") return slice(node, inputs[0], result);
  if (op == "aten.unsqueeze") return unsqueeze(node, inputs[0], result);
  if (op == "aten.cat") return concatenate(node, inputs, result);
  if (op == "aten.mm" || op == "aten.addmm" || op == "aten.bmm" || op == "aten.baddbmm")
    return product(node, inputs, result);
  return false;
}

}  // namespace

TensorMeta infer_result(const Node& node, const std::vector<TensorMeta>& inputs) {
  TensorMeta result;
  infer_shape(node, inputs, &result);
  if (inputs.empty()) return result;
  result.device = inputs[0].device;
  if (node.op == "aten._to_copy") {
    const auto dtype = int_attr(node, "dtype");
    result.dtype = dtype ? static_cast<DType>(*dtype) : inputs[0].dtype;
  } else if (is_comparison(node.op)) {
    result.dtype = DType::kBool;
  } else {
    result.dtype = promoted(inputs);
  }
  return result;
}

}  // namespace opfuse::graph
