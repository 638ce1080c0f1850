#pragma once
// Chains that no rule knows: pointwise operators and reductions that follow one another, grown by
// the bytes that one pass over memory would not write and read again. Reported as candidates for a
// fused operator; nothing is claimed of their gain beyond their time and their bytes.

#include <string>
#include <vector>

#include "opfuse/match/match.h"

namespace opfuse::match {

struct CandidateChain {
  std::vector<graph::NodeId> nodes;  // of one call, in execution order
  std::string operators;             // "sub, exp, sum": in order, without namespace and overload
  int calls = 0;                     // places with the same operators at the same source lines
  int64_t bytes_saved = 0;           // of all calls: intermediates that are written and read
  int64_t ns = -1;                   // of all calls; -1: the graph holds no times
  double share = -1;                 // of the time of all operators, 0 … 1; -1: no times
  bool backward = false;             // made of operators of a backward pass
};

struct CandidateOptions {
  size_t smallest = 2;     // operators
  size_t largest = 24;     // operators
  double least_share = 0;  // of the time, where times are known
  size_t most = 10;
};

// The largest first: by time where it is known, else by bytes. Operators that a match of `report`
// holds, those inside one composite operator of torch and those that draw random numbers are left
// out. Backward operators make chains of their own.
std::vector<CandidateChain> find_candidates(const graph::Graph& graph, const MatchReport& report,
                                            const CandidateOptions& options = {});

// The innermost frame outside of torch's own files of the chain's last operator; null when no
// operator has one.
const graph::Position* candidate_position(const graph::Graph& graph, const CandidateChain& chain);

// "utils.py:12: sub, exp, sum (3 calls, 96.0 KiB written and read between, 4.1 % of the time)".
std::string candidate_sentence(const graph::Graph& graph, const CandidateChain& chain);

}  // namespace opfuse::match
