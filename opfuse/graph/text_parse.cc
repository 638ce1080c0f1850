#include <algorithm>
#include <charconv>
#include <map>
#include <unordered_map>

#include <fmt/format.h>

#include "opfuse/graph/effects.h"
#include "opfuse/graph/text.h"
#include "opfuse/graph/text_arguments.h"
#include "opfuse/graph/text_line.h"
#include "opfuse/graph/text_names.h"
#include "opfuse/graph/text_views.h"

namespace opfuse::graph {
namespace {

using text::Arguments;
using text::Definition;
using text::Line;
using text::RawArgument;
using text::Views;

class Parser {
 public:
  Parser(std::string_view text, const SchemaTable& schemas) : rest_(text), schemas_(schemas) {}

  Result<Graph> parse() {
    for (int number = 1; !rest_.empty(); ++number) {
      std::string_view content = rest_.substr(0, rest_.find('\n'));
      rest_.remove_prefix(std::min(content.size() + 1, rest_.size()));
      Line line(without_comment(content), number);
      if (line.at_end()) continue;
      OPFUSE_TRY_STATUS(statement(&line));
      if (!line.at_end()) return line.fail("the end of the line");
    }
    if (!open_.empty())
      return Error{
          fmt::format("end of text: expected '}}' for scope {}", graph_.scopes[open_.back()].name)};
    index_users(&graph_);
    return std::move(graph_);
  }

 private:
  // '#' starts a comment after a space, except before a digit (a sequence number).
  static std::string_view without_comment(std::string_view line) {
    bool quoted = false;
    for (size_t i = 0; i < line.size(); ++i) {
      if (line[i] == '"' && (i == 0 || line[i - 1] != '\\')) quoted = !quoted;
      if (line[i] != '#' || quoted) continue;
      if (i + 1 < line.size() && std::isdigit(static_cast<unsigned char>(line[i + 1]))) continue;
      return line.substr(0, i);
    }
    return line;
  }

  Status statement(Line* line) {
    if (line->eat("}")) {
      if (open_.empty()) return line->fail("a statement, as no scope is open");
      open_.pop_back();
      return ok_status();
    }
    if (line->eat("return")) return results(line);
    for (size_t kind = 0; kind < text::kScopeWords.size(); ++kind)
      if (line->eat(text::kScopeWords[kind])) return scope(line, static_cast<ScopeKind>(kind));
    return node_or_external(line);
  }

  Status results(Line* line) {
    do {
      OPFUSE_TRY(ValueId value, value_by_name(line));
      graph_.results.push_back(value);
    } while (line->eat(","));
    return ok_status();
  }

  Status scope(Line* line, ScopeKind kind) {
    Scope next;
    next.kind = kind;
    next.parent = current_scope();
    if (line->peek() == '"') {
      OPFUSE_TRY(next.name, line->quoted());
    } else {
      next.name = line->word();
    }
    if (next.name.empty()) return line->fail("the scope's name");
    if (line->eat("#")) {
      OPFUSE_TRY(next.sequence, line->integer());
    }
    bool again = line->eat("again");
    if (!line->eat("{")) return line->fail("'{'");
    int32_t id = static_cast<int32_t>(graph_.scopes.size());
    if (again) {
      do {
        if (--id < 0) return line->fail("an earlier scope of this name");
      } while (graph_.scopes[id].kind != kind || graph_.scopes[id].name != next.name ||
               graph_.scopes[id].sequence != next.sequence ||
               graph_.scopes[id].parent != next.parent);
    } else {
      graph_.scopes.push_back(std::move(next));
    }
    open_.push_back(id);
    return ok_status();
  }

  Status node_or_external(Line* line) {
    std::vector<Definition> definitions;
    if (line->peek() == '%' || line->peek() == '_') {
      do {
        OPFUSE_TRY(Definition next, definition(line));
        definitions.push_back(std::move(next));
      } while (line->eat(","));
      if (!line->eat("=")) {
        if (!line->at_end()) return line->fail("'=' or the end of the line");
        return externals(line, definitions);
      }
    }
    return node(line, definitions);
  }

