// Every rule that the program carries is right: spellings, alternatives and native targets compute
// what the composition computes.

#include "opfuse/match/meaning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "opfuse/match/alternatives.h"
#include "opfuse/match/test_graphs.h"

namespace opfuse::match {
namespace {

using testing::builtin_rules;
using ::testing::HasSubstr;
using testing::rules_from;

TEST(Meaning, EverySpellingIsTheFunctionOfItsRule) {
  for (const Rule& rule : builtin_rules().rules) {
    Status status = check_meaning(rule);
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
  }
}

TEST(Meaning, EveryKnownTargetIsTheFunctionOfItsRule) {
  int checked = 0;
  for (const Rule& rule : builtin_rules().rules) {
    if (!can_be_evaluated(rule.composition.graph)) continue;
    const Sample sample = sample_of(rule, 2);
    Result<std::vector<graph::Array>> expected = values_of(rule, rule.composition, sample);
    ASSERT_TRUE(expected.ok()) << rule.name << ": " << expected.error().message;
    for (const Target& target : rule.targets) {
      if (!graph::can_evaluate(target.op)) continue;
      Result<graph::Array> found = target_value(rule, target, sample, 0);
      ASSERT_TRUE(found.ok()) << rule.name << ": " << found.error().message;
      EXPECT_EQ(difference((*expected)[0], *found), "") << rule.name << " by " << target.op;
      ++checked;
    }
  }
  EXPECT_GE(checked, 15);
}

TEST(Meaning, OptionalParametersLeftOutAreLeftOutOfTheTarget) {
  const Rule* rule = builtin_rules().find("layer_norm");
  ASSERT_NE(rule, nullptr);
  const Sample sample = sample_of(*rule, 3);
  for (const Spelling& spelling : rule->alternatives) {
    auto expected = values_of(*rule, spelling, sample);
    auto found = target_value(*rule, rule->targets[0], sample, spelling.absent);
    ASSERT_TRUE(expected.ok() && found.ok());
    EXPECT_EQ(difference((*expected)[0], *found), "") << spelling.name;
  }
}

TEST(Meaning, ASpellingOfAnotherFunctionIsAnError) {
  Rulebook book = rules_from(
      "op f(x: T) -> T\n  composition\n    return x * sigmoid(x)\n  spelling \"wrong\"\n    return "
      "x * sigmoid(1.702 * x)\n  target mine.f(x)\n");
  Status status = check_meaning(book.rules[0]);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message,
              HasSubstr("test.rule:4:1: rule f: expected spelling 'wrong' to be the function"));
}

TEST(Meaning, EveryRowOfAlternativesIsUsedByARule) {
  for (const graph::CanonicalRow& row : alternative_rows()) {
    EXPECT_THAT(std::string(row.example), HasSubstr("->"));
    bool used = false;
    for (const Rule& rule : builtin_rules().rules)
      for (const Spelling& spelling : rule.alternatives)
        used = used || std::ranges::find(spelling.rows, row.name) != spelling.rows.end();
    EXPECT_TRUE(used) << row.name;
  }
}

}  // namespace
}  // namespace opfuse::match
