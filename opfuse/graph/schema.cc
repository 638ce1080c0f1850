#include "opfuse/graph/schema.h"

#include <algorithm>
#include <charconv>
#include <deque>
#include <map>
#include <mutex>
#include <unordered_map>

#include <fmt/format.h>

#include "opfuse/base/check.h"
#include "opfuse/base/embedded.h"

namespace opfuse::graph {
namespace {

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// Reads one line; every function leaves the position at what it could not use.
class SchemaParser {
 public:
  explicit SchemaParser(std::string_view text) : text_(text) {}

  Result<Schema> parse() {
    Schema schema;
    while (pos_ < text_.size() && text_[pos_] != '(') ++pos_;
    schema.name = dotted_name(text_.substr(0, pos_));
    if (schema.name.find('.') == std::string::npos) return fail("a name such as aten::mul.Tensor");
    OPFUSE_TRY(schema.arguments, list(true));
    if (!eat("->")) return fail("'->'");
    if (peek('(')) {
      OPFUSE_TRY(schema.returns, list(false));
    } else {
      OPFUSE_TRY(SchemaArgument result, argument(false));
      schema.returns.push_back(std::move(result));
    }
    OPFUSE_TRY_STATUS(flags(&schema));
    return schema;
  }

 private:
  Error fail(std::string_view expected) const {
    std::string found = pos_ < text_.size() ? fmt::format("'{}'", text_.substr(pos_, 12))
                                            : std::string("the end of the line");
    return Error{fmt::format("schema '{}', column {}: expected {}, found {}", text_.substr(0, 40),
                             pos_ + 1, expected, found)};
  }

  void skip_spaces() {
    while (pos_ < text_.size() && text_[pos_] == ' ') ++pos_;
  }
  bool peek(char c) {
    skip_spaces();
    return pos_ < text_.size() && text_[pos_] == c;
  }
  bool eat(std::string_view token) {
    skip_spaces();
    if (text_.substr(pos_, token.size()) != token) return false;
    pos_ += token.size();
    return true;
  }
  std::string_view word() {
    skip_spaces();
    size_t begin = pos_;
    while (pos_ < text_.size() && (is_word(text_[pos_]) || text_[pos_] == '.')) ++pos_;
    return text_.substr(begin, pos_ - begin);
  }

  Result<std::vector<SchemaArgument>> list(bool with_names) {
    std::vector<SchemaArgument> result;
    bool keyword_only = false;
    if (!eat("(")) return fail("'('");
    if (eat(")")) return result;
    do {
      if (eat("*")) {
        keyword_only = true;
        continue;
      }
      OPFUSE_TRY(SchemaArgument next, argument(with_names));
      next.keyword_only = keyword_only;
      result.push_back(std::move(next));
    } while (eat(","));
    if (!eat(")")) return fail("',' or ')'");
    return result;
  }

  Result<SchemaArgument> argument(bool with_names) {
    SchemaArgument result;
    OPFUSE_TRY_STATUS(type(&result));
    result.name = word();
    if (with_names && result.name.empty()) return fail("the argument's name");
    if (eat("=")) {
      result.has_default = true;
      OPFUSE_TRY(result.default_value, default_value(result));
    }
    return result;
  }

  Status type(SchemaArgument* argument) {
    if (peek('(')) {  // a tuple
      OPFUSE_TRY(std::string tuple, bracketed());
      argument->type = tuple;
    } else {
      argument->type = word();
      if (argument->type.empty()) return fail("a type");
      if (argument->type == "SymInt") argument->type = "int";
    }
    static constexpr std::string_view kGeneric[] = {"Dict", "Future", "RRef", "Await", "Union"};
    if (std::ranges::find(kGeneric, argument->type) != std::end(kGeneric) &&
        (peek('(') || peek('['))) {
      OPFUSE_TRY(std::string inner, bracketed());
      argument->type += inner;
    }
    return suffixes(argument);
  }

  // Optional, list and alias annotations: "?", "[]", "[2]", "(a!)", "(a -> *)", "(a|b)".
  Status suffixes(SchemaArgument* argument) {
    while (pos_ < text_.size()) {
      if (text_[pos_] == '?') {
        ++pos_;
        argument->type += '?';
      } else if (text_[pos_] == '[') {
        OPFUSE_TRY(std::string size, bracketed());
        std::from_chars(size.data() + 1, size.data() + size.size(), argument->list_size);
        argument->type += "[]";
      } else if (text_[pos_] == '(') {
        OPFUSE_TRY(std::string alias, bracketed());
        argument->is_write = argument->is_write || alias.find('!') != std::string::npos;
        size_t end = alias.find_first_of("!| )", 1);
        if (argument->alias_set.empty()) argument->alias_set = alias.substr(1, end - 1);
      } else {
        break;
      }
    }
    return ok_status();
  }

