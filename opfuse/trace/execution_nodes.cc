#include "opfuse/trace/execution_nodes.h"

namespace opfuse::trace {
namespace {

using nlohmann::json;

template <class T>
void take(const json& object, const char* key, T* value) {
  const auto it = object.find(key);
  if (it == object.end()) return;
  if constexpr (std::is_same_v<T, std::string>) {
    if (it->is_string()) *value = it->get<std::string>();
  } else {
    if (it->is_number()) *value = it->get<T>();
  }
}

void take(const json& object, const char* key, json* value) {
  const auto it = object.find(key);
  if (it != object.end() && it->is_array()) *value = *it;
}

// Before 1.0.2 everything stands in the node.
void take_flat(const json& object, ExecutionNode* node) {
  take(object, "parent", &node->parent);
  take(object, "seq_id", &node->sequence);
  take(object, "tid", &node->thread);
  take(object, "rf_id", &node->record_id);
  take(object, "op_schema", &node->schema);
  take(object, "kernel_backend", &node->kernel_backend);
  take(object, "inputs", &node->inputs);
  take(object, "input_shapes", &node->input_shapes);
  take(object, "input_types", &node->input_types);
  take(object, "outputs", &node->outputs);
  take(object, "output_shapes", &node->output_shapes);
  take(object, "output_types", &node->output_types);
}

void take_nested(const json& object, ExecutionNode* node) {
  take(object, "ctrl_deps", &node->parent);
  const json& in = object.contains("inputs") ? object["inputs"] : json::object();
  const json& out = object.contains("outputs") ? object["outputs"] : json::object();
  take(in, "values", &node->inputs);
  take(in, "shapes", &node->input_shapes);
  take(in, "types", &node->input_types);
  take(in, "strides", &node->input_strides);
  take(out, "values", &node->outputs);
  take(out, "shapes", &node->output_shapes);
  take(out, "types", &node->output_types);
  take(out, "strides", &node->output_strides);
  const auto attributes = object.find("attrs");
  if (attributes == object.end() || !attributes->is_array()) return;
  for (const json& attribute : *attributes) {
    if (!attribute.is_object() || !attribute.contains("value")) continue;
    const json renamed = {{attribute.value("name", ""), attribute["value"]}};
    take(renamed, "seq_id", &node->sequence);
    take(renamed, "tid", &node->thread);
    take(renamed, "rf_id", &node->record_id);
    take(renamed, "op_schema", &node->schema);
    take(renamed, "kernel_backend", &node->kernel_backend);
  }
}

}  // namespace

Scan ExecutionNodes::scan(const char** at) {
  const char* p = *at;
  int depth = 0;
  while (true) {
    p = window_.next_mark(p);
    if (p >= window_.end()) return Scan::kMore;
    if (*p == '"') {
      p = window_.next_quote(p + 1);
      while (p < window_.end() && *p == '\\') p = window_.next_quote(p + 2);
      if (p >= window_.end()) return Scan::kMore;
    } else if (*p == '{' || *p == '[') {
      ++depth;
    } else if (*p == '\\') {
      return Scan::kBad;
    } else if (--depth == 0) {
      break;
    }
    ++p;
  }
  const json object = json::parse(*at, p + 1, nullptr, false);
  if (!object.is_object()) return Scan::kBad;
  ExecutionNode node;
  take(object, "id", &node.id);
  take(object, "name", &node.name);
  const auto inputs = object.find("inputs");
  if (inputs != object.end() && inputs->is_object())
    take_nested(object, &node);
  else if (object.contains("ctrl_deps"))
    take_nested(object, &node);
  else
    take_flat(object, &node);
  nodes_.push_back(std::move(node));
  *at = p + 1;
  return Scan::kDone;
}

bool ExecutionNodes::looks_like_event(const char* at) const {
  if (*at != '{') return false;
  const char* before = at;
  while (before > window_.begin() && static_cast<unsigned char>(before[-1]) <= ' ') --before;
  if (before > window_.begin() && before[-1] == ':') return false;
  const char* quote = window_.next_quote(at + 1);
  if (quote >= window_.end()) return false;
  const char* close = window_.next_quote(quote + 1);
  const std::string_view key(quote + 1,
                             static_cast<size_t>(std::max<ptrdiff_t>(close - quote - 1, 0)));
  return key == "id" || key == "ctrl_deps";
}

}  // namespace opfuse::trace