  Status externals(Line* line, const std::vector<Definition>& definitions) {
    for (const Definition& d : definitions) {
      if (d.name.empty() || !d.is_new) return line->fail_at(d.pos, "expected a type");
      OPFUSE_TRY(int32_t storage, views_.storage_for(line, d, kNone));
      if (storage != kNone && d.alias.empty()) graph_.storages[storage].external = true;
      int32_t view = views_.add_view(d, storage);
      views_.value_of(view, kNone, 0);
    }
    return ok_status();
  }

  // "%2: f32[16,32] strides[1,16] requires_grad", "%2" or "_".
  Result<Definition> definition(Line* line) {
    Definition d;
    line->skip_spaces();
    d.pos = line->pos();
    if (line->eat("_")) {
      d.is_new = false;
      return d;
    }
    if (!line->eat("%")) return line->fail("'%' and a name");
    d.name = line->word();
    if (d.name.empty()) return line->fail("a name");
    if (!line->eat(":")) {
      d.is_new = false;
      if (!views_.contains(d.name)) return line->fail("':' and a type");
      return d;
    }
    if (views_.contains(d.name))
      return line->fail_at(d.pos, fmt::format("%{} is defined twice", d.name));
    OPFUSE_TRY_STATUS(type(line, &d.meta));
    while (line->peek() != '=' && line->peek() != ',' && !line->at_end())
      OPFUSE_TRY_STATUS(value_word(line, &d));
    return d;
  }

  Status type(Line* line, TensorMeta* meta) {
    meta->device = 0;
    if (!line->eat("?")) {
      size_t begin = line->pos();
      std::optional<DType> dtype = dtype_from_name(line->word());
      if (!dtype) {
        line->skip_spaces();
        return line->fail_at(begin, "expected a dtype such as f32, or ?");
      }
      meta->dtype = *dtype;
    }
    if (line->peek() != '[') return ok_status();
    meta->shape_known = true;
    OPFUSE_TRY(meta->shape, bracketed_integers(line));
    meta->strides = contiguous_strides(meta->shape);
    return ok_status();
  }

  Result<std::vector<int64_t>> bracketed_integers(Line* line) {
    std::vector<int64_t> values;
    if (!line->eat("[")) return line->fail("'['");
    while (!line->eat("]")) {
      OPFUSE_TRY(int64_t value, line->integer());
      values.push_back(value);
      if (!line->eat(",") && line->peek() != ']') return line->fail("',' or ']'");
    }
    return values;
  }

  template <class Word>
  Result<Word> bracketed(Line* line, Result<Word> (Line::*read)()) {
    if (!line->eat("[")) return line->fail("'['");
    OPFUSE_TRY(Word value, (line->*read)());
    if (!line->eat("]")) return line->fail("']'");
    return value;
  }

  Status value_word(Line* line, Definition* d) {
    if (line->peek() == '"') {
      OPFUSE_TRY(d->label, line->quoted());
      return ok_status();
    }
    size_t begin = line->pos();
    std::string_view word = line->word();
    if (word == "strides") return strides(line, &d->meta);
    if (word == "offset") {
      OPFUSE_TRY(d->meta.offset, bracketed(line, &Line::integer));
    } else if (word == "device") {
      d->meta.device = -1;
      if (!line->eat("[?]")) {
        OPFUSE_TRY(int64_t device, bracketed(line, &Line::integer));
        d->meta.device = static_cast<int8_t>(device);
      }
    } else if (word == "number") {
      OPFUSE_TRY(Attr number, bracketed(line, &Line::number));
      const auto* real = std::get_if<double>(&number);
      d->meta.number = real ? *real : static_cast<double>(std::get<int64_t>(number));
    } else if (word == "alias") {
      if (!line->eat("[%")) return line->fail("'[%'");
      d->alias = line->word();
      if (!line->eat("]")) return line->fail("']'");
    } else if (word == "escapes") {
      OPFUSE_TRY(d->escapes, flag_list(line, text::kEscapes, '[', ']'));
    } else if (word == "cuda") {
      d->meta.device = 1;
    } else if (word == "fresh") {
      d->fresh = true;
    } else if (word == "no_storage") {
      d->no_storage = true;
    } else if (word == "opaque_writes") {
      d->opaque_writes = true;
    } else if (auto bit = flag_of(word, text::kTensorFlags)) {
      d->meta.flags |= *bit;
    } else {
      return line->fail_at(
          begin, fmt::format("expected '=' or a property of the value, found '{}'",
                             word.empty() ? std::string(1, line->peek()) : std::string(word)));
    }
    return ok_status();
  }

