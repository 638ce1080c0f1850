#include "opfuse/rewrite/legality.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "opfuse/rewrite/span_walk.h"

namespace opfuse::rewrite {
namespace {

using match::Refusal;
using Refused = std::optional<Refusal>;

Refused refuse(int row, std::string reason) {
  return Refusal{row, std::move(reason), graph::kNone};
}

Refused source_row(const SiteFacts& facts) {
  if (facts.opted_out) return refuse(0, "the line says \"# opfuse: off\"");
  if (!facts.has_positions)
    return refuse(
        0,
        "this Python keeps no columns of its instructions (needs 3.11 or later, without -X "
        "no_debug_ranges), so the chain's place in the source is not certain");
  if (!facts.source_matches)
    return refuse(36,
                  fmt::format("{}: {}", facts.file,
                              facts.source_problem.empty() ? "its source is not the running code"
                                                           : facts.source_problem));
  return {};
}

Refused running_row(const SiteFacts& facts) {
  const auto row43 = [&](std::string_view what) {
    return refuse(43, fmt::format("{} {}", facts.qualname, what));
  };
  if (facts.is_module_level)
    return refuse(43,
                  "the chain stands in module-level code, which runs once and cannot be exchanged; "
                  "move it into a function");
  if (facts.is_generator)
    return row43("is a generator: a suspended one would go on with the old code");
  if (facts.is_coroutine)
    return row43("is a coroutine: a suspended one would go on with the old code");
  if (facts.is_nested)
    return row43("is defined inside another function, which makes it anew at each call");
  if (facts.running_now)
    return row43("is still running at the step boundary (the training loop, or a frame below it)");
  if (facts.functions_found < 1) return row43("has code that no function object holds");
  return {};
}

Refused code_row(const SiteFacts& facts) {
  if (facts.scripted_or_compiled)
    return refuse(
        38, fmt::format("{} is compiled or scripted already, and an edit would be ignored there",
                        facts.qualname));
  if (facts.uses_frame_magic)
    return refuse(
        3, fmt::format("{} looks at its own frame (locals(), eval, exec, sys._getframe), so its "
                       "inner values may be read",
                       facts.qualname));
  if (!facts.kept_names.empty())
    return refuse(3, fmt::format("an inner value is kept: {}", facts.kept_names.front()));
  if (!facts.hook_notes.empty())
    return refuse(4, fmt::format("a hook sees the chain: {}", facts.hook_notes.front()));
  return {};
}

Refused read_row(const ReadFact& read) {
  const std::string& name = read.text;
  if (read.rebound_inside)
    return refuse(33, fmt::format("{} is bound anew inside the chain", name));
  if (read.kind == "property")
    return refuse(
        36, fmt::format("{} is a property or computed attribute: each read may give another value",
                        name));
  if (read.kind == "attribute")
    return refuse(
        36, fmt::format("{} is an attribute of something else than a plain nn.Module: each read "
                        "may give another value",
                        name));
  return {};
}

Refused function_row(const SiteFacts& facts) {
  if (facts.span_kind != "function_apply") return {};
  const std::string& name = facts.function_class;
  if (facts.function_subclassed)
    return refuse(44, fmt::format("{}.apply is not torch's own", name));
  if (facts.function_has_jvp) return refuse(26, fmt::format("{} has a jvp of its own", name));
  if (facts.function_has_vmap)
    return refuse(26, fmt::format("{} has a vmap rule of its own", name));
  if (facts.function_once_differentiable)
    return refuse(
        26, fmt::format("the backward of {} is once_differentiable: a second derivative is an "
                        "error today",
                        name));
  if (!facts.function_straight_line)
    return refuse(
        25, fmt::format("{} is not straight-line code: {}", name,
                        facts.function_problem.empty() ? "not proved" : facts.function_problem));
  return {};
}

SpanProof prove_apply(const match::Match& match, const SiteFacts& facts) {
  const auto fail = [](std::string why) { return SpanProof{refuse(36, std::move(why)), {}, {}}; };
  if (match.function_scope == graph::kNone)
    return fail(fmt::format("the chain is not the forward of {}", facts.function_class));
  if (facts.operations.size() != 1) return fail("the call of apply is not alone in its expression");
  const OperationFact& call = facts.operations[0];
  if (call.callee != "Function.apply:" + facts.function_class)
    return SpanProof{refuse(44, fmt::format("{} is called where {}.apply was recorded", call.callee,
                                            facts.function_class)),
                     {},
                     {}};
  if (call.span.begin != facts.span.begin || call.span.end != facts.span.end)
    return fail("the call of apply is not the whole expression");
  if (call.arguments.size() != 1 || match.inputs.size() != 1 || facts.argument_sources.size() != 1)
    return fail(fmt::format("{}.apply is called with other than one positional argument",
                            facts.function_class));
  if (!call.arguments[0].starts_with("read:") && call.arguments[0] != "expr")
    return fail(fmt::format("the argument of {}.apply is not one value", facts.function_class));
  return {std::nullopt, facts.argument_sources, {}};
}

using PlaceKey = std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t>;

PlaceKey place_key(const graph::Position& at) {
  return {at.code, at.line, at.column, at.end_line, at.end_column};
}

// Line (from one) and byte column of an offset, as Python counts them.
std::pair<int32_t, int32_t> line_column(std::string_view text, int64_t offset) {
  int32_t line = 1;
  int64_t start = text.starts_with("\xEF\xBB\xBF") ? 3 : 0;  // a BOM is no column
  for (int64_t i = start; i < offset; i++) {
    const bool ends =
        text[i] == '\n' || (text[i] == '\r' && (i + 1 == offset || text[i + 1] != '\n'));
    if (!ends) continue;
    line++;
    start = i + 1;
  }
  return {line, static_cast<int32_t>(offset - start)};
}

// Places of the span's operations, with the code object that the record knows them by.
std::vector<PlaceKey> operation_places(const graph::Graph& graph, const match::Match& match,
                                       const SiteFacts& facts) {
  std::vector<PlaceKey> places;
  for (const OperationFact& operation : facts.operations) {
    const auto [line, column] = line_column(facts.text, operation.span.begin);
    const auto [end_line, end_column] = line_column(facts.text, operation.span.end);
    for (const graph::NodeId node : match.nodes)
      for (const int32_t row : graph.nodes[node].positions) {
        const PlaceKey key = place_key(graph.positions[row]);
        if (key == PlaceKey{std::get<0>(key), line, column, end_line, end_column})
          places.push_back(key);
      }
  }
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  return places;
}

bool stands_at(const graph::Graph& graph, const graph::Node& node,
               const std::vector<PlaceKey>& places) {
  return std::any_of(node.positions.begin(), node.positions.end(), [&](int32_t row) {
    return std::binary_search(places.begin(), places.end(), place_key(graph.positions[row]));
  });
}

}  // namespace

Refused refusal_from_facts(const SiteFacts& facts) {
  for (const auto rows : {source_row, running_row, code_row})
    if (Refused refusal = rows(facts)) return refusal;
  if (!facts.span_problem.empty() || facts.span_kind.empty())
    return refuse(36, fmt::format("the chain is not one expression that can be exchanged: {}",
                                  facts.span_problem.empty() ? "not proved" : facts.span_problem));
  for (const ReadFact& read : facts.reads)
    if (Refused refusal = read_row(read)) return refusal;
  // A module may be another one at the next call, and its identity is the user's business.
  for (const OperationFact& operation : facts.operations) {
    if (operation.callee.starts_with("module:"))
      return refuse(37,
                    fmt::format("{} is called as a module, which may be exchanged or subclassed",
                                operation.callee.substr(7)));
    if (operation.callee.starts_with("unknown:"))
      return refuse(44, fmt::format("{} resolves to something else than the operator of that name",
                                    operation.callee.substr(8)));
  }
  return function_row(facts);
}

SpanProof prove_span(const graph::Graph& graph, const match::Match& match, const SiteFacts& facts) {
  if (facts.span_kind == "function_apply") return prove_apply(match, facts);
  if (match.function_scope != graph::kNone)
    return {
        refuse(25, "the chain is the forward of a custom Function, but its caller is not the edit"),
        {},
        {}};
  return walk_span(graph, match, facts);
}

Refused foreign_operator(const graph::Graph& graph, const match::MatchReport& report,
                         const match::Site& site, const SiteFacts& facts) {
  std::vector<PlaceKey> places;
  std::vector<bool> own(graph.nodes.size());
  for (const int index : site.matches) {
    const match::Match& match = report.matches[index];
    for (const graph::NodeId node : match.nodes) own[node] = true;
    for (const graph::NodeId node : match.backward.nodes) own[node] = true;
    if (places.empty()) places = operation_places(graph, match, facts);
    for (const graph::NodeId node : match.nodes)
      if (!stands_at(graph, graph.nodes[node], places))
        return Refusal{
            36, fmt::format("{} ran at another place than the one to edit", graph.nodes[node].op),
            node};
  }
  for (size_t i = 0; i < graph.nodes.size(); i++) {
    if (own[i]) continue;
    if (stands_at(graph, graph.nodes[i], places))
      return Refusal{36,
                     fmt::format("{} ran at the same place without being the chain in that call",
                                 graph.nodes[i].op),
                     static_cast<graph::NodeId>(i)};
  }
  return {};
}

}  // namespace opfuse::rewrite
