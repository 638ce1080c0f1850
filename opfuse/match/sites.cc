// Grouping of matches to places in the source, and what can be said of a place.

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "opfuse/match/context.h"

namespace opfuse::match {
namespace {

using graph::Graph;
using graph::kNone;
using graph::NodeId;

std::string place_key(const Graph& graph, int32_t position) {
  const graph::Position& p = graph.positions[position];
  return fmt::format("{}:{}:{}-{}:{}", p.file, p.line, p.column, p.end_line, p.end_column);
}

// The frame that would be edited: that of the chain, or for a whole Function the caller of `apply`
// (which has a frame of its own in torch).
size_t edit_frame(const Graph& graph, const Match& match) {
  if (match.function_scope == kNone) return 0;
  const std::vector<int32_t>& stack = graph.nodes[match.nodes.back()].positions;
  size_t frame = 1;
  while (frame < stack.size() &&
         graph.positions[stack[frame]].file.ends_with("torch/autograd/function.py"))
    ++frame;
  return frame;
}

// Rule, chain positions and the frame that would be edited.
std::string site_key(const Graph& graph, const Match& match, int index) {
  std::string key = match.rule->name + "|" + match.spelling->name;
  bool located = true;
  for (NodeId node : match.nodes) {
    const std::vector<int32_t>& stack = graph.nodes[node].positions;
    located = located && !stack.empty();
    if (!stack.empty()) key += "|" + place_key(graph, stack[0]);
  }
  const std::vector<int32_t>& stack = graph.nodes[match.nodes.back()].positions;
  size_t edit = edit_frame(graph, match);
  if (edit < stack.size()) key += "|" + place_key(graph, stack[edit]);
  return located ? key : fmt::format("{}|{}", key, index);  // without a position each is its own
}

// The frames that all stacks have in common: from the chain outwards until the callers differ.
void keep_shared(const Graph& graph, const std::vector<int32_t>& stack,
                 std::vector<int32_t>* shared) {
  size_t same = 0;
  while (same < shared->size() && same < stack.size() &&
         place_key(graph, (*shared)[same]) == place_key(graph, stack[same]))
    ++same;
  shared->resize(same);
}

std::string class_name(const Graph& graph, const Match& match) {
  return match.function_scope == kNone ? "" : graph.scopes[match.function_scope].name;
}

std::string position_text(const Graph& graph, NodeId node) {
  const std::vector<int32_t>& stack = graph.nodes[node].positions;
  if (stack.empty()) return "an unknown place";
  return fmt::format("{}:{}", graph.positions[stack[0]].file, graph.positions[stack[0]].line);
}

std::string match_sentence(const Graph& graph, const Match& match) {
  std::string text = fmt::format("{}: {} ({})", position_text(graph, match.nodes.back()),
                                 match.rule->name, match.spelling->name);
  if (match.refusals.empty()) return text + ": can be replaced as far as the graph shows";
  for (const Refusal& refusal : match.refusals)
    text += fmt::format("; refused (row {}): {}", refusal.row, refusal.reason);
  return text;
}

std::string miss_sentence(const Graph& graph, const NearMiss& miss) {
  std::string row = miss.refusal.row > 0 ? fmt::format(" (row {})", miss.refusal.row) : "";
  return fmt::format("{}: not {}{}: {}", position_text(graph, miss.nodes.back()), miss.rule->name,
                     row, miss.refusal.reason);
}

std::vector<std::string> counted(const std::vector<std::string>& sentences) {
  std::vector<std::string> order;
  std::map<std::string, int> counts;
  for (const std::string& sentence : sentences)
    if (counts[sentence]++ == 0) order.push_back(sentence);
  for (std::string& sentence : order)
    if (int count = counts[sentence]; count > 1) sentence += fmt::format(" ({} times)", count);
  return order;
}

bool stands_at(const Graph& graph, const std::vector<NodeId>& nodes, std::string_view file,
               int line) {
  for (NodeId node : nodes)
    for (int32_t position : graph.nodes[node].positions) {
      const graph::Position& p = graph.positions[position];
      bool ends = p.file == file || p.file.ends_with(fmt::format("/{}", file));
      if (ends && line >= p.line && line <= std::max(p.line, p.end_line)) return true;
    }
  return false;
}

}  // namespace

std::vector<Site> group_sites(const Graph& graph, const MatchReport& report) {
  std::vector<Site> sites;
  std::map<std::string, size_t> by_key;
  for (size_t i = 0; i < report.matches.size(); ++i) {
    const Match& match = report.matches[i];
    const std::vector<int32_t>& stack = graph.nodes[match.nodes.back()].positions;
    auto [it, is_new] =
        by_key.try_emplace(site_key(graph, match, static_cast<int>(i)), sites.size());
    if (is_new) {
      Site site;
      site.id = static_cast<int>(sites.size());
      site.rule = match.rule;
      site.function_class = class_name(graph, match);
      site.positions = stack;
      sites.push_back(std::move(site));
    }
    Site& site = sites[it->second];
    site.matches.push_back(static_cast<int>(i));
    keep_shared(graph, stack, &site.positions);
    for (NodeId node : match.nodes)
      site.forward_ns += std::max<int64_t>(graph.nodes[node].dur_ns, 0);
    for (NodeId node : match.backward.nodes)
      site.backward_ns += std::max<int64_t>(graph.nodes[node].dur_ns, 0);
  }
  return sites;
}

std::vector<std::string> explain_rule(const Graph& graph, const MatchReport& report,
                                      std::string_view rule) {
  std::vector<std::string> sentences;
  for (const Match& match : report.matches)
    if (match.rule->name == rule) sentences.push_back(match_sentence(graph, match));
  for (const NearMiss& miss : report.near_misses)
    if (miss.rule->name == rule) sentences.push_back(miss_sentence(graph, miss));
  return counted(sentences);
}

std::vector<std::string> explain_place(const Graph& graph, const MatchReport& report,
                                       std::string_view file, int line) {
  std::vector<std::string> sentences;
  for (const Match& match : report.matches)
    if (stands_at(graph, match.nodes, file, line))
      sentences.push_back(match_sentence(graph, match));
  for (const NearMiss& miss : report.near_misses)
    if (stands_at(graph, miss.nodes, file, line)) sentences.push_back(miss_sentence(graph, miss));
  return counted(sentences);
}

}  // namespace opfuse::match