  Status strides(Line* line, TensorMeta* meta) {
    meta->strides.clear();
    if (line->eat("[?]")) return ok_status();
    OPFUSE_TRY(meta->strides, bracketed_integers(line));
    return ok_status();
  }

  template <size_t N>
  static std::optional<uint16_t> flag_of(std::string_view word,
                                         const std::array<text::FlagName, N>& table) {
    auto it = std::ranges::find(table, word, &text::FlagName::name);
    if (it == table.end()) return std::nullopt;
    return it->bit;
  }

  template <size_t N>
  Result<uint16_t> flag_list(Line* line, const std::array<text::FlagName, N>& table, char open,
                             char close) {
    uint16_t flags = 0;
    if (!line->eat({&open, 1})) return line->fail(fmt::format("'{}'", open));
    while (!line->eat({&close, 1})) {
      size_t begin = line->pos();
      std::optional<uint16_t> bit = flag_of(line->word(), table);
      if (!bit) return line->fail_at(begin, "expected the name of a flag");
      flags |= *bit;
      if (!line->eat(",") && line->peek() != close)
        return line->fail(fmt::format("',' or '{}'", close));
    }
    return flags;
  }

  Status node(Line* line, const std::vector<Definition>& definitions) {
    Node node;
    size_t op_pos = line->pos();
    node.op = line->word();
    if (node.op.find('.') == std::string::npos)
      return line->fail_at(op_pos, "expected an operator such as aten.sigmoid");
    node.schema = schemas_.find(node.op);
    node.opaque = node.schema == nullptr;
    node.random = node.schema && node.schema->random;
    node.scope = current_scope();
    node.region.flags = default_flags(graph_, node.scope);
    OPFUSE_TRY(std::vector<RawArgument> arguments, arguments_.call(line));
    OPFUSE_TRY_STATUS(node.schema ? arguments_.bind(line, arguments, &node)
                                  : arguments_.bind_freely(arguments, &node));
    OPFUSE_TRY_STATUS(suffix(line, &node));
    return add_node(line, std::move(node), definitions);
  }

  // "#12 {grad,autocast} thread[1] random opaque @ file:67:21-37 (f) < file:80  1.35ms", each
  // optional.
  Status suffix(Line* line, Node* node) {
    while (!line->at_end()) {
      if (line->eat("#")) {
        OPFUSE_TRY(node->forward_sequence, line->integer());
      } else if (line->peek() == '{') {
        OPFUSE_TRY(node->region.flags, flag_list(line, text::kRegionFlags, '{', '}'));
      } else if (line->eat("thread")) {
        OPFUSE_TRY(int64_t thread, bracketed(line, &Line::integer));
        node->thread = static_cast<int32_t>(thread);
      } else if (line->eat("random")) {
        node->random = true;
      } else if (line->eat("opaque")) {
        node->opaque = true;
      } else if (line->eat("@") || line->eat("<")) {
        OPFUSE_TRY(int32_t position, source_position(line));
        node->positions.push_back(position);
      } else {
        return duration(line, node);
      }
    }
    return ok_status();
  }

  Status duration(Line* line, Node* node) {
    if (!std::isdigit(static_cast<unsigned char>(line->peek())))
      return line->fail("a position, a duration or the end of the line");
    std::string_view word = line->word();
    size_t digits = word.find_first_not_of("0123456789.");
    std::string_view unit_name = word.substr(std::min(digits, word.size()));
    auto unit = std::ranges::find(text::kTimeUnits, unit_name, &text::TimeUnit::name);
    if (unit == text::kTimeUnits.end()) return line->fail("a duration such as 1.35ms");
    std::string_view number = word.substr(0, digits);
    std::string_view whole = number.substr(0, number.find('.'));
    int64_t ns = 0;
    std::from_chars(whole.data(), whole.data() + whole.size(), ns);
    ns *= unit->ns;
    int64_t step = unit->ns;
    for (char digit : number.substr(std::min(whole.size() + 1, number.size())))
      ns += (digit - '0') * (step /= 10);
    node->dur_ns = ns;
    return ok_status();
  }

