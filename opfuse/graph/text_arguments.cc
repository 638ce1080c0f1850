#include "opfuse/graph/text_arguments.h"

#include <algorithm>

#include <fmt/format.h>

#include "opfuse/trace/event_table.h"

namespace opfuse::graph::text {

Result<std::vector<RawArgument>> Arguments::call(Line* line) {
  std::vector<RawArgument> arguments;
  if (!line->eat("(")) return line->fail("'('");
  while (!line->eat(")")) {
    RawArgument next;
    line->skip_spaces();
    next.pos = line->pos();
    Line ahead = *line;
    std::string_view word = ahead.word();
    if (!word.empty() && ahead.eat("=")) {
      next.name = word;
      *line = ahead;
    }
    if (line->eat("[")) {
      next.is_list = true;
      while (!line->eat("]")) {
        OPFUSE_TRY_STATUS(item(line, &next));
        if (!line->eat(",") && line->peek() != ']') return line->fail("',' or ']'");
      }
    } else {
      OPFUSE_TRY_STATUS(item(line, &next));
    }
    arguments.push_back(std::move(next));
    if (!line->eat(",") && line->peek() != ')') return line->fail("',' or ')'");
  }
  return arguments;
}

Status Arguments::item(Line* line, RawArgument* argument) {
  RawArgument::Item item;
  if (line->peek() == '%') {
    line->eat("%");
    size_t begin = line->pos();
    item.value = line->word();
    if (!views_.contains(item.value))
      return line->fail_at(begin - 1, fmt::format("%{} is not defined", item.value));
  } else {
    Line ahead = *line;
    std::string_view word = ahead.word();
    if (dtype_from_name(word)) {
      item.bare = word;
      item.literal = static_cast<int64_t>(*dtype_from_name(word));
      *line = ahead;
    } else {
      OPFUSE_TRY(item.literal, line->literal());
    }
  }
  argument->items.push_back(std::move(item));
  return ok_status();
}

Status Arguments::bind_freely(const std::vector<RawArgument>& arguments, Node* node) {
  for (const RawArgument& argument : arguments) {
    bool tensors = std::ranges::any_of(argument.items, [](auto& i) { return !i.value.empty(); });
    Input input;
    if (tensors) {
      input.kind = argument.is_list ? InputKind::kTensorList : InputKind::kTensor;
      for (const auto& item : argument.items) input.values.push_back(tensor(item));
    } else {
      input.attr = attribute(argument, "");
    }
    node->inputs.push_back(std::move(input));
  }
  return ok_status();
}

Status Arguments::bind(Line* line, const std::vector<RawArgument>& arguments, Node* node) {
  const std::vector<SchemaArgument>& formal = node->schema->arguments;
  std::vector<const RawArgument*> actual(formal.size());
  size_t next = 0;
  for (const RawArgument& argument : arguments) {
    size_t index = next++;
    if (!argument.name.empty())
      index = std::ranges::find(formal, argument.name, &SchemaArgument::name) - formal.begin();
    if (index >= formal.size() || actual[index])
      return line->fail_at(argument.pos,
                           fmt::format("{} has no further argument '{}'", node->op, argument.name));
    if (argument.name.empty() && formal[index].keyword_only)
      return line->fail_at(argument.pos, fmt::format("expected '{}=', which {} takes by name only",
                                                     formal[index].name, node->op));
    actual[index] = &argument;
  }
  for (size_t i = 0; i < formal.size(); ++i) {
    OPFUSE_TRY(Input input, bind_one(line, formal[i], actual[i], node->op));
    node->inputs.push_back(std::move(input));
  }
  return ok_status();
}

Result<Input> Arguments::bind_one(Line* line, const SchemaArgument& formal,
                                  const RawArgument* actual, const std::string& op) {
  Input input;
  if (!actual && !formal.has_default)
    return line->fail_at(line->pos(), fmt::format("{} needs its argument '{}'", op, formal.name));
  if (formal.is_tensor()) {
    input.kind = InputKind::kTensor;
    if (actual && (actual->is_list || actual->items.size() != 1))
      return line->fail_at(actual->pos, fmt::format("expected a tensor for '{}'", formal.name));
    input.values.push_back(actual ? tensor(actual->items[0]) : kNone);
  } else if (formal.is_tensor_list()) {
    input.kind = InputKind::kTensorList;
    if (actual)
      for (const auto& item : actual->items) input.values.push_back(tensor(item));
  } else if (!actual) {
    input.attr = formal.default_value;
  } else {
    for (const auto& item : actual->items)
      if (!item.value.empty())
        return line->fail_at(actual->pos, fmt::format("expected a {} for '{}', found a tensor",
                                                      formal.type, formal.name));
    input.attr = attribute(*actual, formal.type);
  }
  return input;
}

Attr Arguments::attribute(const RawArgument& argument, std::string_view type) {
  bool real = type.starts_with("float");
  if (!argument.is_list) {
    const Attr& value = argument.items[0].literal;
    const auto* whole = std::get_if<int64_t>(&value);
    return whole && real ? Attr{static_cast<double>(*whole)} : value;
  }
  std::vector<int64_t> ints;
  std::vector<double> doubles;
  std::vector<bool> bools;
  for (const auto& item : argument.items) {
    if (auto* i = std::get_if<int64_t>(&item.literal)) {
      ints.push_back(*i);
      doubles.push_back(static_cast<double>(*i));
    }
    if (auto* d = std::get_if<double>(&item.literal)) {
      doubles.push_back(*d);
      real = true;
    }
    if (auto* b = std::get_if<bool>(&item.literal)) bools.push_back(*b);
  }
  if (!bools.empty() || type.starts_with("bool")) return Attr{bools};
  return real ? Attr{doubles} : Attr{ints};
}

ValueId Arguments::tensor(const RawArgument::Item& item) {
  if (!item.value.empty()) return views_.current_value(views_.find(item.value));
  TensorMeta meta;
  if (auto* i = std::get_if<int64_t>(&item.literal)) {
    meta.dtype = DType::kI64;
    meta.number = static_cast<double>(*i);
  } else if (auto* d = std::get_if<double>(&item.literal)) {
    meta.dtype = DType::kF64;
    meta.number = *d;
  } else if (auto* b = std::get_if<bool>(&item.literal)) {
    meta.dtype = DType::kBool;
    meta.number = *b ? 1 : 0;
  } else {
    return kNone;
  }
  meta.shape_known = true;
  meta.device = 0;
  meta.flags = trace::kWrappedNumber;
  Value value;
  value.meta = std::move(meta);
  graph_.values.push_back(std::move(value));
  return static_cast<ValueId>(graph_.values.size() - 1);
}

}  // namespace opfuse::graph::text
