#include "opfuse/rewrite/facts.h"

#include <fmt/format.h>

#include "opfuse/rewrite/json_fields.h"

namespace opfuse::rewrite {
namespace {

// An offset into UTF-8 text must not split a character.
bool is_boundary(const std::string& text, int64_t offset) {
  if (offset < 0 || offset > static_cast<int64_t>(text.size())) return false;
  if (offset == static_cast<int64_t>(text.size())) return true;
  return (static_cast<unsigned char>(text[offset]) & 0xC0) != 0x80;
}

// `absent_ok`: {-1, -1} says that there is none.
void read_span(JsonFields& fields, const char* name, const std::string& text, bool absent_ok,
               Span* out) {
  fields.read_object(name, [&](JsonFields& span) {
    span.read("begin", &out->begin);
    span.read("end", &out->end);
    if (!span.ok() || (absent_ok && out->begin == -1 && out->end == -1)) return;
    if (out->begin > out->end || !is_boundary(text, out->begin) || !is_boundary(text, out->end))
      span.fail("begin",
                fmt::format("a span inside the file's {} bytes, at whole characters", text.size()),
                fmt::format("{}-{}", out->begin, out->end));
  });
}

void read_read(JsonFields& fields, ReadFact* out) {
  fields.read("text", &out->text);
  fields.read("kind", &out->kind);
  fields.read("resolves_to", &out->resolves_to);
  fields.read("count", &out->count);
  fields.read("rebound_inside", &out->rebound_inside);
}

void read_place(JsonFields& fields, SiteFacts* facts) {
  fields.read("site", &facts->site);
  fields.read("file", &facts->file);
  fields.read("text", &facts->text);
  fields.read("sha256", &facts->sha256);
  fields.read("module", &facts->module);
  fields.read("qualname", &facts->qualname);
  fields.read("line", &facts->line);
  fields.read("span_kind", &facts->span_kind);
  fields.read("span_problem", &facts->span_problem);
  const std::string& kind = facts->span_kind;
  if (!kind.empty() && kind != "function_apply" && kind != "expression" && kind != "statements")
    fields.fail("span_kind", "\"function_apply\", \"expression\", \"statements\" or \"\"",
                '"' + kind + '"');
  read_span(fields, "span", facts->text, kind.empty(), &facts->span);
  read_span(fields, "first_statement", facts->text, kind != "statements", &facts->first_statement);
  fields.read("import_offset", &facts->import_offset);
  if (fields.ok() && facts->import_offset != -1 && !is_boundary(facts->text, facts->import_offset))
    fields.fail("import_offset", "an offset into the text", std::to_string(facts->import_offset));
}

void read_operations(JsonFields& fields, SiteFacts* facts) {
  fields.read_list("reads", &facts->reads, read_read);
  fields.read_list("operations", &facts->operations, [&](JsonFields& one, OperationFact* out) {
    read_span(one, "span", facts->text, false, &out->span);
    one.read("callee", &out->callee);
    one.read("arguments", &out->arguments);
  });
  fields.read("argument_sources", &facts->argument_sources);
}

void read_code(JsonFields& fields, SiteFacts* facts) {
  fields.read("installed_package", &facts->installed_package);
  fields.read("installed_version", &facts->installed_version);
  fields.read("source_matches", &facts->source_matches);
  fields.read("source_problem", &facts->source_problem);
  fields.read("has_positions", &facts->has_positions);
  fields.read("functions_found", &facts->functions_found);
  fields.read("is_generator", &facts->is_generator);
  fields.read("is_coroutine", &facts->is_coroutine);
  fields.read("is_module_level", &facts->is_module_level);
  fields.read("is_nested", &facts->is_nested);
  fields.read("running_now", &facts->running_now);
  fields.read("scripted_or_compiled", &facts->scripted_or_compiled);
  fields.read("opted_out", &facts->opted_out);
  fields.read("uses_frame_magic", &facts->uses_frame_magic);
  fields.read("kept_names", &facts->kept_names);
  fields.read("hook_notes", &facts->hook_notes);
  fields.read("module_aliases", &facts->module_aliases);
  fields.read("module_globals", &facts->module_globals);
}

void read_function(JsonFields& fields, SiteFacts* facts) {
  fields.read("function_class", &facts->function_class);
  fields.read("function_straight_line", &facts->function_straight_line);
  fields.read("function_problem", &facts->function_problem);
  fields.read("function_has_jvp", &facts->function_has_jvp);
  fields.read("function_has_vmap", &facts->function_has_vmap);
  fields.read("function_once_differentiable", &facts->function_once_differentiable);
  fields.read("function_subclassed", &facts->function_subclassed);
}

}  // namespace

Result<SiteFacts> parse_facts(std::string_view json) {
  OPFUSE_TRY(const auto value, parse_json(json, "facts"));
  SiteFacts facts;
  std::string error;
  JsonFields fields(*value, "facts", &error);
  read_place(fields, &facts);
  read_operations(fields, &facts);
  read_code(fields, &facts);
  read_function(fields, &facts);
  fields.finish();
  if (!error.empty()) return Error{error};
  return facts;
}

}  // namespace opfuse::rewrite