  Result<std::string> bracketed() {
    size_t begin = pos_;
    int depth = 0;
    for (; pos_ < text_.size(); ++pos_) {
      char c = text_[pos_];
      if (c == '(' || c == '[') ++depth;
      if ((c == ')' || c == ']') && --depth == 0)
        return std::string(text_.substr(begin, ++pos_ - begin));
    }
    return fail("a closing bracket");
  }

  Result<Attr> default_value(const SchemaArgument& argument) {
    skip_spaces();
    if (peek('[')) return list_value(argument);
    OPFUSE_TRY(Attr value, scalar(argument.type));
    bool is_list = argument.type.ends_with("[]");
    if (is_list && std::holds_alternative<int64_t>(value))  // int[2] stride=1
      return Attr{std::vector<int64_t>(std::max(argument.list_size, 1), std::get<int64_t>(value))};
    return value;
  }

  Result<Attr> list_value(const SchemaArgument& argument) {
    std::string element = argument.type.substr(0, argument.type.find('['));
    std::vector<int64_t> ints;
    std::vector<double> doubles;
    std::vector<bool> bools;
    eat("[");
    while (!eat("]")) {
      OPFUSE_TRY(Attr value, scalar(element));
      if (auto* i = std::get_if<int64_t>(&value)) ints.push_back(*i);
      if (auto* d = std::get_if<double>(&value)) doubles.push_back(*d);
      if (auto* b = std::get_if<bool>(&value)) bools.push_back(*b);
      if (!eat(",") && !peek(']')) return fail("',' or ']'");
    }
    if (!doubles.empty() || element == "float") return Attr{doubles};
    if (!bools.empty() || element == "bool") return Attr{bools};
    return Attr{ints};
  }

  Result<Attr> scalar(std::string_view type) {
    if (peek('"') || peek('\'')) return string_value();
    if (eat("None")) return Attr{NoneAttr{}};
    if (eat("True")) return Attr{true};
    if (eat("False")) return Attr{false};
    size_t begin = pos_;
    while (pos_ < text_.size() &&
           (is_word(text_[pos_]) || text_[pos_] == '.' || text_[pos_] == '-' || text_[pos_] == '+'))
      ++pos_;
    std::string_view token = text_.substr(begin, pos_ - begin);
    int64_t integer = 0;
    auto whole = std::from_chars(token.data(), token.data() + token.size(), integer);
    bool is_integer = whole.ec == std::errc() && whole.ptr == token.data() + token.size();
    if (is_integer && !type.starts_with("float")) {
      if (type.starts_with("bool")) return Attr{integer != 0};
      return Attr{integer};
    }
    double number = 0;
    auto real = std::from_chars(token.data(), token.data() + token.size(), number);
    if (token.empty() || real.ec != std::errc() || real.ptr != token.data() + token.size()) {
      pos_ = begin;
      return fail("a default value");
    }
    return Attr{number};
  }

  Result<Attr> string_value() {
    char quote = text_[pos_++];
    std::string value;
    while (pos_ < text_.size() && text_[pos_] != quote) {
      char c = text_[pos_++];
      if (c == '\\' && pos_ < text_.size()) {
        char escaped = text_[pos_++];
        constexpr std::string_view kNames = "ntfvr", kChars = "\n\t\f\v\r";
        size_t at = kNames.find(escaped);
        c = at == std::string_view::npos ? escaped : kChars[at];
      }
      value += c;
    }
    if (pos_ >= text_.size()) return fail("the end of the string");
    ++pos_;
    return Attr{value};
  }

  Status flags(Schema* schema) {
    while (pos_ < text_.size()) {
      if (text_[pos_] == ' ' || text_[pos_] == '\t') {
        ++pos_;
        continue;
      }
      size_t end = std::min(text_.find_first_of(" \t", pos_), text_.size());
      std::string_view flag = text_.substr(pos_, end - pos_);
      if (flag == "composite") {
        schema->composite_implicit = true;
      } else if (flag == "random") {
        schema->random = true;
      } else if (flag == "pointwise") {
        schema->pointwise = true;
      } else if (!flag.starts_with("writes=") || !mark_writes(flag.substr(7), schema)) {
        return fail("composite, random, pointwise or writes=<arguments>");
      }
      pos_ = end;
    }
    return ok_status();
  }

