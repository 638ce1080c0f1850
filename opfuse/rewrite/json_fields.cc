#include "opfuse/rewrite/json_fields.h"

#include <limits>

namespace opfuse::rewrite {
namespace {

std::string shortened(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 40) text = text.substr(0, 40) + "…";
  return text;
}

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view where) {
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    return Error{
        fmt::format("{}: byte {}: expected JSON, found a syntax error", where, error.byte)};
  }
}

JsonFields::JsonFields(const Json& value, std::string path, std::string* error)
    : value_(value), path_(std::move(path)), error_(error) {
  if (!value_.is_object() && ok())
    *error_ = fmt::format("{}: expected an object, found {}", path_, shortened(value_));
}

void JsonFields::fail(std::string_view field, std::string_view expected, std::string_view found) {
  if (ok()) *error_ = fmt::format("{}.{}: expected {}, found {}", path_, field, expected, found);
}

const Json* JsonFields::take(const char* name, Json::value_t type, const char* expected) {
  if (!ok()) return nullptr;
  seen_.insert(name);
  auto found = value_.find(name);
  if (found == value_.end()) {
    fail(name, expected, "nothing");
    return nullptr;
  }
  const bool integer = type == Json::value_t::number_integer && found->is_number_integer();
  if (!integer && found->type() != type) {
    fail(name, expected, shortened(*found));
    return nullptr;
  }
  return &*found;
}

void JsonFields::read(const char* name, std::string* out) {
  if (const Json* found = take(name, Json::value_t::string, "a string"))
    *out = found->get<std::string>();
}

void JsonFields::read(const char* name, bool* out) {
  if (const Json* found = take(name, Json::value_t::boolean, "true or false"))
    *out = found->get<bool>();
}

void JsonFields::read(const char* name, int64_t* out) {
  if (const Json* found = take(name, Json::value_t::number_integer, "an integer"))
    *out = found->get<int64_t>();
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
  const Json* list = take(name, Json::value_t::array, "an array");
  if (!list) return;
  for (const Json& item : *list) {
    if (!item.is_string()) return fail(name, "an array of strings", shortened(item));
    out->push_back(item.get<std::string>());
  }
}

void JsonFields::finish() {
  if (!ok()) return;
  for (auto item = value_.begin(); item != value_.end(); ++item)
    if (!seen_.contains(item.key())) return fail(item.key(), "no such field", shortened(*item));
}

}  // namespace opfuse::rewrite
