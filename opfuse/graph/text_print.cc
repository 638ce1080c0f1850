#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "opfuse/graph/effects.h"
#include "opfuse/graph/text.h"
#include "opfuse/graph/text_names.h"

namespace opfuse::graph {
namespace {

std::string print_double(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  std::string text(buffer, end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string quote(std::string_view text) {
  std::string result = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    if (c == '\n') {
      result += "\\n";
      continue;
    }
    result += c;
  }
  return result + '"';
}

struct AttrPrinter {
  std::string operator()(const UnknownAttr&) const { return "?"; }
  std::string operator()(const NoneAttr&) const { return "None"; }
  std::string operator()(bool value) const { return value ? "True" : "False"; }
  std::string operator()(int64_t value) const { return fmt::to_string(value); }
  std::string operator()(double value) const { return print_double(value); }
  std::string operator()(const std::string& value) const { return quote(value); }
  std::string operator()(const OpaqueAttr& value) const { return fmt::format("<{}>", value.type); }
  template <class T>
  std::string operator()(const std::vector<T>& values) const {
    std::vector<std::string> items;
    for (T value : values) items.push_back((*this)(value));
    return fmt::format("[{}]", fmt::join(items, ", "));
  }
};

bool is_name(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '.';
  });
}

template <size_t N>
std::vector<std::string_view> flag_names(uint16_t flags,
                                         const std::array<text::FlagName, N>& table) {
  std::vector<std::string_view> names;
  for (const text::FlagName& row : table)
    if (flags & row.bit) names.push_back(row.name);
  return names;
}

std::string print_type(const TensorMeta& meta) {
  std::string result(dtype_name(meta.dtype));
  if (meta.shape_known) result += fmt::format("[{}]", fmt::join(meta.shape, ","));
  return result;
}

std::string print_duration(int64_t ns) {
  for (const text::TimeUnit& unit : text::kTimeUnits) {
    if (ns < unit.ns && unit.ns > 1) continue;
    std::string text = fmt::format("{}", ns / unit.ns);
    if (ns % unit.ns == 0) return text + std::string(unit.name);
    std::string fraction = fmt::format("{:0{}}", ns % unit.ns, unit.digits);
    fraction.erase(fraction.find_last_not_of('0') + 1);
    return fmt::format("{}.{}{}", text, fraction, unit.name);
  }
  return "0ns";
}

std::string print_position(const Position& position) {
  bool plain = position.file.find_first_of(" \"<:") == std::string::npos && !position.file.empty();
  std::string text = plain ? position.file : quote(position.file);
  text += fmt::format(":{}", position.line);
  if (position.column >= 0) {
    text += fmt::format(":{}-", position.column);
    if (position.end_line != position.line) text += fmt::format("{}:", position.end_line);
    text += fmt::format("{}", position.end_column);
  }
  if (!position.function.empty()) text += fmt::format(" ({})", position.function);
  return text;
}

// An inline literal stands for the value that parsing it makes.
bool is_literal(const Value& value) {
  const TensorMeta& meta = value.meta;
  bool plain = value.producer == kNone && value.storage == kNone && meta.number &&
               meta.shape_known && meta.shape.empty() && meta.flags == trace::kWrappedNumber &&
               meta.device == 0;
  if (!plain) return false;
  if (meta.dtype == DType::kBool) return *meta.number == 0 || *meta.number == 1;
  return meta.dtype == DType::kF64 ||
         (meta.dtype == DType::kI64 && *meta.number == std::nearbyint(*meta.number) &&
          std::abs(*meta.number) < 9e15);
}

std::string print_literal(const TensorMeta& meta) {
  if (meta.dtype == DType::kBool) return *meta.number != 0 ? "True" : "False";
  if (meta.dtype == DType::kI64) return fmt::to_string(static_cast<int64_t>(*meta.number));
  return print_double(*meta.number);
}

class Printer {
 public:
  explicit Printer(const Graph& graph) : graph_(graph), names_(graph.values.size()) {}

  std::string print() {
    for (ValueId id = 0; id < static_cast<ValueId>(graph_.values.size()); ++id)
      if (graph_.values[id].producer == kNone && !is_literal(graph_.values[id])) declare(id);
    for (NodeId id = 0; id < static_cast<NodeId>(graph_.nodes.size()); ++id) node_line(id);
    move_to_scope(kNone);
    if (!graph_.results.empty()) {
      std::vector<std::string> results;
      for (ValueId id : graph_.results) results.push_back(use(id));
      text_ += fmt::format("return {}\n", fmt::join(results, ", "));
    }
    return text_;
  }

