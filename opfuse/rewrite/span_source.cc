#include "opfuse/rewrite/span_source.h"

#include <algorithm>
#include <array>
#include <cstdlib>

namespace opfuse::rewrite {
namespace {

// Operations of the source by the last part of what they call, and the recorded operator.
struct Spelled {
  std::string_view callee;  // "truediv"
  std::string_view op;      // "aten." + this
};

// Callees that make exactly the operator of their own name, whatever their arguments.
constexpr std::array kOwnName = {
    "sigmoid",   "mul",      "add",         "sub",     "div",       "neg",
    "exp",       "tanh",     "pow",         "sqrt",    "rsqrt",     "erf",
    "log",       "log1p",    "abs",         "square",  "sin",       "cos",
    "expm1",     "silu",     "reciprocal",  "clamp",   "clamp_min", "clamp_max",
    "hardtanh",  "softplus", "hardsigmoid", "mean",    "sum",       "amax",
    "logsumexp", "gelu",     "maximum",     "minimum", "cat",       "masked_fill"};
constexpr std::array kSynonyms = {
    Spelled{"multiply", "mul"},     Spelled{"truediv", "div"},
    Spelled{"divide", "div"},       Spelled{"subtract", "sub"},
    Spelled{"true_divide", "div"},  Spelled{"negative", "neg"},
    Spelled{"clip", "clamp"},       Spelled{"relu6", "hardtanh"},
    Spelled{"expit", "sigmoid"},    Spelled{"matmul", "mm"},
    Spelled{"softmax", "_softmax"}, Spelled{"log_softmax", "_log_softmax"}};
constexpr std::array kCasts = {"to", "float", "type_as"};
constexpr std::array kNamespaces = {"torch.", "Tensor.", "operator.", "torch.nn.functional.",
                                    "torch.special."};

bool is_one_of(std::string_view name, const auto& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::string_view own_name(std::string_view callee) {
  const size_t dot = callee.rfind('.');
  if (dot == callee.npos || !is_one_of(callee.substr(0, dot + 1), kNamespaces)) return "";
  return callee.substr(dot + 1);
}

std::string_view operator_of(std::string_view callee) {
  const std::string_view name = own_name(callee);
  for (const Spelled& synonym : kSynonyms)
    if (synonym.callee == name) return synonym.op;
  return is_one_of(name, kOwnName) ? name : "";
}

bool is_cast(std::string_view name) { return is_one_of(name, kCasts); }

std::optional<double> constant_of(std::string_view argument) {
  if (!argument.starts_with("const:")) return {};
  const std::string text(argument.substr(6));
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end ||
      std::string_view("0123456789.-").find(text[0]) == std::string_view::npos)
    return {};
  return value;
}

Argument split_argument(const std::string& text) {
  const size_t equal = text.find('=');
  if (equal == text.npos || text.find(':') < equal) return {"", text};
  return {text.substr(0, equal), text.substr(equal + 1)};
}

DType dtype_named(std::string_view name) {
  if (name == "float32" || name == "float") return DType::kF32;
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float16" || name == "half") return DType::kF16;
  return name == "float64" || name == "double" ? DType::kF64 : DType::kUnknown;
}

}  // namespace opfuse::rewrite
