#include "opfuse/match/legality.h"

#include <algorithm>

#include "opfuse/match/legality_rows.h"
#include "opfuse/match/words.h"
#include "opfuse/trace/side_stream.h"

namespace opfuse::match {
namespace {

// 1: an inner value is also read outside of the chain (2: only in backward).
Verdict used_outside(const Chain& c) {
  for (ValueId v : c.inner) {
    for (NodeId user : c.context.graph.users[v]) {
      if (c.nodes.contains(user) || c.backward.contains(user)) continue;
      // A mask of the same shape is drawn, or a view of the whole is taken, which is the value
      // itself: where nothing is replaced that is no use of the values.
      const graph::Node& reader = c.context.node(user);
      const bool shape_alone = reader.op == "aten.empty_like" ||
                               std::ranges::find(reader.outputs, v) != reader.outputs.end();
      if (shape_alone && !found_only(*c.match.rule).empty()) continue;
      bool in_backward = (c.context.node(user).region.flags & trace::kGraphTask) != 0;
      return refuse(in_backward ? 2 : 1,
                    fmt::format("{} is also read by {}{}", name_of(c, v), c.at(user),
                                in_backward ? ", in the backward pass of something else" : ""),
                    user);
    }
    if (std::ranges::find(c.context.graph.results, v) != c.context.graph.results.end())
      return refuse(1, fmt::format("{} is also returned", name_of(c, v)),
                    c.context.value(v).producer);
  }
  return std::nullopt;
}

Verdict inner_escapes(const Chain& c) {
  for (ValueId v : c.inner) {
    const graph::Value& value = c.context.value(v);
    NodeId node = value.producer;
    if (value.escapes & graph::kEscapesHook || value.meta.flags & trace::kHasHooks)
      return refuse(2, name_of(c, v) + " has a hook or retain_grad", node);
    if (value.escapes & graph::kEscapesSaved)
      return refuse(2, name_of(c, v) + " is saved by a custom Function", node);
    if (value.escapes & (graph::kEscapesPython | graph::kEscapesStep))
      return refuse(3, name_of(c, v) + " is kept by Python", node);
    if (value.escapes & graph::kEscapesModuleHook)
      return refuse(4, name_of(c, v) + " is seen by a module hook", node);
  }
  return std::nullopt;
}

// 5: an input is written between its first read and the place of the fused operator; 6: through
// another view of its storage.
Verdict input_written(const Chain& c) {
  for (ValueId v : c.inputs) {
    int32_t storage = c.context.value(v).storage;
    if (storage == kNone) continue;
    for (NodeId writer : c.context.writers[storage]) {
      if (writer <= c.first || writer >= c.last || c.nodes.contains(writer)) continue;
      if (writer <= c.context.value(v).producer) continue;  // it made what the chain reads
      const std::vector<ValueId>& writes = c.context.node(writer).writes;
      bool same = std::ranges::find(writes, v) != writes.end();
      return refuse(same ? 5 : 6,
                    fmt::format("the input is written by {} between two reads of the chain{}",
                                c.at(writer), same ? "" : ", through another view"),
                    writer);
    }
  }
  return std::nullopt;
}

// 7: an inner value is written; 8: the chain writes its own input.
Verdict chain_writes(const Chain& c) {
  for (NodeId id : c.match.nodes) {
    // Running statistics: the fused operator returns what they are updated with.
    if (c.context.node(id).op == "aten.native_batch_norm") continue;
    for (ValueId v : c.context.node(id).writes)
      for (ValueId input : c.inputs)
        if (c.context.value(v).storage == c.context.value(input).storage)
          return refuse(8, fmt::format("{} works in place: it writes the chain's input", c.at(id)),
                        id);
  }
  for (ValueId v : c.inner) {
    int32_t storage = c.context.value(v).storage;
    if (storage != kNone && !c.context.writers[storage].empty()) {
      NodeId writer = c.context.writers[storage][0];
      return refuse(7, fmt::format("{} is written in place by {}", name_of(c, v), c.at(writer)),
                    writer);
    }
  }
  return std::nullopt;
}

// 9: the result shares memory with an input, where the fused operator's would not.
Verdict result_aliases(const Chain& c) {
  for (ValueId out : c.outputs)
    for (ValueId in : c.inputs) {
      int32_t storage = c.context.value(out).storage;
      if (storage != kNone && storage == c.context.value(in).storage)
        return refuse(9, "the result shares its memory with an input", c.last);
    }
  return std::nullopt;
}

// 10: the fused operator keeps its input for backward, and the input is written before that.
Verdict written_before_backward(const Chain& c) {
  if (c.match.backward.nodes.empty()) return std::nullopt;
  for (ValueId v : c.inputs) {
    int32_t storage = c.context.value(v).storage;
    if (storage == kNone) continue;
    for (NodeId writer : c.context.writers[storage])
      if (writer > c.last && writer < c.match.backward.nodes.front())
        return refuse(10,
                      fmt::format("the input is written by {} before its backward pass, for which "
                                  "the fused operator keeps it",
                                  c.at(writer)),
                      writer);
  }
  return std::nullopt;
}

// 11: an operator between the chain's operators that can change its values in unknown ways.
Verdict barrier(const Chain& c) {
  for (NodeId id = c.first + 1; id < c.last; ++id) {
    if (c.nodes.contains(id)) continue;
    const graph::Node& node = c.context.node(id);
    bool barrier =
        node.opaque || node.op.starts_with("aten.set_") || node.op.starts_with("aten.resize");
    if (!barrier) continue;
    for (ValueId v : c.context.operands(id))
      if (c.reads_or_makes_storage(c.context.value(v).storage))
        return refuse(
            11,
            fmt::format("{} stands between the chain's operators and may change what they "
                        "read",
                        c.at(id)),
            id);
  }
  return std::nullopt;
}

// 35: what runs beside the device's default stream is ordered by events that no record holds.
Verdict in_default_stream(const Chain& c) {
  for (const std::vector<NodeId>* nodes : {&c.match.nodes, &c.match.backward.nodes})
    for (NodeId id : *nodes)
      if (c.context.node(id).region.flags & trace::kSideStream)
        return refuse(
            35, fmt::format("{} runs in another stream than the device's default one", c.at(id)),
            id);
  return std::nullopt;
}

// 17: autocast, 24: grad or inference mode, 35: thread differ within the chain; 25: it crosses the
// border of a custom Function.
Verdict one_region(const Chain& c) {
  const graph::Node& first = c.context.node(c.first);
  int32_t function = enclosing_scope(c.context.graph, c.first, ScopeKind::kFunction);
  for (NodeId id : c.match.nodes) {
    const graph::Node& node = c.context.node(id);
    uint16_t differs = node.region.flags ^ first.region.flags;
    if (enclosing_scope(c.context.graph, id, ScopeKind::kFunction) != function)
      return refuse(25, fmt::format("{} stands on the other side of a custom Function", c.at(id)),
                    id);
    if (differs & trace::kAutocast)
      return refuse(17, fmt::format("autocast changes before {}", c.at(id)), id);
    if (differs & (trace::kGradMode | trace::kInferenceMode | trace::kGraphTask))
      return refuse(24, fmt::format("grad mode changes before {}", c.at(id)), id);
    if (node.thread != first.thread)
      return refuse(35, fmt::format("{} runs on another thread", c.at(id)), id);
  }
  return in_default_stream(c);
}

// 22: two inputs in the same memory.
Verdict inputs_overlap(const Chain& c) {
  std::set<int32_t> storages;
  for (ValueId v : c.match.inputs) {
    int32_t storage = v == kNone ? kNone : c.context.value(v).storage;
    if (storage != kNone && !storages.insert(storage).second)
      return refuse(22, "two inputs share their memory", c.first);
  }
  return std::nullopt;
}

// A result, or read by the chain; statistics that an operator makes for its backward are neither.
bool is_part_of_result(const Chain& c, ValueId v) {
  return c.outputs.contains(v) || std::ranges::any_of(c.context.graph.users[v], [&](NodeId user) {
           return c.nodes.contains(user);
         });
}

// 23: a detach inside the chain, or values of which only some require grad.
Verdict detached(const Chain& c) {
  bool grad_mode = (c.context.node(c.first).region.flags & trace::kGradMode) != 0;
  bool needs_grad = std::ranges::any_of(c.inputs, [&](ValueId v) {
    return (c.context.value(v).meta.flags & trace::kRequiresGrad) != 0;
  });
  if (!grad_mode || !needs_grad) return std::nullopt;
  for (NodeId id : c.match.nodes) {
    const graph::Node& node = c.context.node(id);
    bool dead = node.op == "aten.detach" && !node.outputs.empty() && node.outputs[0] != kNone &&
                c.context.graph.users[node.outputs[0]].empty();
    if (dead) continue;
    if (node.op == "aten.detach")
      return refuse(23, fmt::format("{} stops the gradient inside the chain", c.at(id)), id);
    // Of several inputs some may need no gradient, and then nor does what is made of them alone.
    const bool wanted = std::ranges::any_of(c.context.operands(id), [&](ValueId v) {
      return (c.context.value(v).meta.flags & trace::kRequiresGrad) != 0;
    });
    if (!wanted && c.inputs.size() > 1) continue;
    for (ValueId v : node.outputs)
      if (v != kNone && is_part_of_result(c, v) &&
          !(c.context.value(v).meta.flags & trace::kRequiresGrad))
        return refuse(23, fmt::format("the input requires grad, {} does not", name_of(c, v)), id);
  }
  return std::nullopt;
}

// 27, 46: the backward pass was itself differentiated.
Verdict double_backward(const Chain& c) {
  for (NodeId id : c.match.backward.nodes)
    if (c.context.node(id).region.flags & trace::kCreateGraph)
      return refuse(c.match.function_scope == kNone ? 27 : 46,
                    fmt::format("a second derivative is taken of {}", c.at(id)), id);
  return std::nullopt;
}

// 27, 32: contributions to the input's gradient that anything but the engine's own sum reads.
Verdict gradient_summed_elsewhere(const Chain& c) {
  const std::vector<ValueId>& contributions = c.match.backward.grad_inputs;
  if (contributions.size() < 2 || double_backward(c)) return std::nullopt;
  if (c.inputs.size() > 1) return std::nullopt;  // each of several inputs has a gradient of its own
  bool recomputed = (c.context.node(c.first).region.flags & trace::kCheckpointRecompute) != 0;
  for (ValueId v : contributions)
    for (NodeId user : c.context.graph.users[v])
      if (!c.backward.contains(user) && !graph::is_engine_accumulation(c.context.graph, user))
        return refuse(
            recomputed ? 32 : 27,
            fmt::format("a part of the input's gradient is read by {}, inside another backward{}",
                        c.at(user), recomputed ? " (a checkpoint's)" : ""),
            user);
  return std::nullopt;
}

// The frame in which a mode's or a subclass's own code has taken the operator, or kNone. That of
// torch.set_default_device only looks at operators that make tensors of nothing.
int32_t handler_frame(const Chain& c, NodeId id) {
  for (int32_t row : c.context.node(id).positions) {
    std::string_view function = c.context.graph.positions[row].function;
    if (c.context.graph.positions[row].file.ends_with("torch/utils/_device.py")) continue;
    if (function.ends_with("__torch_function__") || function.ends_with("__torch_dispatch__"))
      return row;
  }
  return kNone;
}

// 34: torch's own handler of tensor subclasses ran; 39: somebody's handler, which is off while it
// runs, so that no flag tells.
Verdict handlers(const Chain& c) {
  for (NodeId id : c.match.nodes) {
    int32_t row = handler_frame(c, id);
    if (row == kNone) continue;
    const graph::Position& at = c.context.graph.positions[row];
    if (at.file.ends_with("torch/_tensor.py"))
      return refuse(34, fmt::format("{} is called with a tensor subclass", c.at(id)), id);
    return refuse(
        39,
        fmt::format("{} goes through {}, which would see another operator", c.at(id), at.function),
        id);
  }
  return std::nullopt;
}

// 35: one device.
Verdict one_device(const Chain& c) {
  int8_t device = c.context.value(c.match.outputs[0]).meta.device;
  for (ValueId v : c.inputs)
    if (c.context.value(v).meta.device != device)
      return refuse(35, "the chain crosses devices", c.last);
  return std::nullopt;
}

// 39: active modes; 40: saved-tensor hooks.
Verdict modes(const Chain& c) {
  for (NodeId id : c.match.nodes) {
    uint16_t flags = c.context.node(id).region.flags;
    if (flags & trace::kPythonMode)
      return refuse(
          39, fmt::format("a dispatch or function mode, or functorch, is active at {}", c.at(id)),
          id);
    if (flags & trace::kSavedTensorHooks)
      return refuse(40, fmt::format("saved-tensor hooks are active at {}", c.at(id)), id);
  }
  return std::nullopt;
}

// 41: hooks on the result or its autograd node.
Verdict grad_fn_hooks(const Chain& c) {
  for (ValueId v : c.outputs)
    if (c.context.value(v).escapes & graph::kEscapesHook)
      return refuse(41, "the result, or its grad_fn, has a hook", c.last);
  return std::nullopt;
}

// 42: memory that numpy, DLPack or communication can write.
Verdict exported(const Chain& c) {
  for (const std::set<ValueId>* values : {&c.inputs, &c.inner, &c.outputs})
    for (ValueId v : *values) {
      const graph::Value& value = c.context.value(v);
      bool outside =
          value.storage != kNone && c.context.graph.storages[value.storage].opaque_writes;
      if (outside || value.meta.flags & trace::kExported || value.escapes & graph::kEscapesExport)
        return refuse(42, "the chain's memory is shared with numpy, DLPack or communication",
                      c.first);
    }
  return std::nullopt;
}

// A result that is needed before the whole chain has run cannot come from one operator at its end.
Verdict result_needed_early(const Chain& c) {
  for (ValueId v : c.outputs)
    for (NodeId user : c.context.graph.users[v])
      if (!c.nodes.contains(user) && user < c.last)
        return refuse(
            1, fmt::format("a result is read by {} before the chain is complete", c.at(user)),
            user);
  return std::nullopt;
}

// 30: the target gives a parameter other values, and something else reads it or trains it.
Verdict folded(const Chain& c) {
  for (const std::string& name : c.match.rule->folds) {
    const auto parameter = std::ranges::find(c.match.rule->parameters, name, &RuleParameter::name);
    const ValueId v = c.match.inputs[parameter - c.match.rule->parameters.begin()];
    if (v == kNone) continue;
    const graph::Value& value = c.context.value(v);
    const bool recorded = (c.context.node(c.last).region.flags & trace::kGradMode) != 0;
    if (recorded && (value.meta.flags & trace::kRequiresGrad) != 0)
      return refuse(30, fmt::format("'{}' is trained: a folded weight would not be", name), c.last);
    for (size_t other = 0; other < c.context.graph.values.size(); ++other) {
      const bool same =
          static_cast<ValueId>(other) == v ||
          (value.storage != kNone && c.context.graph.values[other].storage == value.storage);
      if (!same) continue;
      for (NodeId user : c.context.graph.users[other])
        if (!c.nodes.contains(user))
          return refuse(30, fmt::format("'{}' is also used by {}", name, c.at(user)), user);
    }
  }
  return std::nullopt;
}

constexpr Verdict (*kRows[])(const Chain&) = {used_outside,    inner_escapes,
                                              input_written,   chain_writes,
                                              result_aliases,  written_before_backward,
                                              barrier,         dtypes,
                                              inner_casts,     one_region,
                                              no_kernel,       broadcast,
                                              layout,          inputs_overlap,
                                              detached,        double_backward,
                                              plain_tensors,   one_device,
                                              modes,           grad_fn_hooks,
                                              exported,        result_needed_early,
                                              handlers,        gradient_summed_elsewhere,
                                              random_inside,   folded,
                                              not_replaced_yet};

// What surrounds the chain explains what else is odd about it, and is named first.
bool is_surrounding(int row) {
  constexpr int kSurrounding[] = {27, 32, 34, 39, 40, 46};
  return std::ranges::find(kSurrounding, row) != std::end(kSurrounding);
}

}  // namespace

std::vector<Refusal> check_legality(const Context& context, const Match& match) {
  Chain chain(context, match);
  std::vector<Refusal> refusals;
  for (auto row : kRows)
    if (Verdict verdict = row(chain)) refusals.push_back(std::move(*verdict));
  std::ranges::stable_sort(refusals, {}, [](const Refusal& refusal) {
    constexpr int kLast = 1000;  // true of every chain of the rule
    return std::pair(!is_surrounding(refusal.row), refusal.row > 0 ? refusal.row : kLast);
  });
  return refusals;
}

void refuse_lone_recomputations(const Context& context, std::vector<Match>* matches) {
  auto place = [&](const Match& match) -> int32_t {
    const std::vector<int32_t>& positions = context.node(match.nodes.back()).positions;
    return positions.empty() ? kNone : positions[0];
  };
  auto recomputed = [&](const Match& match) {
    return (context.node(match.nodes[0]).region.flags & trace::kCheckpointRecompute) != 0;
  };
  std::set<int32_t> forward;
  for (const Match& match : *matches)
    if (!recomputed(match)) forward.insert(place(match));
  for (Match& match : *matches)
    if (recomputed(match) && (place(match) == kNone || !forward.contains(place(match))))
      match.refusals.push_back(
          {32,
           "the chain is recomputed for a checkpoint whose forward pass is not in "
           "the record",
           match.nodes[0]});
}

}  // namespace opfuse::match
