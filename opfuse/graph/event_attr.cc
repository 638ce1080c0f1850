#include "opfuse/graph/event_attr.h"

namespace opfuse::graph {

using trace::ArgumentKind;

Attr attr_of(const trace::EventTable& table, const trace::ArgumentRow& argument) {
  switch (argument.kind) {
    case ArgumentKind::kNone:
      return NoneAttr{};
    case ArgumentKind::kBool:
      return argument.ints.at(0) != 0;
    case ArgumentKind::kInt:
      return argument.ints.at(0);
    case ArgumentKind::kDouble:
      return argument.doubles.at(0);
    case ArgumentKind::kString:
    case ArgumentKind::kDevice:
      return std::string(table.strings.get(argument.text));
    case ArgumentKind::kIntList:
      return argument.ints;
    case ArgumentKind::kDoubleList:
      return argument.doubles;
    case ArgumentKind::kBoolList:
      return std::vector<bool>(argument.ints.begin(), argument.ints.end());
    case ArgumentKind::kComplex:
      return OpaqueAttr{"complex"};
    case ArgumentKind::kGenerator:
      return OpaqueAttr{"Generator"};
    case ArgumentKind::kOpaque:
      return OpaqueAttr{std::string(table.strings.get(argument.text))};
    default:
      return UnknownAttr{};
  }
}

}  // namespace opfuse::graph
