#include "opfuse/graph/overload.h"

#include <algorithm>

namespace opfuse::graph {
namespace {

using trace::ArgumentKind;
using trace::ArgumentRow;

bool fits(const ArgumentRow& given, const SchemaArgument& formal) {
  const std::string& type = formal.type;
  switch (given.kind) {
    case ArgumentKind::kTensor:
      return formal.is_tensor();
    case ArgumentKind::kTensorList:
    case ArgumentKind::kOptionalTensorList:
      return formal.is_tensor_list();
    case ArgumentKind::kIntList:
      return type.starts_with("int[]") || type.starts_with("float[]");
    case ArgumentKind::kBool:
      return type.starts_with("bool") || type.starts_with("Scalar");
    case ArgumentKind::kInt:  // enumerations are written as numbers
      return !formal.is_tensor() && !formal.is_tensor_list() && !type.ends_with("[]");
    case ArgumentKind::kDouble:
      return type.starts_with("Scalar") || type.starts_with("float");
    case ArgumentKind::kOpaque:   // None, a text or a device
    case ArgumentKind::kUnknown:  // None, or what the file does not write
      return type != "Tensor" && type != "Tensor[]";
    default:
      return true;
  }
}

bool fits(const std::vector<ArgumentRow>& inputs, const Schema& schema) {
  if (inputs.size() > schema.arguments.size()) return false;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (!fits(inputs[i], schema.arguments[i])) return false;
  return std::all_of(schema.arguments.begin() + static_cast<ptrdiff_t>(inputs.size()),
                     schema.arguments.end(),
                     [](const SchemaArgument& rest) { return rest.has_default; });
}

}  // namespace

const Schema* find_overload(const SchemaTable& schemas, std::string_view name,
                            const std::vector<ArgumentRow>& inputs) {
  const std::string dotted = dotted_name(name);
  const std::vector<const Schema*> overloads = schemas.overloads(dotted);
  if (overloads.empty()) return schemas.find(dotted);
  if (inputs.empty()) return overloads.size() == 1 ? overloads.front() : schemas.find(dotted);
  const Schema* best = nullptr;
  for (const Schema* schema : overloads) {
    if (!fits(inputs, *schema)) continue;
    // One that takes exactly as many comes before one that fills in defaults.
    if (best == nullptr ||
        (schema->arguments.size() == inputs.size() && best->arguments.size() != inputs.size()))
      best = schema;
  }
  return best;
}

}  // namespace opfuse::graph
