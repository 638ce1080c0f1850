// rules: every rule, what it becomes and whether a running script is edited for it.

#include <algorithm>
#include <cstdio>

#include "opfuse/cli/verb.h"
#include "opfuse/graph/schema.h"
#include "opfuse/match/rule.h"
#include "opfuse/match/words.h"

namespace opfuse::cli {
namespace {

class Rules : public Verb {
 public:
  std::string name() const override { return "rules"; }
  std::string summary() const override { return "the rulebook: which chains become what"; }
  std::string usage() const override { return "rules [RULE…] [--rules FILE]"; }
  std::string description() const override {
    return "Without a name a table of all rules: the fused operator that a chain becomes, and "
           "whether\n"
           "it is replaced in a running script or only found and reported. With names, these rules "
           "in\n"
           "words. A rule file of yours is read, and each of its spellings is compared in fp64 "
           "with "
           "its\n"
           "composition.\n"
           "\n"
           "  opfuse rules\n"
           "  opfuse rules hardswish --rules mine.rule";
  }
  std::vector<Flag> flags() override {
    return {{"--rules", "FILE", "more rules (docs/rulebook.md)", &files_}};
  }

  int run(const std::vector<std::string>& words) override {
    Result<match::Rulebook> book = match::load_rulebook(files_, graph::SchemaTable::builtin());
    if (!book.ok()) return usage_error("rules: " + book.error().message);
    for (const std::string& word : words) {
      const match::Rule* rule = book->find(word);
      if (!rule) return usage_error("rules: expected a rule, found '" + word + "'");
      for (const std::string& line : match::describe_rule(*rule)) std::printf("%s\n", line.c_str());
    }
    if (words.empty()) print_table(*book);
    return 0;
  }

 private:
  static void print_table(const match::Rulebook& book) {
    size_t name = 4, target = 7;
    for (const match::Rule& rule : book.rules) {
      name = std::max(name, rule.name.size());
      target = std::max(target, match::targets_text(rule).size());
    }
    const auto row = [&](const std::string& a, const std::string& b, const std::string& c) {
      std::printf("%-*s  %-*s  %s\n", static_cast<int>(name), a.c_str(), static_cast<int>(target),
                  b.c_str(), c.c_str());
    };
    row("rule", "becomes", "a chain is");
    for (const match::Rule& rule : book.rules)
      row(rule.name, match::targets_text(rule),
          !match::never_replaced(rule).empty() ? "found only"
          : match::needs_permission(rule)      ? "replaced after proof, with --allow E2"
                                               : "replaced after proof");
  }

  std::vector<std::string> files_;
};

}  // namespace

std::unique_ptr<Verb> make_rules() { return std::make_unique<Rules>(); }

}  // namespace opfuse::cli
