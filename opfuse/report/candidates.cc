// Chains that no rule knows: from the matcher, from and to JSON, and in words.
#include <fmt/format.h>

#include <algorithm>

#include "opfuse/report/candidates.h"
#include "opfuse/report/format.h"
#include "opfuse/report/parts.h"
#include "opfuse/report/secrets.h"

namespace opfuse::report {
namespace {

// "sub, exp, sum", the first few of a long chain.
std::string short_names(const std::vector<std::string>& operators) {
  constexpr size_t kFew = 8;
  std::string text;
  size_t count = 0;
  for (const std::string& op : operators) {
    if (op == "aten.detach" || op == "aten.alias") continue;
    if (count == kFew) return text + ", …";
    std::string name = op.substr(op.find('.') + 1);
    name.resize(std::min(name.size(), name.find('.')));
    text += (count++ > 0 ? ", " : "") + name;
  }
  return text;
}

}  // namespace

std::vector<Candidate> candidates_of(const graph::Graph& graph,
                                     const std::vector<match::CandidateChain>& chains) {
  std::vector<Candidate> result;
  for (const match::CandidateChain& chain : chains) {
    Candidate& one = result.emplace_back();
    for (graph::NodeId node : chain.nodes) one.operators.push_back(graph.nodes[node].op);
    if (const graph::Position* position = match::candidate_position(graph, chain)) {
      one.file = mask_text(position->file);
      one.line = position->line;
    }
    one.calls = chain.calls;
    one.bytes_saved = chain.bytes_saved;
    if (chain.ns >= 0) one.ms = static_cast<double>(chain.ns) * 1e-6;
    one.share = chain.share;
    one.backward = chain.backward;
  }
  return result;
}

std::string candidate_sentence(const Candidate& candidate) {
  std::string text;
  if (candidate.share >= 0)
    text = fmt::format("{:.1f}% of the operators' time: ", 100 * candidate.share);
  text += short_names(candidate.operators) + " (" + plural(candidate.calls, "call");
  if (candidate.backward) text += ", backward";
  if (!candidate.file.empty())
    text += fmt::format(", {}:{}", file_name(candidate.file), candidate.line);
  return text + ")";
}

void read_candidates(const Fields& from, const char* key, std::vector<Candidate>* to) {
  for (const Fields& fields : from.objects(key)) {
    Candidate& candidate = to->emplace_back();
    fields.read("operators", &candidate.operators);
    fields.read("file", &candidate.file);
    fields.read("line", &candidate.line);
    fields.read("calls", &candidate.calls);
    fields.read("bytes_saved", &candidate.bytes_saved);
    fields.read("ms", &candidate.ms);
    fields.read("share", &candidate.share);
    fields.read("backward", &candidate.backward);
  }
}

Json json_of(const Candidate& candidate) {
  return {{"operators", candidate.operators},
          {"file", candidate.file},
          {"line", candidate.line},
          {"calls", candidate.calls},
          {"bytes_saved", candidate.bytes_saved},
          {"ms", candidate.ms},
          {"share", candidate.share},
          {"backward", candidate.backward}};
}

}  // namespace opfuse::report
