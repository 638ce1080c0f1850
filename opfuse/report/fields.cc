#include "opfuse/report/fields.h"

#include <cmath>
#include <limits>

namespace opfuse::report {

Fields::Fields(const Json& json, std::string path, std::vector<std::string>* problems)
    : json_(&json), path_(std::move(path)), problems_(problems) {}

const Json* Fields::find(const char* key) const {
  if (!json_->is_object()) return nullptr;
  const auto found = json_->find(key);
  return found == json_->end() || found->is_null() ? nullptr : &*found;
}

bool Fields::has(const char* key) const { return find(key) != nullptr; }

std::string Fields::text() const {
  return json_->dump(2, ' ', false, Json::error_handler_t::replace);
}

std::string Fields::path_of(const char* key) const {
  return path_.empty() ? key : path_ + "." + key;
}

void Fields::expected(const char* key, const char* what) const {
  const Json* value = find(key);
  const char* found = value == nullptr      ? "none"
                      : value->is_string()  ? "a string"
                      : value->is_number()  ? "another number"
                      : value->is_boolean() ? "true or false"
                      : value->is_array()   ? "an array"
                                            : "an object";
  problems_->push_back(path_of(key) + ": expected " + what + ", found " + found);
}

void Fields::read(const char* key, std::string* out) const {
  const Json* value = find(key);
  if (value == nullptr) return;
  if (value->is_string()) {
    *out = value->get<std::string>();
  } else {
    expected(key, "a string");
  }
}

void Fields::read(const char* key, double* out) const {
  const Json* value = find(key);
  if (value == nullptr) return;
  if (value->is_number()) {
    *out = value->get<double>();
  } else {
    expected(key, "a number");
  }
}

template <class T>
void Fields::read_integer(const char* key, T* out) const {
  const Json* value = find(key);
  if (value == nullptr) return;
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  // 2^62 and the like are exact doubles, so that the comparison is too.
  const double limit = std::ldexp(1.0, std::numeric_limits<T>::digits - 1);
  if (std::floor(number) == number && std::fabs(number) < limit) {
    *out = value->is_number_integer() ? value->get<T>() : static_cast<T>(number);
  } else {
    expected(key, "a whole number");
  }
}

void Fields::read(const char* key, int* out) const { read_integer(key, out); }
void Fields::read(const char* key, int64_t* out) const { read_integer(key, out); }

void Fields::read(const char* key, bool* out) const {
  const Json* value = find(key);
  if (value == nullptr) return;
  if (value->is_boolean()) {
    *out = value->get<bool>();
  } else {
    expected(key, "true or false");
  }
}

void Fields::read(const char* key, std::optional<bool>* out) const {
  if (!has(key)) return;
  bool value = false;
  const size_t before = problems_->size();
  read(key, &value);
  if (problems_->size() == before) *out = value;
}

void Fields::read(const char* key, std::optional<int>* out) const {
  if (!has(key)) return;
  int value = 0;
  const size_t before = problems_->size();
  read(key, &value);
  if (problems_->size() == before) *out = value;
}

void Fields::read(const char* key, std::vector<std::string>* out) const {
  const Json* value = find(key);
  if (value == nullptr) return;
  if (!value->is_array()) return expected(key, "an array of strings");
  out->clear();
  for (const Json& element : *value) {
    if (element.is_string()) {
      out->push_back(element.get<std::string>());
    } else {
      return expected(key, "strings only");
    }
  }
}

void Fields::read(const char* key, std::vector<int>* out) const {
  const Json* value = find(key);
  if (value == nullptr) return;
  if (!value->is_array()) return expected(key, "an array of numbers");
  out->clear();
  for (const Json& element : *value) {
    if (!element.is_number_integer()) return expected(key, "whole numbers only");
    out->push_back(element.get<int>());
  }
}

std::optional<Fields> Fields::object(const char* key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) {
    expected(key, "an object");
    return std::nullopt;
  }
  return Fields(*value, path_of(key), problems_);
}

std::vector<Fields> Fields::objects(const char* key) const {
  std::vector<Fields> list;
  const Json* value = find(key);
  if (value == nullptr) return list;
  if (!value->is_array()) {
    expected(key, "an array of objects");
    return list;
  }
  for (size_t i = 0; i < value->size(); ++i) {
    const std::string path = path_of(key) + "[" + std::to_string(i) + "]";
    if ((*value)[i].is_object()) {
      list.emplace_back((*value)[i], path, problems_);
    } else {
      problems_->push_back(path + ": expected an object");
    }
  }
  return list;
}

std::vector<std::pair<std::string, Json>> Fields::entries(const char* key) const {
  std::vector<std::pair<std::string, Json>> list;
  const Json* value = find(key);
  if (value == nullptr) return list;
  if (!value->is_object()) {
    expected(key, "an object");
    return list;
  }
  for (const auto& [name, element] : value->items()) list.emplace_back(name, element);
  return list;
}

Result<Json> parse_json(std::string_view text, const std::string& name) {
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    size_t line = 1, column = 1;
    const size_t end = std::min<size_t>(error.byte == 0 ? 0 : error.byte - 1, text.size());
    for (size_t i = 0; i < end; ++i) {
      column = text[i] == '\n' ? 1 : column + 1;
      line += text[i] == '\n';
    }
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error …"
    const std::string what = error.what();
    const size_t colon = what.find(": ");
    return Error{name + ":" + std::to_string(line) + ":" + std::to_string(column) +
                 ": expected JSON, found " +
                 (text.empty()                 ? "an empty file"
                  : colon == std::string::npos ? what
                                               : what.substr(colon + 2))};
  } catch (const Json::exception& error) {  // invalid UTF-8, a number out of range
    return Error{name + ": expected JSON, found " + error.what()};
  }
}

}  // namespace opfuse::report
