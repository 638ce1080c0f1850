// rules: every rule, what it becomes and whether a running script is edited for it.

#include <algorithm>
#include <cstdio>

#include "opfuse/cli/verb.h"
#include "opfuse/graph/schema.h"
#include "opfuse/match/rule.h"
#include "opfuse/match/targets.h"
#include "opfuse/match/words.h"

namespace opfuse::cli {
namespace {

class Rules : public Verb {
 public:
  std::string name() const override { return "rules"; }
  std::string summary() const override { return "the rulebook: which chains become what"; }
  std::string usage() const override { return "rules [RULE…] [--device DEVICE] [--rules FILE]"; }
  std::string description() const override {
    return "Without a name a table of all rules: the fused operator that a chain becomes, and "
           "whether\n"
           "it is replaced in a running script or only found and reported. With names, these rules "
           "in\n"
           "words. A rule file of yours is read, and each of its spellings is compared in fp64 "
           "with "
           "its\n"
           "composition. With --device the targets there, in the order in which they are tried, "
           "with\n"
           "dtypes, class, domain and versions.\n"
           "\n"
           "  opfuse rules\n"
           "  opfuse rules --device npu\n"
           "  opfuse rules hardswish --rules mine.rule";
  }
  std::vector<Flag> flags() override {
    return {{"--device", "DEVICE", "what is chosen on cpu, cuda or npu", &device_},
            {"--rules", "FILE", "more rules (docs/rulebook.md)", &files_}};
  }

  int run(const std::vector<std::string>& words) override {
    if (!device_.empty() && device_ != "cpu" && device_ != "cuda" && device_ != "npu")
      return usage_error("rules: --device: expected cpu, cuda or npu, found '" + device_ + "'");
    Result<match::Rulebook> book = match::load_rulebook(files_, graph::SchemaTable::builtin());
    if (!book.ok()) return usage_error("rules: " + book.error().message);
    for (const std::string& word : words) {
      const match::Rule* rule = book->find(word);
      if (!rule) return usage_error("rules: expected a rule, found '" + word + "'");
      if (!device_.empty()) continue;
      for (const std::string& line : match::describe_rule(*rule)) std::printf("%s\n", line.c_str());
    }
    if (!device_.empty()) {
      for (const std::string& line : match::targets_table(chosen(*book, words), device_))
        std::printf("%s\n", line.c_str());
    } else if (words.empty()) {
      print_table(*book);
    }
    return 0;
  }

 private:
  static match::Rulebook chosen(const match::Rulebook& book,
                                const std::vector<std::string>& words) {
    if (words.empty()) return book;
    match::Rulebook some;
    for (const std::string& word : words) some.rules.push_back(*book.find(word));
    return some;
  }

  static std::string verdict(const match::Rule& rule) {
    const bool captured = match::replaced_in_captured_graphs(rule);
    if (!match::never_replaced(rule).empty())
      return captured ? "replaced after proof in captured graphs" : "found only";
    std::string text = "replaced after proof";
    if (!match::never_replaced(rule, "cpu").empty()) {
      const bool cuda = match::never_replaced(rule, "cuda").empty();
      text += cuda ? " on cuda" : " on npu";
      text += captured ? " and in captured graphs" : "";
    }
    return text + (match::needs_permission(rule) ? ", with --allow E2" : "");
  }

  static void print_table(const match::Rulebook& book) {
    size_t name = 4, fate = 10;
    for (const match::Rule& rule : book.rules) {
      name = std::max(name, rule.name.size());
      fate = std::max(fate, verdict(rule).size());
    }
    const auto row = [&](const std::string& a, const std::string& b, const std::string& c) {
      std::printf("%-*s  %-*s  %s\n", static_cast<int>(name), a.c_str(), static_cast<int>(fate),
                  b.c_str(), c.c_str());
    };
    row("rule", "a chain is", "becomes");
    for (const match::Rule& rule : book.rules)
      row(rule.name, verdict(rule), match::targets_text(rule));
  }

  std::string device_;
  std::vector<std::string> files_;
};

}  // namespace

std::unique_ptr<Verb> make_rules() { return std::make_unique<Rules>(); }

}  // namespace opfuse::cli