  // One node alone: names are the numbers of the values, the position is the innermost one.
  std::string print_alone(NodeId id) {
    for (size_t i = 0; i < names_.size(); ++i)
      if (!is_literal(graph_.values[i]))
        names_[i] = is_name(graph_.values[i].name) ? graph_.values[i].name : fmt::to_string(i);
    alone_ = true;
    return call(id);
  }

 private:
  using ViewKey = std::tuple<int32_t, int64_t, DType, std::vector<int64_t>, std::vector<int64_t>>;

  ViewKey key(const Value& value) const {
    return {value.storage, value.meta.offset, value.meta.dtype, value.meta.shape,
            value.meta.strides};
  }

  void define(ValueId id) {
    const Value& value = graph_.values[id];
    std::string name = value.name;
    while (!is_name(name) || !taken_.insert(name).second) name = fmt::to_string(++counter_);
    names_[id] = name;
    views_.try_emplace(key(value), name);
  }

  std::string use(ValueId id) {
    if (id == kNone) return "None";
    if (is_literal(graph_.values[id])) return print_literal(graph_.values[id].meta);
    if (names_[id].empty()) {  // the same view after a write
      const std::string& name = graph_.values[id].name;
      auto it = views_.find(key(graph_.values[id]));
      if (is_name(name) && taken_.contains(name))
        names_[id] = name;
      else
        names_[id] = it != views_.end() ? it->second : fmt::format("undefined_{}", id);
    }
    return "%" + names_[id];
  }

  // "%2: f32[4] requires_grad"; `derived`: the storage that parsing would give it.
  std::string definition(ValueId id, int32_t derived) {
    define(id);
    const Value& value = graph_.values[id];
    const TensorMeta& meta = value.meta;
    std::string text = fmt::format("%{}: {}", names_[id], print_type(meta));
    bool has_strides = meta.shape_known ? !meta.shape.empty() : !meta.strides.empty();
    if (has_strides && meta.strides.empty()) text += " strides[?]";
    if (!meta.strides.empty() && meta.strides != contiguous_strides(meta.shape))
      text += fmt::format(" strides[{}]", fmt::join(meta.strides, ","));
    if (meta.offset != 0) text += fmt::format(" offset[{}]", meta.offset);
    if (meta.device == 1) text += " cuda";
    if (meta.device != 0 && meta.device != 1)
      text += meta.device < 0 ? std::string(" device[?]") : fmt::format(" device[{}]", meta.device);
    for (std::string_view name : flag_names(meta.flags, text::kTensorFlags))
      text += fmt::format(" {}", name);
    if (meta.number) text += fmt::format(" number[{}]", print_double(*meta.number));
    if (value.escapes)
      text +=
          fmt::format(" escapes[{}]", fmt::join(flag_names(value.escapes, text::kEscapes), ","));
    return text + storage_words(value, derived, names_[id]);
  }

  std::string storage_words(const Value& value, int32_t derived, const std::string& name) {
    if (value.storage == kNone) return derived == kFresh ? " no_storage" : "";
    std::string text;
    auto [it, first] = storage_names_.try_emplace(value.storage, name);
    if (first) {
      const Storage& storage = graph_.storages[value.storage];
      if (derived != kFresh) text += " fresh";
      if (!storage.label.empty()) text += " " + quote(storage.label);
      if (storage.opaque_writes) text += " opaque_writes";
    } else if (derived != value.storage) {
      text += fmt::format(" alias[%{}]", it->second);
    }
    return text;
  }

  void declare(ValueId id) { line(definition(id, kFresh)); }

  void line(const std::string& content) {
    text_ += std::string(2 * open_.size(), ' ') + content + "\n";
  }

  void node_line(NodeId id) {
    move_to_scope(graph_.nodes[id].scope);
    line(call(id));
  }

  std::string call(NodeId id) {
    const Node& node = graph_.nodes[id];
    std::vector<std::string> arguments = argument_texts(node);
    std::string results = result_texts(id);
    for (size_t i = 0; i < node.written.size(); ++i)
      if (i < node.writes.size() && names_[node.written[i]].empty())
        names_[node.written[i]] = names_[node.writes[i]];
    return fmt::format("{}{}({}){}", results, node.op, fmt::join(arguments, ", "), suffix(node));
  }

  std::string result_texts(NodeId id) {
    const Node& node = graph_.nodes[id];
    std::vector<std::string> results;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      ValueId output = node.outputs[i];
      if (output == kNone) {
        results.push_back("_");
      } else if (alone_) {
        results.push_back(
            fmt::format("{}: {}", use(output), print_type(graph_.values[output].meta)));
      } else if (!names_[output].empty() || graph_.values[output].producer != id) {
        results.push_back(use(output));
      } else {
        Alias alias = schema_alias(node, static_cast<int>(i));
        int32_t derived = alias.input == kNone ? kFresh : graph_.values[alias.input].storage;
        results.push_back(definition(output, derived));
      }
    }
    return results.empty() ? "" : fmt::format("{} = ", fmt::join(results, ", "));
  }

