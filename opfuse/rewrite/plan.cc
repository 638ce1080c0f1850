#include "opfuse/rewrite/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "opfuse/match/targets.h"
#include "opfuse/rewrite/compose.h"
#include "opfuse/rewrite/legality.h"
#include "opfuse/rewrite/target.h"

namespace opfuse::rewrite {
namespace {

using match::Refusal;
using match::target_kind;
using Refused = std::optional<Refusal>;

Refused refuse(int row, std::string reason) {
  return Refusal{row, std::move(reason), graph::kNone};
}

// What one site is planned from.
struct SiteInput {
  const graph::Graph& graph;
  const match::MatchReport& report;
  const match::Site& site;
  const SiteFacts& facts;
  const PlanOptions& options;
};

// Numbers without a text in the source are written into the edit: those of the first call.
bool same_numbers(const SiteInput& in, size_t call, const std::vector<std::string>& texts) {
  const match::Match &first = in.report.matches[in.site.matches[0]],
                     &other = in.report.matches[in.site.matches[call]];
  for (size_t i = 0; i < texts.size() && i < first.numbers.size(); i++)
    if (!in.site.rule->parameters[i].is_tensor && texts[i].empty() &&
        first.numbers[i] != other.numbers[i])
      return false;
  return true;
}

// The same parameters must come out for every recorded call.
SpanProof prove_all(const SiteInput& in) {
  SpanProof proof;
  for (size_t i = 0; i < in.site.matches.size(); i++) {
    SpanProof one = prove_span(in.graph, in.report.matches[in.site.matches[i]], in.facts);
    if (one.refusal) return one;
    if (!same_numbers(in, i, one.parameters))
      return {
          refuse(36, "a number that the source does not name differs between its calls"), {}, {}};
    if (i > 0 && one.parameters != proof.parameters)
      return {refuse(36, "its inputs are not the same names in every recorded call"), {}, {}};
    proof = std::move(one);
  }
  return proof;
}

// What one argument of a target reads in the source.
Result<std::string> argument_text(const std::string& argument, const match::Match& match,
                                  const std::vector<std::string>& parameters) {
  const match::Rule& rule = *match.rule;
  const size_t equal = argument.find('=');
  if (equal != argument.npos && argument[0] != '"') {
    OPFUSE_TRY(const std::string value,
               argument_text(argument.substr(equal + 1), match, parameters));
    return argument.substr(0, equal + 1) + value;
  }
  for (size_t i = 0; i < rule.parameters.size() && i < parameters.size(); i++) {
    if (rule.parameters[i].name != argument) continue;
    if (!parameters[i].empty()) return parameters[i];
    if (rule.parameters[i].is_tensor) return std::string("None");
    const auto number = i < match.numbers.size() ? match.numbers[i] : std::nullopt;
    if (!number) return Error{fmt::format("the number {} is not known", argument)};
    const bool whole = rule.parameters[i].type == "int";
    return whole ? fmt::format("{}", static_cast<int64_t>(*number)) : fmt::format("{}", *number);
  }
  if (!argument.starts_with("[")) return argument;
  // A size by name: the last one of the first input.
  const std::vector<match::Dimension>& shape = rule.parameters[0].tensor.shape;
  const std::vector<std::string> names = rule.number_names();
  const bool last = !shape.empty() && shape.back().kind == match::Dimension::Kind::kName &&
                    argument == fmt::format("[{}]", names[shape.back().name]);
  if (!last) return Error{fmt::format("the sizes {} have no text in the source", argument)};
  return fmt::format("{}.shape[-1:]", parameters[0]);
}

Result<std::vector<std::string>> arguments_of(const match::Target& target,
                                              const match::Match& match,
                                              const std::vector<std::string>& parameters) {
  std::vector<std::string> arguments;
  for (const std::string& argument : called_with(target)) {
    OPFUSE_TRY(std::string text, argument_text(argument, match, parameters));
    arguments.push_back(std::move(text));
  }
  return arguments;
}

// Operands that are expressions must be evaluated in the order in which the chain does it.
bool keeps_order(const match::Target& target, const match::Rule& rule,
                 const std::vector<int>& expressions) {
  std::vector<int> order;
  for (const std::string& argument : called_with(target))
    for (const int parameter : expressions)
      if (rule.parameters[parameter].name == argument) order.push_back(parameter);
  return order == expressions;
}

// What takes one of several results.
std::string part(const match::Target& target) {
  return target.result < 0 ? "" : fmt::format("[{}]", target.result);
}

Result<std::vector<SourceEdit>> compose_edits(const SiteInput& in, const match::Target& here,
                                              const match::Target& written,
                                              const std::vector<std::string>& parameters,
                                              Replacement* replacement) {
  const SiteFacts& facts = in.facts;
  std::vector<SourceEdit> edits;
  const Spelling spelling = spell(written.python, facts);
  if (!spelling.import_line.empty()) {
    OPFUSE_TRY(SourceEdit edit, import_edit(facts, spelling.import_line));
    edits.push_back(std::move(edit));
    replacement->imports.push_back(spelling.import_line);
  }
  if (facts.span_kind == "statements") {
    OPFUSE_TRY(SourceEdit edit, removal_edit(facts));
    edits.push_back(std::move(edit));
  }
  SourceEdit call;
  call.file = facts.file;
  call.sha256 = facts.sha256;
  call.span = facts.span;
  call.old_text = facts.text.substr(facts.span.begin, facts.span.end - facts.span.begin);
  const match::Match& match = in.report.matches[in.site.matches[0]];
  OPFUSE_TRY(const auto source, arguments_of(written, match, parameters));
  OPFUSE_TRY(const auto memory, arguments_of(here, match, parameters));
  call.source_text = call_texts(spelling.callee, "", source, call.old_text).source + part(written);
  call.memory_text =
      call_texts("", replacement->global_name, memory, call.old_text).memory + part(here);
  edits.push_back(std::move(call));
  return edits;
}

// A replacement, or the refusal through `refusal`.
Replacement plan_site(const SiteInput& in, Refused* refusal) {
  Replacement replacement;
  const match::Rule& rule = *in.site.rule;
  match::Equivalence weakest = match::Equivalence::kE0;
  if ((*refusal = refusal_from_matches(in.report, in.site, in.options, &weakest)))
    return replacement;
  if ((*refusal = refusal_from_facts(in.facts))) return replacement;
  const SpanProof proof = prove_all(in);
  if ((*refusal = proof.refusal)) return replacement;
  if ((*refusal = foreign_operator(in.graph, in.report, in.site, in.facts))) return replacement;
  const match::Target* here = choose_target(in.graph, in.report, in.site, in.options, refusal);
  if (!here) return replacement;
  refusal->reset();  // a target that was passed over
  const match::Target* written = here;
  const std::string& vendor = in.options.target_vendor;
  if (!vendor.empty() && match::vendor_of(*here) != vendor) {
    written = vendor_target(rule, vendor);
    if (!written || written->python.empty()) {
      *refusal = refuse(18, fmt::format("{} has no target of {}", rule.name, vendor));
      return replacement;
    }
  }
  if (!keeps_order(*here, rule, proof.expressions) ||
      !keeps_order(*written, rule, proof.expressions)) {
    *refusal = refuse(36, "its operands would be evaluated in another order");
    return replacement;
  }
  replacement.site = in.site.id;
  replacement.rule = rule.name;
  replacement.target = here->op;
  replacement.python_target = here->python;
  replacement.source_target = written->python;
  replacement.verified = written == here;
  replacement.equivalence = std::max(weakest, here->equivalence);
  // Ours take every dtype that the chain takes.
  const std::string own = rule.domain.ends_with("finite") ? "finite" : "";
  replacement.domain = target_kind(*here) == 1 ? own : rule.domain;
  replacement.module = in.facts.module;
  replacement.qualname = in.facts.qualname;
  replacement.file = in.facts.file;
  replacement.package = in.facts.installed_package;
  replacement.package_version = in.facts.installed_version;
  replacement.line = in.facts.line;
  replacement.calls = static_cast<int>(in.site.matches.size());
  replacement.global_name = free_global_name(rule.name, in.facts);
  auto edits = compose_edits(in, *here, *written, proof.parameters, &replacement);
  if (edits)
    replacement.edits = std::move(*edits);
  else
    *refusal = refuse(36, edits.error().message);
  return replacement;
}

bool same_edit(const SourceEdit& a, const SourceEdit& b) {
  return a.span.begin == b.span.begin && a.span.end == b.span.end &&
         a.memory_text == b.memory_text && a.source_text == b.source_text;
}

// Whether two replacements cannot both be made: spans that meet without being the same edit, one
// file in two states, or one global name for two operators.
bool collide(const Replacement& a, const Replacement& b) {
  if (a.file == b.file && a.global_name == b.global_name && a.python_target != b.python_target)
    return true;
  for (const SourceEdit& x : a.edits)
    for (const SourceEdit& y : b.edits) {
      if (x.file != y.file) continue;
      if (x.sha256 != y.sha256) return true;
      const bool empty = x.span.begin == x.span.end || y.span.begin == y.span.end;
      if (!empty && !same_edit(x, y) && x.span.begin < y.span.end && y.span.begin < x.span.end)
        return true;
    }
  return false;
}

}  // namespace

Plan make_plan(const graph::Graph& graph, const match::MatchReport& report,
               const std::vector<match::Site>& sites, const std::vector<SiteFacts>& facts,
               const PlanOptions& options) {
  // Most time first, so that of two sites that meet the one that saves more stays.
  std::vector<const match::Site*> order;
  for (const match::Site& site : sites) order.push_back(&site);
  const auto time = [](const match::Site* site) { return site->forward_ns + site->backward_ns; };
  std::stable_sort(order.begin(), order.end(),
                   [&](const match::Site* a, const match::Site* b) { return time(a) > time(b); });
  Plan plan;
  for (const match::Site* site : order) {
    Refused refusal;
    const auto own = std::find_if(facts.begin(), facts.end(),
                                  [&](const SiteFacts& fact) { return fact.site == site->id; });
    match::Equivalence weakest = match::Equivalence::kE0;
    if (own == facts.end()) {
      refusal = refusal_from_matches(report, *site, options, &weakest);
      if (!refusal) refusal = refuse(36, "nothing is known of its source");
      plan.refused.push_back({site->id, *refusal});
      continue;
    }
    Replacement replacement = plan_site({graph, report, *site, *own, options}, &refusal);
    for (const Replacement& other : plan.replacements)
      if (!refusal && collide(replacement, other))
        refusal = refuse(0, fmt::format("its source overlaps the edit of site {}, which saves more",
                                        other.site));
    if (refusal)
      plan.refused.push_back({site->id, *refusal});
    else
      plan.replacements.push_back(std::move(replacement));
  }
  std::sort(plan.replacements.begin(), plan.replacements.end(),
            [](const Replacement& a, const Replacement& b) { return a.site < b.site; });
  std::sort(plan.refused.begin(), plan.refused.end(),
            [](const RefusedSite& a, const RefusedSite& b) { return a.site < b.site; });
  return plan;
}

}  // namespace opfuse::rewrite
