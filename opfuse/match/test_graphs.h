#pragma once
// For tests of match/: graphs and rules from text, with the parser's error as the test's failure.

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "opfuse/graph/text.h"
#include "opfuse/graph/validate.h"
#include "opfuse/match/match.h"

namespace opfuse::match::testing {

inline graph::Graph parse(std::string_view text) {
  Result<graph::Graph> graph = graph::parse_graph(text, graph::SchemaTable::builtin());
  EXPECT_TRUE(graph.ok()) << (graph.ok() ? "" : graph.error().message) << "\n" << text;
  if (!graph.ok()) return {};
  Status valid = graph::validate_graph(*graph);
  EXPECT_TRUE(valid.ok()) << (valid.ok() ? "" : valid.error().message);
  return std::move(*graph);
}

// The rules that the program carries.
inline const Rulebook& builtin_rules() {
  static const Rulebook book = [] {
    Result<Rulebook> loaded = load_rulebook({}, graph::SchemaTable::builtin());
    EXPECT_TRUE(loaded.ok()) << (loaded.ok() ? "" : loaded.error().message);
    return loaded.ok() ? std::move(*loaded) : Rulebook{};
  }();
  return book;
}

// Of each match, refused or not, the rule.
inline std::vector<std::string> rules_in(const MatchReport& report) {
  std::vector<std::string> names;
  for (const Match& match : report.matches) names.push_back(match.rule->name);
  return names;
}

// What all rules find in a graph.
inline std::vector<std::string> rules_in(std::string_view text) {
  return rules_in(find_matches(parse(text), builtin_rules()));
}

inline Rulebook rules_from(std::string_view text) {
  Rulebook book;
  Result<std::vector<Rule>> rules = parse_rules(text, "test.rule", graph::SchemaTable::builtin());
  EXPECT_TRUE(rules.ok()) << (rules.ok() ? "" : rules.error().message);
  if (rules.ok()) book.rules = std::move(*rules);
  return book;
}

}  // namespace opfuse::match::testing
