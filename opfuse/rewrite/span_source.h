#pragma once
// What the operations of a source expression (OperationFact) are called and take: which recorded
// operator a callee makes, and what an argument such as "keepdim=const:True" says.

#include <optional>
#include <string>
#include <string_view>

#include "opfuse/base/dtype.h"

namespace opfuse::rewrite {

// "torch.sigmoid" -> "sigmoid"; "" when the callee is not one of torch's own.
std::string_view own_name(std::string_view callee);
// The operator that a callee is known to be alone, without "aten.": "truediv" -> "div"; "" for
// others.
std::string_view operator_of(std::string_view callee);
// `to`, `float`, `type_as`: they record nothing where the dtype is that already. `name` as
// own_name().
bool is_cast(std::string_view name);

// The number of "const:2.0"; none for words and for anything else.
std::optional<double> constant_of(std::string_view argument);

// An argument of the source: "keepdim=const:True" by name, others by position.
struct Argument {
  std::string name, value;
};
Argument split_argument(const std::string& text);

// "float32", "half": a dtype as Python names it; kUnknown for other than floating ones.
DType dtype_named(std::string_view name);

}  // namespace opfuse::rewrite
