// Random spellings all match, mutants never do. OPFUSE_SPELLINGS=10000 draws that many of each;
// the default is small enough for every run.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>

#include "opfuse/graph/evaluate.h"
#include "opfuse/match/meaning.h"
#include "opfuse/match/spelling_generator.h"
#include "opfuse/match/test_graphs.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::match {
namespace {

using testing::builtin_rules;
using testing::Fault;
using testing::FormulaPtr;
using testing::formulas;
using testing::parse;
using testing::Speller;

int wanted_count() {
  const char* text = std::getenv("OPFUSE_SPELLINGS");
  return text ? std::atoi(text) : 600;
}

// The rulebook with one rule alone: no larger chain of another rule hides it.
const Rulebook& alone(const std::string& name) {
  static std::map<std::string, Rulebook> books;
  Rulebook& book = books[name];
  if (book.rules.empty()) book.rules.push_back(*builtin_rules().find(name));
  return book;
}

// A match of the whole formula: the result is the graph's.
const Match* whole_match(const MatchReport& report, const graph::Graph& graph) {
  for (const Match& match : report.matches)
    if (match.outputs[0] == graph.results[0]) return &match;
  return nullptr;
}

// No refusal but that chains of this kind are not replaced yet.
bool is_legal(const Match& match) {
  for (const Refusal& refusal : match.refusals)
    if (refusal.row > 0) return false;
  return true;
}

graph::Array value_of(const graph::Graph& g) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal(0, 1);
  graph::Arrays externals;
  for (graph::ValueId id = 0; id < 2; ++id) {
    graph::Array array({4, 6}, std::vector<double>(24));
    for (double& x : array.data) x = normal(random);
    externals[id] = array;
  }
  Result<graph::Arrays> values = graph::evaluate(g, externals);
  EXPECT_TRUE(values.ok()) << (values.ok() ? "" : values.error().message);
  return values.ok() ? values->at(g.results[0]) : graph::Array();
}

TEST(Generated, EverySpellingMatches) {
  int missed = 0;
  for (int i = 0; i < wanted_count() && missed < 3; ++i) {
    const auto formula = std::next(formulas().begin(), i % static_cast<int>(formulas().size()));
    const std::string text = Speller(1000 + static_cast<uint64_t>(i)).spell(formula->second);
    const graph::Graph g = parse(text);
    const MatchReport report = find_matches(g, alone(formula->first));
    const Match* match = whole_match(report, g);
    missed += match == nullptr;
    EXPECT_NE(match, nullptr) << formula->first << ", spelling " << i << "\n" << text;
  }
}

TEST(Generated, NoMutantMatches) {
  constexpr Fault kFaults[] = {Fault::kNumber, Fault::kOperand, Fault::kFunction, Fault::kUse,
                               Fault::kWrite,  Fault::kDim,     Fault::kCast,     Fault::kEps};
  int made = 0, wrong = 0;
  std::map<Fault, int> of_kind;
  for (int i = 0; made < wanted_count() && wrong < 3; ++i) {
    const auto formula = std::next(formulas().begin(), i % static_cast<int>(formulas().size()));
    const Fault fault = kFaults[i / 11 % 8];
    Speller speller(90000 + static_cast<uint64_t>(i));
    std::string text;
    if (fault == Fault::kUse || fault == Fault::kWrite || fault == Fault::kCast) {
      text = speller.spell_with(formula->second, fault);
      if (text.empty()) continue;
    } else {
      const bool open = formula->first.ends_with("_norm") || formula->first == "swish_beta";
      if (fault == Fault::kNumber && open) continue;  // eps and beta may be any number
      const FormulaPtr mutant = speller.changed(formula->second, fault);
      if (!mutant) continue;
      text = speller.spell(mutant);
      // A fault may give the same function: mean and sum differ by a factor that cancels, say.
      const graph::Array right = value_of(parse(speller.spell(formula->second)));
      if (difference(right, value_of(parse(text))).empty()) continue;
    }
    ++made;
    ++of_kind[fault];
    const graph::Graph g = parse(text);
    const MatchReport report = find_matches(g, alone(formula->first));
    const Match* match = whole_match(report, g);
    // A chain over a part of x, or over what was written before it, is another function's find.
    const auto external = [](graph::ValueId v) { return v <= 1; };  // or absent
    const bool legal = match && is_legal(*match) && match->inputs[0] == 0 &&
                       std::ranges::all_of(match->inputs, external);
    wrong += legal;
    EXPECT_FALSE(legal) << formula->first << ", fault " << static_cast<int>(fault) << "\n" << text;
  }
  for (Fault fault : kFaults) EXPECT_GT(of_kind[fault], 0) << static_cast<int>(fault);
}

}  // namespace
}  // namespace opfuse::match
