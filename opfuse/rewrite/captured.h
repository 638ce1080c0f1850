#pragma once
// What becomes of the chains of a captured graph: for each the call of its target, in the names of
// the graph's text form, so that who captured it can make the same change there.
// BORDER: rewrite -> python (opfuse.backend).

#include <string>
#include <vector>

#include "opfuse/rewrite/plan.h"

namespace opfuse::rewrite {

struct CapturedChain {
  std::string rule, target;
  match::Equivalence equivalence = match::Equivalence::kE1;
  std::string domain;                // "" total
  std::vector<std::string> nodes;    // first result of each operator of the chain, in order
  std::vector<std::string> inputs;   // by parameter; "" where it is absent or a number
  std::vector<std::string> outputs;  // results of the composition
  std::string python;                // "opfuse.functional.batch_norm_act"
  // "%x" for a value, else a Python literal: "0.1", "None", "\"silu\"", "[1, 1]", "cast=\"input\"".
  std::vector<std::string> arguments;
  bool uses_sizes = false;  // a literal is a size of a tensor of the graph
  std::string place;        // "net.py:30"; "" unknown
  std::string refusal;      // why it stays as it is; "" when it may be replaced after proof
};

// The rules as they are for captured graphs: what a target is called there is its Python name, and
// so decides which of two chains that meet is replaced.
match::Rulebook captured_rulebook(match::Rulebook rulebook);

// One for each match of such rules, in the order of the report.
std::vector<CapturedChain> captured_chains(const graph::Graph& graph,
                                           const match::MatchReport& report,
                                           const PlanOptions& options);

}  // namespace opfuse::rewrite
