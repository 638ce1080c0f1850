#include "opfuse/rewrite/json_fields.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace opfuse::rewrite {

using Json = nlohmann::ordered_json;

struct JsonBox {
  Json value;
};

namespace {

constexpr int kString = static_cast<int>(Json::value_t::string);
constexpr int kBool = static_cast<int>(Json::value_t::boolean);
constexpr int kInteger = static_cast<int>(Json::value_t::number_integer);
constexpr int kArray = static_cast<int>(Json::value_t::array);
constexpr int kObject = static_cast<int>(Json::value_t::object);

std::string shortened(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 40) text = text.substr(0, 40) + "…";
  return text;
}

const Json& json(const void* value) { return *static_cast<const Json*>(value); }

}  // namespace

Result<std::shared_ptr<const JsonBox>> parse_json(std::string_view text, std::string_view where) {
  try {
    return std::make_shared<const JsonBox>(JsonBox{Json::parse(text)});
  } catch (const Json::parse_error& error) {
    return Error{
        fmt::format("{}: byte {}: expected JSON, found a syntax error", where, error.byte)};
  }
}

JsonFields::JsonFields(const JsonBox& box, std::string path, std::string* error)
    : JsonFields(static_cast<const void*>(&box.value), std::move(path), error) {}

JsonFields::JsonFields(const void* value, std::string path, std::string* error)
    : value_(value), path_(std::move(path)), error_(error) {
  if (!json(value_).is_object() && ok())
    *error_ = fmt::format("{}: expected an object, found {}", path_, shortened(json(value_)));
}

void JsonFields::fail(std::string_view field, std::string_view expected, std::string_view found) {
  if (ok()) *error_ = fmt::format("{}.{}: expected {}, found {}", path_, field, expected, found);
}

const void* JsonFields::take(const char* name, int type, const char* expected) {
  if (!ok()) return nullptr;
  seen_.insert(name);
  auto found = json(value_).find(name);
  if (found == json(value_).end()) {
    fail(name, expected, "nothing");
    return nullptr;
  }
  const bool integer = type == kInteger && found->is_number_integer();
  if (!integer && static_cast<int>(found->type()) != type) {
    fail(name, expected, shortened(*found));
    return nullptr;
  }
  return &*found;
}

void JsonFields::read(const char* name, std::string* out) {
  if (const void* field = take(name, kString, "a string")) *out = json(field).get<std::string>();
}

void JsonFields::read(const char* name, bool* out) {
  if (const void* field = take(name, kBool, "true or false")) *out = json(field).get<bool>();
}

void JsonFields::read(const char* name, int64_t* out) {
  if (const void* field = take(name, kInteger, "an integer")) *out = json(field).get<int64_t>();
}

void JsonFields::read(const char* name, int* out) {
  int64_t wide = 0;
  read(name, &wide);
  if (!ok()) return;
  if (wide < std::numeric_limits<int>::min() || wide > std::numeric_limits<int>::max())
    return fail(name, "a 32-bit integer", std::to_string(wide));
  *out = static_cast<int>(wide);
}

void JsonFields::read(const char* name, std::vector<std::string>* out) {
  const void* list = take(name, kArray, "an array");
  if (!list) return;
  for (const Json& item : json(list)) {
    if (!item.is_string()) return fail(name, "an array of strings", shortened(item));
    out->push_back(item.get<std::string>());
  }
}

std::vector<JsonFields> JsonFields::objects(const char* name) {
  std::vector<JsonFields> found;
  if (const void* list = take(name, kArray, "an array"))
    for (size_t i = 0; i < json(list).size(); i++)
      found.push_back(JsonFields(static_cast<const void*>(&json(list)[i]),
                                 fmt::format("{}.{}[{}]", path_, name, i), error_));
  return found;
}

std::vector<JsonFields> JsonFields::object(const char* name) {
  std::vector<JsonFields> found;
  if (const void* one = take(name, kObject, "an object"))
    found.push_back(JsonFields(one, fmt::format("{}.{}", path_, name), error_));
  return found;
}

void JsonFields::finish() {
  if (!ok()) return;
  for (auto item = json(value_).begin(); item != json(value_).end(); ++item)
    if (!seen_.contains(item.key())) return fail(item.key(), "no such field", shortened(*item));
}

}  // namespace opfuse::rewrite
