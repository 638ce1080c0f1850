#include "opfuse/match/candidates.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "opfuse/graph/schema.h"
#include "opfuse/match/pattern.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::match {
namespace {

using graph::Graph;
using graph::kNone;
using graph::Node;
using graph::NodeId;
using graph::ScopeKind;
using graph::ValueId;

constexpr std::string_view kReductions[] = {
    "aten.mean.dim", "aten.sum.dim_IntList", "aten.amax",
    "aten.amin",     "aten.var.correction",  "aten.var_mean.correction",
    "aten.max.dim",  "aten.logsumexp",       "aten.linalg_vector_norm"};

bool is_backward(const Node& node) { return (node.region.flags & trace::kGraphTask) != 0; }

int64_t bytes_of(const graph::Value& value) {
  const int64_t count = value.meta.numel();
  return count < 0 ? 0 : count * dtype_size(value.meta.dtype);
}

class Finder {
 public:
  Finder(const Graph& graph, const MatchReport& report, const CandidateOptions& options)
      : graph_(graph), options_(options), group_(graph.nodes.size(), kNone) {
    std::vector<bool> taken(graph.nodes.size());
    for (const Match& match : report.matches) {
      for (NodeId node : match.nodes) taken[node] = true;
      for (NodeId node : match.backward.nodes) taken[node] = true;
    }
    for (NodeId id = 0; id < size(); ++id)
      if (!taken[id] && is_fusible(id)) {
        group_[id] = static_cast<int32_t>(groups_.size());
        groups_.push_back({id});
      }
  }

  std::vector<CandidateChain> run() {
    grow();
    std::map<std::string, CandidateChain> by_place;
    int64_t all = 0;
    for (const Node& node : graph_.nodes) all += std::max<int64_t>(node.dur_ns, 0);
    for (const std::vector<NodeId>& nodes : groups_) {
      if (nodes.size() < options_.smallest || counted(nodes) < options_.smallest) continue;
      CandidateChain one = describe(nodes);
      auto [it, is_new] = by_place.try_emplace(key(one), one);
      CandidateChain& place = it->second;
      if (!is_new) {
        place.bytes_saved += one.bytes_saved;
        if (one.ns >= 0) place.ns = std::max<int64_t>(place.ns, 0) + one.ns;
      }
      ++place.calls;
    }
    std::vector<CandidateChain> result;
    for (auto& [name, chain] : by_place) {
      if (all > 0 && chain.ns >= 0)
        chain.share = static_cast<double>(chain.ns) / static_cast<double>(all);
      if (all > 0 && chain.share < options_.least_share) continue;
      result.push_back(std::move(chain));
    }
    std::ranges::stable_sort(result, [](const CandidateChain& a, const CandidateChain& b) {
      return std::pair(a.ns, a.bytes_saved) > std::pair(b.ns, b.bytes_saved);
    });
    if (result.size() > options_.most) result.resize(options_.most);
    return result;
  }

 private:
  NodeId size() const { return static_cast<NodeId>(graph_.nodes.size()); }

  bool is_fusible(NodeId id) const {
    const Node& node = graph_.nodes[id];
    if (!node.schema || node.opaque || node.random || node.hidden_product) return false;
    if (!node.writes.empty() || node.outputs.empty() || node.outputs[0] == kNone) return false;
    const bool known = node.schema->pointwise || is_cast(node) || is_shape_change(node) ||
                       std::ranges::find(kReductions, node.op) != std::end(kReductions);
    return known && is_floating(graph_.values[node.outputs[0]].meta.dtype);
  }

  // Operators that compute something: reshapes and detaches alone are no chain.
  size_t counted(const std::vector<NodeId>& nodes) const {
    return static_cast<size_t>(std::ranges::count_if(nodes, [&](NodeId id) {
      const Node& node = graph_.nodes[id];
      return !is_shape_change(node) && node.op != "aten.detach" && node.op != "aten.alias";
    }));
  }

  // Values by the bytes that joining maker and readers saves, the most first.
  void grow() {
    std::vector<std::pair<int64_t, ValueId>> values;
    for (ValueId v = 0; v < static_cast<ValueId>(graph_.values.size()); ++v) {
      const graph::Value& value = graph_.values[v];
      if (value.producer == kNone || group_[value.producer] == kNone || graph_.users[v].empty())
        continue;
      values.emplace_back(bytes_of(value), v);
    }
    std::ranges::stable_sort(values,
                             [](const auto& a, const auto& b) { return a.first > b.first; });
    for (const auto& [bytes, v] : values)
      for (NodeId reader : graph_.users[v]) join(graph_.values[v].producer, reader);
  }

  void join(NodeId maker, NodeId reader) {
    const int32_t a = group_[maker], b = group_[reader];
    if (a == kNone || b == kNone || a == b) return;
    const Node &x = graph_.nodes[maker], &y = graph_.nodes[reader];
    if (x.region.flags != y.region.flags || x.thread != y.thread) return;
    if (enclosing_scope(graph_, maker, ScopeKind::kFunction) !=
        enclosing_scope(graph_, reader, ScopeKind::kFunction))
      return;
    if (groups_[a].size() + groups_[b].size() > options_.largest) return;
    std::vector<NodeId> both;
    std::ranges::merge(groups_[a], groups_[b], std::back_inserter(both));
    if (!is_convex(both)) return;
    for (NodeId id : groups_[b]) group_[id] = a;
    groups_[a] = std::move(both);
    groups_[b].clear();
  }

