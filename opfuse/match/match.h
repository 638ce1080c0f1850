#pragma once
// Finds every place in a Graph where a rule of the Rulebook applies. Changes nothing. A rule that
// almost applied is returned as a near miss, with the node that stopped it and a sentence.
// BORDER: match -> rewrite, verify, report.

#include <string>
#include <string_view>
#include <vector>

#include "opfuse/graph/graph.h"
#include "opfuse/match/rule.h"

namespace opfuse::match {

// Why a place is not replaced. `row` is the row of docs/legality.md (1..46), 0 for "is not the
// pattern" and for verdicts of later stages.
struct Refusal {
  int row = 0;
  std::string reason;                 // a sentence that a user follows
  graph::NodeId node = graph::kNone;  // the operator that stopped it
};

// The backward operators that a match causes, found by sequence number and scope.
struct BackwardChain {
  std::vector<graph::NodeId> nodes;           // in order; engine accumulations not included
  graph::ValueId grad_output = graph::kNone;  // cotangent that enters
  std::vector<graph::ValueId> grad_inputs;    // contributions that leave, summed they are d/dx
  bool complete = false;                      // every operator between the two is in `nodes`
};

struct Match {
  const Rule* rule = nullptr;
  const Spelling* spelling = nullptr;
  Equivalence equivalence = Equivalence::kE1;
  std::vector<std::string> canonical_rows;  // rows used to make it equal, for the report
  std::vector<graph::NodeId> nodes;         // forward chain, execution order
  std::vector<graph::ValueId> inputs;       // one per parameter (kNone: absent, or a number)
  NumberBindings
      numbers;  // by Number::name of the rule: number parameters and sizes that are bound
  bool shapes_known = true;               // of every parameter whose type has dimensions
  std::vector<graph::ValueId> outputs;    // results of the composition
  int32_t function_scope = graph::kNone;  // the autograd.Function whose forward is the chain
  BackwardChain backward;                 // empty nodes: no backward was recorded
  std::vector<Refusal> refusals;          // legality found in the graph; empty: legal so far
  std::vector<std::string> conditions;    // MatchOptions::assume_unknown: "the constant is 1.702"
};

struct NearMiss {
  const Rule* rule = nullptr;
  Refusal refusal;
  std::vector<graph::NodeId> nodes;  // what did match
  bool certain = false;              // a named neighbour, or a row of docs/legality.md
};

struct MatchReport {
  std::vector<Match> matches;  // legal or refused (Match::refusals), never overlapping silently
  std::vector<NearMiss> near_misses;  // best one per place
};

struct MatchOptions {
  // For graphs of trace files, which do not hold the numbers: what is unknown is taken to be what
  // the rule wants, and named in Match::conditions; only refusals that data flow, shapes and dtypes
  // decide are given, and no backward is joined. Never for a graph that is replaced.
  bool assume_unknown = false;
};

MatchReport find_matches(const graph::Graph& graph, const Rulebook& rulebook,
                         const MatchOptions& options = {});

// Matches that come from the same source expression through the same edit frame: one site.
struct Site {
  int id = 0;
  const Rule* rule = nullptr;
  std::vector<int> matches;        // indices into MatchReport::matches
  std::string function_class;      // "SwishImplementation" when the chain is a Function's forward
  std::vector<int32_t> positions;  // stack of the chain, innermost first; the shared part
  int64_t forward_ns = 0, backward_ns = 0;  // time of the chain's operators in the record
};

std::vector<Site> group_sites(const graph::Graph& graph, const MatchReport& report);

// Sentences for `opfuse explain`: what the rule found in this graph and what came near it, one line
// a place; or what is known of FILE:LINE, where `file` is the end of a path.
std::vector<std::string> explain_rule(const graph::Graph& graph, const MatchReport& report,
                                      std::string_view rule);
std::vector<std::string> explain_place(const graph::Graph& graph, const MatchReport& report,
                                       std::string_view file, int line);

}  // namespace opfuse::match
