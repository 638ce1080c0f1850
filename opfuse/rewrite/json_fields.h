#pragma once
// Strict reading of a JSON object: every field named once, of the right kind, and no other. The
// first problem is kept, with its path: "facts.reads[0].count: expected an integer, found \"two\"".
// Internal to rewrite/; include from .cc files only.

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "opfuse/base/result.h"

namespace opfuse::rewrite {

using Json = nlohmann::ordered_json;

Result<Json> parse_json(std::string_view text, std::string_view where);

class JsonFields {
 public:
  // `error` is shared by all objects of one text; it must outlive this.
  JsonFields(const Json& value, std::string path, std::string* error);

  void read(const char* name, std::string* out);
  void read(const char* name, bool* out);
  void read(const char* name, int* out);
  void read(const char* name, int64_t* out);
  void read(const char* name, std::vector<std::string>* out);

  // Calls read_one(JsonFields&, T*) for each object of the array `name`.
  template <class T, class ReadOne>
  void read_list(const char* name, std::vector<T>* out, ReadOne read_one) {
    const Json* list = take(name, Json::value_t::array, "an array");
    if (!list) return;
    for (size_t i = 0; i < list->size(); i++) {
      JsonFields fields((*list)[i], fmt::format("{}.{}[{}]", path_, name, i), error_);
      read_one(fields, &out->emplace_back());
      fields.finish();
    }
  }
  // The same for one object.
  template <class ReadOne>
  void read_object(const char* name, ReadOne read_one) {
    const Json* object = take(name, Json::value_t::object, "an object");
    if (!object) return;
    JsonFields fields(*object, fmt::format("{}.{}", path_, name), error_);
    read_one(fields);
    fields.finish();
  }

  void fail(std::string_view field, std::string_view expected, std::string_view found);
  // Refuses fields that nobody read.
  void finish();
  bool ok() const { return error_->empty(); }

 private:
  const Json* take(const char* name, Json::value_t type, const char* expected);

  const Json& value_;
  std::string path_;
  std::string* error_;
  std::set<std::string> seen_;
};

}  // namespace opfuse::rewrite