  // No path leaves the chain and comes back, and nobody writes what it reads in between.
  bool is_convex(const std::vector<NodeId>& nodes) const {
    std::set<ValueId> outside;  // values that depend on the chain and are made outside of it
    const auto depends = [&](const Node& node) {
      for (const graph::Input& input : node.inputs)
        for (ValueId v : input.values)
          if (v != kNone && outside.contains(v)) return true;
      return false;
    };
    std::set<int32_t> storages;
    for (NodeId id : nodes)
      for (const graph::Input& input : graph_.nodes[id].inputs)
        for (ValueId v : input.values)
          if (v != kNone && graph_.values[v].storage != kNone)
            storages.insert(graph_.values[v].storage);
    std::set<ValueId> inside;
    size_t next = 0;
    for (NodeId id = nodes.front(); id <= nodes.back(); ++id) {
      const Node& node = graph_.nodes[id];
      if (next < nodes.size() && nodes[next] == id) {
        if (depends(node)) return false;
        inside.insert(node.outputs.begin(), node.outputs.end());
        ++next;
        continue;
      }
      if (node.opaque) return false;
      for (ValueId v : node.writes)
        if (storages.contains(graph_.values[v].storage)) return false;
      bool reads = depends(node);
      for (const graph::Input& input : node.inputs)
        for (ValueId v : input.values) reads = reads || (v != kNone && inside.contains(v));
      if (reads) outside.insert(node.outputs.begin(), node.outputs.end());
    }
    return true;
  }

  CandidateChain describe(const std::vector<NodeId>& nodes) const {
    CandidateChain chain;
    chain.nodes = nodes;
    chain.backward = is_backward(graph_.nodes[nodes[0]]);
    const std::set<NodeId> inside(nodes.begin(), nodes.end());
    for (NodeId id : nodes) {
      const Node& node = graph_.nodes[id];
      if (node.op != "aten.detach" && node.op != "aten.alias") {
        const std::string name = node.op.substr(node.op.find('.') + 1);
        if (!chain.operators.empty()) chain.operators += ", ";
        chain.operators += name.substr(0, name.find('.'));
      }
      if (node.dur_ns >= 0) chain.ns = std::max<int64_t>(chain.ns, 0) + node.dur_ns;
      if (is_shape_change(node)) continue;  // moves nothing, as a rule
      for (ValueId v : node.outputs) {
        if (v == kNone || graph_.users[v].empty()) continue;
        const auto read_inside = [&](NodeId user) { return inside.contains(user); };
        const bool inner = std::ranges::all_of(graph_.users[v], read_inside);
        const int64_t reads = std::ranges::count_if(graph_.users[v], read_inside);
        chain.bytes_saved += bytes_of(graph_.values[v]) * (reads + (inner ? 1 : 0));
      }
    }
    return chain;
  }

  std::string key(const CandidateChain& chain) const {
    std::string text = chain.operators;
    for (NodeId id : chain.nodes) {
      const std::vector<int32_t>& stack = graph_.nodes[id].positions;
      if (stack.empty()) continue;
      const graph::Position& p = graph_.positions[stack[0]];
      text += fmt::format("|{}:{}", p.file, p.line);
    }
    return text + (chain.backward ? "|backward" : "");
  }

  const Graph& graph_;
  const CandidateOptions options_;
  std::vector<int32_t> group_;  // by node
  std::vector<std::vector<NodeId>> groups_;
};

std::string bytes_text(int64_t bytes) {
  const double kib = static_cast<double>(bytes) / 1024;
  if (kib < 1024) return fmt::format("{:.1f} KiB", kib);
  return fmt::format("{:.1f} MiB", kib / 1024);
}

}  // namespace

std::vector<CandidateChain> find_candidates(const Graph& graph, const MatchReport& report,
                                            const CandidateOptions& options) {
  return Finder(graph, report, options).run();
}

const graph::Position* candidate_position(const Graph& graph, const CandidateChain& chain) {
  const graph::Position* any = nullptr;
  for (auto node = chain.nodes.rbegin(); node != chain.nodes.rend(); ++node)
    for (int32_t row : graph.nodes[*node].positions) {
      const graph::Position& position = graph.positions[row];
      if (position.file.find("/torch/") == std::string::npos && !position.file.empty() &&
          position.file[0] != '<')
        return &position;
      if (!any) any = &position;
    }
  return any;
}

std::string candidate_sentence(const Graph& graph, const CandidateChain& chain) {
  const graph::Position* position = candidate_position(graph, chain);
  const std::string place =
      position ? fmt::format("{}:{}", position->file, position->line) : "an unknown place";
  std::string text =
      fmt::format("{}: {} ({} call{}, {} written and read between", place, chain.operators,
                  chain.calls, chain.calls == 1 ? "" : "s", bytes_text(chain.bytes_saved));
  if (chain.share >= 0) text += fmt::format(", {:.1f} % of the time", 100 * chain.share);
  return text + ")";
}

}  // namespace opfuse::match
