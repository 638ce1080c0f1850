// Puts the traced operators of a target into the graph in place of a match.

#include <fmt/format.h>

#include "opfuse/rewrite/graph_rewriter.h"

namespace opfuse::rewrite {

// Carries values, storages and nodes of one trace over into the graph that is rewritten.
class Splice {
 public:
  Splice(GraphRewriter* rewriter, const match::Match& match, const MatchTrace& trace)
      : rewriter_(*rewriter),
        out_(rewriter->out_),
        match_(match),
        contributions_(trace.contributions),
        trace_(*trace.target),
        values_(trace_.graph.values.size(), kNone) {}

  void run() {
    for (size_t i = 0; i < match_.inputs.size(); i++) bind(trace_.inputs[i], match_.inputs[i]);
    for (size_t i = 0; i < match_.outputs.size(); i++) bind(trace_.outputs[i], match_.outputs[i]);
    forward();
    if (!match_.backward.nodes.empty()) backward();
  }

 private:
  // Every name that the trace has for one view: autograd may give it several.
  void bind(ValueId traced, ValueId value) {
    if (traced == kNone || value == kNone) return;
    const graph::Value& view = trace_.graph.values[traced];
    if (view.storage != kNone && out_.values[value].storage != kNone)
      storages_[view.storage] = {out_.values[value].storage,
                                 out_.values[value].version - view.version};
    for (size_t i = 0; i < values_.size(); i++)
      if (same_view(trace_.graph.values[i], view)) values_[i] = value;
  }

  static bool same_view(const graph::Value& a, const graph::Value& b) {
    return a.storage != kNone && a.storage == b.storage && a.version == b.version &&
           a.meta.dtype == b.meta.dtype && a.meta.offset == b.meta.offset &&
           a.meta.shape == b.meta.shape && a.meta.strides == b.meta.strides;
  }

  ValueId value(ValueId traced) {
    if (traced == kNone) return kNone;
    if (values_[traced] != kNone) return values_[traced];
    graph::Value copy = trace_.graph.values[traced];
    copy.producer = kNone;
    copy.escapes = 0;
    copy.name.clear();
    if (copy.storage != kNone) {
      auto [place, is_new] = storages_.try_emplace(copy.storage);
      if (is_new) {
        place->second.first = static_cast<int32_t>(out_.storages.size());
        graph::Storage storage;
        storage.bytes = trace_.graph.storages[copy.storage].bytes;
        out_.storages.push_back(storage);
      }
      copy.storage = place->second.first;
      copy.version += place->second.second;
    }
    out_.values.push_back(std::move(copy));
    rewriter_.dead_.push_back(false);
    return values_[traced] = static_cast<ValueId>(out_.values.size()) - 1;
  }

  // `first`: of several operators that stand for one, the others have no time of their own.
  Node node(NodeId traced, const Node& like, bool first) {
    Node copy = trace_.graph.nodes[traced];
    for (graph::Input& input : copy.inputs)
      for (ValueId& one : input.values) one = value(one);
    for (auto* list : {&copy.outputs, &copy.writes, &copy.written})
      for (ValueId& one : *list) one = value(one);
    copy.region = like.region;
    copy.scope = like.scope;
    copy.positions = like.positions;
    copy.thread = like.thread;
    copy.event = kNone;
    copy.forward_sequence = -1;
    copy.dur_ns = first ? -1 : 0;
    return copy;
  }

  void forward() {
    const Node last = out_.nodes[match_.nodes.back()];
    for (const NodeId id : match_.nodes) rewriter_.remove(id);
    for (const NodeId id : trace_.forward) {
      Node copy = node(id, last, id == trace_.forward.front());
      if (match_.function_scope != kNone) {
        copy.scope = out_.scopes[match_.function_scope].parent;
        if (rewriter_.grad_mode_outside(match_)) copy.region.flags |= trace::kGradMode;
        rewriter_.keep_shared_frames(match_.nodes, &copy);
      }
      rewriter_.inserted_[match_.nodes.back()].push_back(std::move(copy));
    }
    for (const ValueId output : match_.outputs) {
      rewriter_.dead_[output] = false;
      rewriter_.mark_requires_grad(match_, last, output);
    }
  }

  void backward() {
    const match::BackwardChain& chain = match_.backward;
    // A name for the cotangent: the engine may hand it on as the gradient of an input.
    bind(trace_.cotangent, chain.grad_output);
    const NodeId at = chain.nodes.front();
    const Node first = out_.nodes[at];
    std::map<int32_t, int32_t> scopes;
    for (const NodeId id : chain.nodes) rewriter_.remove(id);
    for (const NodeId id : trace_.backward) {
      Node copy = node(id, first, id == trace_.backward.front());
      const int32_t traced = enclosing_scope(trace_.graph, id, graph::ScopeKind::kAutogradNode);
      if (traced != kNone) {
        auto [scope, is_new] = scopes.try_emplace(traced, kNone);
        if (is_new)
          scope->second = rewriter_.scope_named(first.scope, trace_.graph.scopes[traced].name);
        copy.scope = scope->second;
      }
      rewriter_.keep_shared_frames(chain.nodes, &copy);
      rewriter_.inserted_[at].push_back(std::move(copy));
    }
    for (size_t i = 0; i < contributions_.size(); i++) gradient(i);
  }

  void gradient(size_t parameter) {
    std::vector<ValueId> old = contributions_[parameter];
    const bool handed_on = std::erase(old, match_.backward.grad_output) > 0;
    if (old.empty()) return;
    const ValueId now = value(trace_.gradients[parameter]);
    rewriter_.rename(old.back(), now);
    for (size_t i = 0; i + 1 < old.size(); i++) rewriter_.drop_contribution(old[i], now);
    if (handed_on) drop_sum_with_cotangent(now);
  }

  // The chain handed the cotangent on as well, and the engine added the rest: now it is one value.
  void drop_sum_with_cotangent(ValueId now) {
    const ValueId cotangent = match_.backward.grad_output;
    for (size_t i = 0; i < out_.nodes.size(); i++) {
      const NodeId id = static_cast<NodeId>(i);
      if (rewriter_.removed_[i] || !graph::is_engine_accumulation(out_, id)) continue;
      const Node& sum = out_.nodes[i];
      const ValueId left = rewriter_.resolve(sum.inputs[0].values[0]),
                    right = rewriter_.resolve(sum.inputs[1].values[0]);
      if (!(left == cotangent && right == now) && !(left == now && right == cotangent)) continue;
      const std::vector<ValueId> sums = sum.outputs;
      rewriter_.remove(id);
      for (const ValueId one : sums)
        if (one != kNone && one != cotangent) rewriter_.rename(one, now);
      return;
    }
    OPFUSE_CHECK(false, "a cotangent that is handed on is summed by the engine");
  }

  GraphRewriter& rewriter_;
  Graph& out_;
  const match::Match& match_;
  const std::vector<std::vector<ValueId>>& contributions_;
  const TargetTrace& trace_;
  std::vector<ValueId> values_;  // by value of the trace
  // By storage of the trace: the one here, and what its versions are ahead.
  std::map<int32_t, std::pair<int32_t, uint32_t>> storages_;
};

void GraphRewriter::splice(const match::Match& match, const MatchTrace& trace) {
  Splice(this, match, trace).run();
}

}  // namespace opfuse::rewrite
