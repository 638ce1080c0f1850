#pragma once
// Typed reading of a JSON object. A missing field keeps the default; a field of the wrong type
// keeps it too and is named: "sites[2].calls: expected a number, found a string". Internal to
// report/.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "opfuse/base/result.h"

namespace opfuse::report {

using Json = nlohmann::ordered_json;

class Fields {
 public:
  Fields(const Json& json, std::string path, std::vector<std::string>* problems);

  void read(const char* key, std::string* out) const;
  void read(const char* key, double* out) const;
  void read(const char* key, int* out) const;
  void read(const char* key, int64_t* out) const;
  void read(const char* key, bool* out) const;
  void read(const char* key, std::optional<bool>* out) const;  // null: none
  void read(const char* key, std::optional<int>* out) const;
  void read(const char* key, std::vector<std::string>* out) const;
  void read(const char* key, std::vector<int>* out) const;

  bool has(const char* key) const;  // there and not null
  std::optional<Fields> object(const char* key) const;
  std::vector<Fields> objects(const char* key) const;  // of an array; others are named
  std::vector<std::pair<std::string, Json>> entries(const char* key) const;  // of an object
  std::string text() const;                                // the object as JSON, indented
  void expected(const char* key, const char* what) const;  // names a problem

 private:
  const Json* find(const char* key) const;
  std::string path_of(const char* key) const;
  template <class T>
  void read_integer(const char* key, T* out) const;

  const Json* json_;
  std::string path_;
  std::vector<std::string>* problems_;
};

// Parses text; the error says "name:line:column: …".
Result<Json> parse_json(std::string_view text, const std::string& name);

}  // namespace opfuse::report
