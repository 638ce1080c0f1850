#pragma once
// Strict reading of a JSON object: every field named once, of the right kind, and no other. The
// first problem is kept, with its path: "facts.reads[0].count: expected an integer, found \"two\"".
// Internal to rewrite/.

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "opfuse/base/result.h"

namespace opfuse::rewrite {

struct JsonBox;  // a parsed text; json itself is kept out of headers
Result<std::shared_ptr<const JsonBox>> parse_json(std::string_view text, std::string_view where);

class JsonFields {
 public:
  // The outermost object. `box` and `error`, which all objects of the text share, must outlive
  // this.
  JsonFields(const JsonBox& box, std::string path, std::string* error);

  void read(const char* name, std::string* out);
  void read(const char* name, bool* out);
  void read(const char* name, int* out);
  void read(const char* name, int64_t* out);
  void read(const char* name, std::vector<std::string>* out);

  // Calls read_one(JsonFields&, T*) for each object of the array `name`.
  template <class T, class ReadOne>
  void read_list(const char* name, std::vector<T>* out, ReadOne read_one) {
    for (JsonFields& fields : objects(name)) {
      read_one(fields, &out->emplace_back());
      fields.finish();
    }
  }
  // The same for one object.
  template <class ReadOne>
  void read_object(const char* name, ReadOne read_one) {
    for (JsonFields& fields : object(name)) {
      read_one(fields);
      fields.finish();
    }
  }

  void fail(std::string_view field, std::string_view expected, std::string_view found);
  // Refuses fields that nobody read.
  void finish();
  bool ok() const { return error_->empty(); }

 private:
  // Takes the field `name` when it is of the right kind; else keeps the problem.
  const void* take(const char* name, int type, const char* expected);
  std::vector<JsonFields> objects(const char* name);  // none when it is not an array
  std::vector<JsonFields> object(const char* name);   // one, or none when it is not an object

  JsonFields(const void* value, std::string path, std::string* error);

  const void* value_;  // nlohmann's value, inside the box
  std::string path_;
  std::string* error_;
  std::set<std::string> seen_;
};

}  // namespace opfuse::rewrite
