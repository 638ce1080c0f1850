#include <algorithm>
#include <fstream>
#include <sstream>

#include <fmt/format.h>

#include "opfuse/base/embedded.h"
#include "opfuse/match/rule.h"
#include "opfuse/match/rule_lower.h"

namespace opfuse::match {
namespace {

Result<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf()))
    return Error{fmt::format("{}: expected a rule file that can be read", path)};
  return text.str();
}

bool same_parameters(const Target& target, const Rule& rule) {
  return std::ranges::all_of(target.arguments, [&](const std::string& argument) {
    bool is_name = std::isalpha(static_cast<unsigned char>(argument[0])) != 0;
    bool is_word = argument == "None" || argument == "True" || argument == "False";
    return !is_name || is_word ||
           std::ranges::find(rule.parameters, argument, &RuleParameter::name) !=
               rule.parameters.end();
  });
}

// Rules by name, then the targets that other files add to them.
Status add_rules(std::vector<Rule> rules, Rulebook* book, std::vector<Rule>* extensions) {
  for (Rule& rule : rules) {
    if (rule.extends) {
      extensions->push_back(std::move(rule));
      continue;
    }
    if (const Rule* first = book->find(rule.name))
      return Error{fmt::format("{}:{}:1: rule {} is defined twice, first in {}:{}", rule.file,
                               rule.line, rule.name, first->file, first->line)};
    book->rules.push_back(std::move(rule));
  }
  return ok_status();
}

Status extend(const Rule& extension, Rulebook* book) {
  auto rule = std::ranges::find(book->rules, extension.name, &Rule::name);
  if (rule == book->rules.end())
    return Error{fmt::format("{}:{}:1: expected a rule to extend, found no rule '{}'",
                             extension.file, extension.line, extension.name)};
  for (const Target& target : extension.targets) rule->targets.push_back(target);
  rule->source += "\n\n" + extension.source;
  return ok_status();
}

}  // namespace

std::string_view equivalence_name(Equivalence equivalence) {
  constexpr std::string_view kNames[] = {"E0", "E1", "E2", "E3", "E4"};
  return kNames[static_cast<size_t>(equivalence)];
}

const Rule* Rulebook::find(std::string_view name) const {
  auto it = std::ranges::find(rules, name, &Rule::name);
  return it == rules.end() ? nullptr : &*it;
}

Result<std::vector<Rule>> parse_rules(std::string_view text, std::string_view file,
                                      const graph::SchemaTable& schemas) {
  OPFUSE_TRY(std::vector<RuleSyntax> syntax, parse_rule_syntax(text, file));
  std::vector<Rule> rules;
  for (const RuleSyntax& one : syntax) {
    OPFUSE_TRY(Rule rule, lower_rule(one, schemas));
    rules.push_back(std::move(rule));
  }
  return rules;
}

Result<Rulebook> load_rulebook(const std::vector<std::string>& user_files,
                               const graph::SchemaTable& schemas) {
  Rulebook book;
  std::vector<Rule> extensions;
  for (const EmbeddedFile& file : embedded_rules()) {
    OPFUSE_TRY(std::vector<Rule> rules, parse_rules(file.text, file.name, schemas));
    OPFUSE_TRY_STATUS(add_rules(std::move(rules), &book, &extensions));
  }
  for (const std::string& path : user_files) {
    OPFUSE_TRY(std::string text, read_file(path));
    OPFUSE_TRY(std::vector<Rule> rules, parse_rules(text, path, schemas));
    OPFUSE_TRY_STATUS(add_rules(std::move(rules), &book, &extensions));
  }
  for (const Rule& extension : extensions) OPFUSE_TRY_STATUS(extend(extension, &book));
  for (const Rule& rule : book.rules)
    for (const Target& target : rule.targets)
      if (!same_parameters(target, rule))
        return Error{fmt::format("{}:{}:1: rule {}: target {} takes something that is no parameter",
                                 rule.file, rule.line, rule.name, target.op)};
  return book;
}

}  // namespace opfuse::match
