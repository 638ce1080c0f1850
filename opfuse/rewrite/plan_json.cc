// plan.json: {"version": 1, "hash": "…", "replacements": […], "refused": […]}.

#include <fmt/format.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include "opfuse/rewrite/json_fields.h"
#include "opfuse/rewrite/plan.h"

namespace opfuse::rewrite {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;

Json span_json(Span span) { return {{"begin", span.begin}, {"end", span.end}}; }

Json edit_json(const SourceEdit& edit) {
  return {{"file", edit.file},
          {"sha256", edit.sha256},
          {"span", span_json(edit.span)},
          {"old_text", edit.old_text},
          {"memory_text", edit.memory_text},
          {"source_text", edit.source_text}};
}

Json replacement_json(const Replacement& one) {
  Json edits = Json::array();
  for (const SourceEdit& edit : one.edits) edits.push_back(edit_json(edit));
  return {{"site", one.site},
          {"rule", one.rule},
          {"target", one.target},
          {"python_target", one.python_target},
          {"source_target", one.source_target},
          {"equivalence", std::string(match::equivalence_name(one.equivalence))},
          {"domain", one.domain},
          {"mechanism", one.mechanism},
          {"module", one.module},
          {"qualname", one.qualname},
          {"file", one.file},
          {"package", one.package},
          {"package_version", one.package_version},
          {"line", one.line},
          {"calls", one.calls},
          {"edits", std::move(edits)},
          {"imports", one.imports},
          {"global_name", one.global_name},
          {"verified", one.verified}};
}

void read_edit(JsonFields& fields, SourceEdit* out) {
  fields.read("file", &out->file);
  fields.read("sha256", &out->sha256);
  fields.read_object("span", [&](JsonFields& span) {
    span.read("begin", &out->span.begin);
    span.read("end", &out->span.end);
    if (span.ok() && (out->span.begin < 0 || out->span.end < out->span.begin))
      span.fail("begin", "0 <= begin <= end", fmt::format("{}-{}", out->span.begin, out->span.end));
  });
  fields.read("old_text", &out->old_text);
  fields.read("memory_text", &out->memory_text);
  fields.read("source_text", &out->source_text);
}

void read_equivalence(JsonFields& fields, match::Equivalence* out) {
  std::string name;
  fields.read("equivalence", &name);
  for (int i = 0; i <= static_cast<int>(match::Equivalence::kE4); i++)
    if (match::equivalence_name(static_cast<match::Equivalence>(i)) == name) {
      *out = static_cast<match::Equivalence>(i);
      return;
    }
  fields.fail("equivalence", "E0 to E4", '"' + name + '"');
}

void read_replacement(JsonFields& fields, Replacement* out) {
  fields.read("site", &out->site);
  fields.read("rule", &out->rule);
  fields.read("target", &out->target);
  fields.read("python_target", &out->python_target);
  fields.read("source_target", &out->source_target);
  read_equivalence(fields, &out->equivalence);
  fields.read("domain", &out->domain);
  fields.read("mechanism", &out->mechanism);
  if (fields.ok() && out->mechanism != "source")
    fields.fail("mechanism", "\"source\"", '"' + out->mechanism + '"');
  fields.read("module", &out->module);
  fields.read("qualname", &out->qualname);
  fields.read("file", &out->file);
  fields.read("package", &out->package);
  fields.read("package_version", &out->package_version);
  fields.read("line", &out->line);
  fields.read("calls", &out->calls);
  fields.read_list("edits", &out->edits, read_edit);
  fields.read("imports", &out->imports);
  fields.read("global_name", &out->global_name);
  fields.read("verified", &out->verified);
}

void read_refused(JsonFields& fields, RefusedSite* out) {
  fields.read("site", &out->site);
  fields.read("row", &out->refusal.row);
  fields.read("reason", &out->refusal.reason);
}

// FNV-1a over length-prefixed parts, so that no two lists of parts read the same.
class Hash {
 public:
  void add(std::string_view text) {
    add_bytes(fmt::format("{}:", text.size()));
    add_bytes(text);
  }
  std::string hex() const { return fmt::format("{:016x}", state_); }

 private:
  void add_bytes(std::string_view text) {
    for (const unsigned char c : text) state_ = (state_ ^ c) * 0x100000001b3u;
  }
  uint64_t state_ = 0xcbf29ce484222325u;
};

}  // namespace

std::string plan_to_json(const Plan& plan) {
  Json replacements = Json::array(), refused = Json::array();
  for (const Replacement& one : plan.replacements) replacements.push_back(replacement_json(one));
  for (const RefusedSite& one : plan.refused)
    refused.push_back(
        {{"site", one.site}, {"row", one.refusal.row}, {"reason", one.refusal.reason}});
  const Json json = {{"version", plan.version},
                     {"hash", plan_hash(plan)},
                     {"replacements", std::move(replacements)},
                     {"refused", std::move(refused)}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<Plan> plan_from_json(std::string_view json) {
  OPFUSE_TRY(const auto value, parse_json(json, "plan"));
  Plan plan;
  std::string error, hash;
  JsonFields fields(*value, "plan", &error);
  fields.read("version", &plan.version);
  if (fields.ok() && plan.version != kVersion)
    fields.fail("version", std::to_string(kVersion), std::to_string(plan.version));
  fields.read("hash", &hash);
  fields.read_list("replacements", &plan.replacements, read_replacement);
  fields.read_list("refused", &plan.refused, read_refused);
  if (fields.ok() && hash != plan_hash(plan))
    fields.fail("hash", plan_hash(plan) + " (the hash of its content)", hash);
  fields.finish();
  if (!error.empty()) return Error{error};
  return plan;
}

std::string plan_hash(const Plan& plan) {
  // Directories may differ between ranks and machines; module and content of the file may not.
  std::vector<std::string> parts;
  for (const Replacement& one : plan.replacements)
    for (const SourceEdit& edit : one.edits) {
      Hash hash;
      for (const std::string* text :
           {&one.rule, &one.target, &one.python_target, &one.mechanism, &one.module, &one.qualname,
            &one.global_name, &edit.sha256, &edit.old_text, &edit.memory_text, &edit.source_text})
        hash.add(*text);
      hash.add(fmt::format("{} {} {}", edit.span.begin, edit.span.end, one.verified));
      parts.push_back(hash.hex());
    }
  std::sort(parts.begin(), parts.end());
  Hash all;
  all.add(std::to_string(plan.version));
  for (const std::string& part : parts) all.add(part);
  return all.hex();
}

}  // namespace opfuse::rewrite