  Result<int32_t> source_position(Line* line) {
    Position position;
    line->skip_spaces();
    if (line->peek() == '"') {
      OPFUSE_TRY(position.file, line->quoted());
    } else {
      position.file = line->until(": ");
    }
    if (position.file.empty() || !line->eat(":")) return line->fail("file:line");
    OPFUSE_TRY(int64_t first, line->integer());
    position.line = static_cast<int32_t>(first);
    if (line->eat(":")) OPFUSE_TRY_STATUS(columns(line, &position));
    if (line->eat("(")) {
      position.function = line->until(")");
      if (!line->eat(")")) return line->fail("')'");
    }
    for (size_t i = 0; i < graph_.positions.size(); ++i)
      if (same(graph_.positions[i], position)) return static_cast<int32_t>(i);
    graph_.positions.push_back(std::move(position));
    return static_cast<int32_t>(graph_.positions.size() - 1);
  }

  static Status columns(Line* line, Position* position) {
    OPFUSE_TRY(int64_t column, line->integer());
    if (!line->eat("-")) return line->fail("'-' and the end column");
    OPFUSE_TRY(int64_t end, line->integer());
    position->column = static_cast<int32_t>(column);
    position->end_line = position->line;
    if (line->eat(":")) {
      position->end_line = static_cast<int32_t>(end);
      OPFUSE_TRY(end, line->integer());
    }
    position->end_column = static_cast<int32_t>(end);
    return ok_status();
  }

  static bool same(const Position& a, const Position& b) {
    return a.file == b.file && a.function == b.function && a.line == b.line &&
           a.column == b.column && a.end_line == b.end_line && a.end_column == b.end_column;
  }

  Status add_node(Line* line, Node node, const std::vector<Definition>& definitions) {
    NodeId id = static_cast<NodeId>(graph_.nodes.size());
    std::vector<int32_t> written_views;
    collect_writes(&node, &written_views);
    for (int32_t view : written_views) {
      views_.write(view, id);
    }
    for (size_t i = 0; i < definitions.size(); ++i) {
      OPFUSE_TRY(ValueId output, result(line, definitions[i], node, id, static_cast<int>(i)));
      node.outputs.push_back(output);
    }
    for (int32_t view : written_views) node.written.push_back(views_.value_of(view, id, -1));
    graph_.nodes.push_back(std::move(node));
    return ok_status();
  }

  void collect_writes(Node* node, std::vector<int32_t>* views) {
    if (!node->schema) return;
    for (size_t i = 0; i < node->inputs.size(); ++i) {
      if (!node->schema->arguments[i].is_write) continue;
      for (ValueId value : node->inputs[i].values) {
        if (value == kNone || graph_.values[value].storage == kNone) continue;
        node->writes.push_back(value);
        views->push_back(views_.of_value(value));
      }
    }
  }

  Result<ValueId> result(Line* line, const Definition& d, const Node& node, NodeId id, int output) {
    if (d.name.empty()) return kNone;
    if (!d.is_new) {
      int32_t view = views_.find(d.name);
      return views_.value_of(view, id, output);
    }
    Alias alias = schema_alias(node, output);
    if (alias.input != kNone && !views_.has_view(alias.input)) alias = {};
    if (alias.input != kNone && alias.written && !d.fresh && d.alias.empty()) {
      return views_.rename(views_.of_value(alias.input), d, id, output);
    }
    int32_t shared = alias.input == kNone ? kNone : graph_.values[alias.input].storage;
    OPFUSE_TRY(int32_t storage, views_.storage_for(line, d, shared));
    return views_.value_of(views_.add_view(d, storage), id, output);
  }

  Result<ValueId> value_by_name(Line* line) {
    if (!line->eat("%")) return line->fail("'%' and a name");
    size_t begin = line->pos();
    std::string name(line->word());
    if (!views_.contains(name))
      return line->fail_at(begin - 1, fmt::format("%{} is not defined", name));
    return views_.current_value(views_.find(name));
  }

  int32_t current_scope() const { return open_.empty() ? kNone : open_.back(); }

  std::string_view rest_;
  const SchemaTable& schemas_;
  Graph graph_;
  Views views_{&graph_};
  Arguments arguments_{&graph_, &views_};
  std::vector<int32_t> open_;
};

}  // namespace

Result<Graph> parse_graph(std::string_view text, const SchemaTable& schemas) {
  return Parser(text, schemas).parse();
}

}  // namespace opfuse::graph
