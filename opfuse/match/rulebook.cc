#include <algorithm>
#include <fstream>
#include <sstream>

#include <fmt/format.h>

#include "opfuse/base/embedded.h"
#include "opfuse/match/meaning.h"
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

bool is_known(const Rule& rule, const std::string& word) {
  return word == "None" || word == "True" || word == "False" ||
         std::ranges::find(rule.parameters, word, &RuleParameter::name) != rule.parameters.end();
}

// A parameter, a literal, or a list of sizes and numbers.
bool is_argument(const Rule& rule, const std::string& text) {
  if (text[0] != '[')
    return std::isalpha(static_cast<unsigned char>(text[0])) == 0 || is_known(rule, text);
  for (size_t at = 1; at < text.size() && text[at] != ']';) {
    const size_t end = text.find_first_of(",]", at);
    const std::string word = text.substr(at, end - at);
    if (!std::isdigit(static_cast<unsigned char>(word[0])) && !is_known(rule, word) &&
        std::ranges::find(rule.sizes, word) == rule.sizes.end())
      return false;
    at = text[end] == ',' ? end + 2 : end;
  }
  return true;
}

bool same_parameters(const Target& target, const Rule& rule) {
  const auto known = [&](const std::string& word) { return is_known(rule, word); };
  return std::ranges::all_of(
             target.arguments,
             [&](const std::string& argument) { return is_argument(rule, argument); }) &&
         std::ranges::all_of(target.given, known);
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

std::vector<std::string> Rule::number_names() const {
  std::vector<std::string> names;
  for (const RuleParameter& parameter : parameters) names.push_back(parameter.name);
  names.insert(names.end(), sizes.begin(), sizes.end());
  return names;
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
    for (const Rule& rule : rules)
      if (!rule.extends) OPFUSE_TRY_STATUS(check_meaning(rule));
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