  static bool mark_writes(std::string_view names, Schema* schema) {
    schema->writes_undeclared = true;
    while (!names.empty()) {
      std::string_view name = names.substr(0, names.find(','));
      names.remove_prefix(std::min(name.size() + 1, names.size()));
      auto it = std::ranges::find(schema->arguments, name, &SchemaArgument::name);
      if (it == schema->arguments.end()) return false;
      it->is_write = true;
    }
    return true;
  }

  std::string_view text_;
  size_t pos_ = 0;
};

struct NameHash {
  using is_transparent = void;
  size_t operator()(std::string_view name) const { return std::hash<std::string_view>()(name); }
};

}  // namespace

bool Schema::is_view() const {
  return std::ranges::any_of(returns, [](const SchemaArgument& result) {
    return !result.alias_set.empty() && !result.is_write;
  });
}

bool Schema::is_mutable() const {
  return std::ranges::any_of(arguments, &SchemaArgument::is_write);
}

Result<Schema> parse_schema(std::string_view line) { return SchemaParser(line).parse(); }

std::string dotted_name(std::string_view torch_name) {
  std::string name(torch_name);
  if (size_t at = name.find("::"); at != std::string::npos) name.replace(at, 2, ".");
  return name;
}

// `lines` holds what has not been asked for yet; a parsed schema never moves.
struct SchemaTable::State {
  mutable std::mutex mutex;
  std::unordered_map<std::string, std::string_view, NameHash, std::equal_to<>> lines;
  std::unordered_map<std::string, Schema*, NameHash, std::equal_to<>> parsed;
  std::deque<Schema> schemas;
  std::map<std::string, std::vector<std::string>, std::less<>> overloads;  // names by base
  bool overloads_complete = false;
  bool is_builtin = false;

  void note_overload(const std::string& name) {
    const size_t ns = name.find('.'), dot = name.find('.', ns + 1);
    std::vector<std::string>& names = overloads[name.substr(0, dot)];
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }

  const Schema* insert(Schema schema) {
    schemas.push_back(std::move(schema));
    note_overload(schemas.back().name);
    parsed[schemas.back().name] = &schemas.back();
    return &schemas.back();
  }
};

SchemaTable::SchemaTable() : state_(std::make_unique<State>()) {}
SchemaTable::~SchemaTable() = default;
SchemaTable::SchemaTable(SchemaTable&&) noexcept = default;
SchemaTable& SchemaTable::operator=(SchemaTable&&) noexcept = default;

const SchemaTable& SchemaTable::builtin() {
  static const SchemaTable table = [] {
    SchemaTable result;
    result.state_->is_builtin = true;
    for (const EmbeddedFile& file : embedded_schemas()) {
      std::string_view rest = file.text;
      while (!rest.empty()) {
        std::string_view line = rest.substr(0, rest.find('\n'));
        rest.remove_prefix(std::min(line.size() + 1, rest.size()));
        if (line.empty() || line.front() == '#') continue;
        result.state_->lines.insert_or_assign(dotted_name(line.substr(0, line.find('('))), line);
      }
    }
    return result;
  }();
  return table;
}

const Schema* SchemaTable::find(std::string_view name) const {
  {
    std::lock_guard lock(state_->mutex);
    if (auto it = state_->parsed.find(name); it != state_->parsed.end()) return it->second;
    if (auto it = state_->lines.find(name); it != state_->lines.end()) {
      Result<Schema> schema = parse_schema(it->second);
      OPFUSE_CHECK(schema.ok(), schema.error().message);
      return state_->insert(std::move(*schema));
    }
  }
  return state_->is_builtin ? nullptr : builtin().find(name);
}

std::vector<const Schema*> SchemaTable::overloads(std::string_view base) const {
  std::vector<std::string> names;
  {
    std::lock_guard lock(state_->mutex);
    if (!state_->overloads_complete)
      for (const auto& [name, line] : state_->lines) state_->note_overload(name);
    state_->overloads_complete = true;
    if (auto it = state_->overloads.find(base); it != state_->overloads.end()) names = it->second;
  }
  std::ranges::sort(names);
  std::vector<const Schema*> found;
  for (const std::string& name : names) found.push_back(find(name));
  if (found.empty() && !state_->is_builtin) return builtin().overloads(base);
  return found;
}

const Schema* SchemaTable::add(Schema schema) {
  std::lock_guard lock(state_->mutex);
  return state_->insert(std::move(schema));
}

size_t SchemaTable::size() const {
  std::lock_guard lock(state_->mutex);
  size_t more = std::ranges::count_if(
      state_->parsed, [&](const auto& entry) { return !state_->lines.contains(entry.first); });
  return state_->lines.size() + more;
}

}  // namespace opfuse::graph