  // Required arguments by position, then named ones; defaults are left out.
  std::vector<std::string> argument_texts(const Node& node) {
    std::vector<std::string> result;
    bool named = false;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const SchemaArgument* argument =
          node.schema && i < node.schema->arguments.size() ? &node.schema->arguments[i] : nullptr;
      if (argument && is_default(node.inputs[i], *argument)) {
        named = true;
        continue;
      }
      std::string text = input_text(node.inputs[i], argument);
      bool optional = argument && argument->has_default && node.inputs[i].kind == InputKind::kAttr;
      named = named || optional;
      if (argument && (named || argument->keyword_only)) text = argument->name + "=" + text;
      result.push_back(std::move(text));
    }
    return result;
  }

  static bool is_default(const Input& input, const SchemaArgument& argument) {
    if (!argument.has_default) return false;
    if (input.kind == InputKind::kAttr) return input.attr == argument.default_value;
    return input.kind == InputKind::kTensor && input.values.size() == 1 && input.values[0] == kNone;
  }

  std::string input_text(const Input& input, const SchemaArgument* argument) {
    if (input.kind == InputKind::kTensor)
      return input.values.empty() ? "None" : use(input.values[0]);
    if (input.kind == InputKind::kTensorList) {
      std::vector<std::string> items;
      for (ValueId value : input.values) items.push_back(use(value));
      return fmt::format("[{}]", fmt::join(items, ", "));
    }
    const auto* integer = std::get_if<int64_t>(&input.attr);
    if (integer && argument && argument->type.starts_with("ScalarType")) {
      std::string_view name = dtype_name(static_cast<DType>(*integer));
      if (name != "?") return std::string(name);
    }
    return print_attr(input.attr);
  }

  std::string suffix(const Node& node) const {
    std::string text;
    if (node.forward_sequence >= 0) text += fmt::format(" #{}", node.forward_sequence);
    if (node.region.flags != default_flags(graph_, node.scope))
      text +=
          fmt::format(" {{{}}}", fmt::join(flag_names(node.region.flags, text::kRegionFlags), ","));
    if (node.thread != 0) text += fmt::format(" thread[{}]", node.thread);
    if (node.random && !(node.schema && node.schema->random)) text += " random";
    if (node.opaque && node.schema) text += " opaque";
    size_t frames = alone_ ? std::min<size_t>(node.positions.size(), 1) : node.positions.size();
    for (size_t i = 0; i < frames; ++i)
      text += (i == 0 ? " @ " : " < ") + print_position(graph_.positions[node.positions[i]]);
    if (node.dur_ns >= 0) text += "  " + print_duration(node.dur_ns);
    return text;
  }

  void move_to_scope(int32_t scope) {
    std::vector<int32_t> path;
    for (; scope != kNone; scope = graph_.scopes[scope].parent) path.push_back(scope);
    std::ranges::reverse(path);
    size_t common = 0;
    while (common < path.size() && common < open_.size() && path[common] == open_[common]) ++common;
    while (open_.size() > common) {
      open_.pop_back();
      line("}");
    }
    for (; open_.size() < path.size();) {
      int32_t next = path[open_.size()];
      const Scope& entered = graph_.scopes[next];
      std::string text(text::kScopeWords[static_cast<size_t>(entered.kind)]);
      text += " " + (is_name(entered.name) ? entered.name : quote(entered.name));
      if (entered.sequence >= 0) text += fmt::format(" #{}", entered.sequence);
      if (!seen_scopes_.insert(next).second) text += " again";
      line(text + " {");
      open_.push_back(next);
    }
  }

  static constexpr int32_t kFresh = -2;
  const Graph& graph_;
  std::vector<std::string> names_;
  std::set<std::string> taken_;
  std::map<ViewKey, std::string> views_;
  std::map<int32_t, std::string> storage_names_;
  std::vector<int32_t> open_;
  std::set<int32_t> seen_scopes_;
  std::string text_;
  int counter_ = 0;
  bool alone_ = false;
};

}  // namespace

std::string print_attr(const Attr& attr) { return std::visit(AttrPrinter{}, attr); }

std::string print_graph(const Graph& graph) { return Printer(graph).print(); }

std::string print_node(const Graph& graph, NodeId node) { return Printer(graph).print_alone(node); }

}  // namespace opfuse::graph
