#pragma once
// The arguments of a node in the text form of a graph: as they are written, then as the inputs that
// the operator's schema makes of them. Internal to graph/.

#include <string>
#include <string_view>
#include <vector>

#include "opfuse/graph/graph.h"
#include "opfuse/graph/schema.h"
#include "opfuse/graph/text_line.h"
#include "opfuse/graph/text_views.h"

namespace opfuse::graph::text {

// An argument as written, before the schema says what it is.
struct RawArgument {
  std::string name;  // "" positional
  size_t pos = 0;
  bool is_list = false;
  struct Item {
    std::string value;  // name of a value, or "" for a literal
    Attr literal;
    std::string bare;  // a dtype's name
  };
  std::vector<Item> items;
};

class Arguments {
 public:
  Arguments(Graph* graph, Views* views) : graph_(*graph), views_(*views) {}

  // "(%1, [2, 3], dim=1)"
  Result<std::vector<RawArgument>> call(Line* line);
  // To the arguments of the node's schema, by place or by name.
  Status bind(Line* line, const std::vector<RawArgument>& arguments, Node* node);
  // Of an operator without a schema: one input an argument.
  Status bind_freely(const std::vector<RawArgument>& arguments, Node* node);

 private:
  Status item(Line* line, RawArgument* argument);
  Result<Input> bind_one(Line* line, const SchemaArgument& formal, const RawArgument* actual,
                         const std::string& op);
  static Attr attribute(const RawArgument& argument, std::string_view type);
  // A value by name; a literal in a tensor's place becomes a wrapped number.
  ValueId tensor(const RawArgument::Item& item);

  Graph& graph_;
  Views& views_;
};

}  // namespace opfuse::graph::text
