#include "opfuse/match/near_miss.h"

#include <algorithm>

#include <fmt/format.h>

#include "opfuse/graph/schema.h"
#include "opfuse/graph/text.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::match {
namespace {

using graph::Graph;
using graph::kNone;
using graph::NodeId;
using graph::ValueId;

std::vector<NodeId> original_nodes(const Context& context, const std::vector<NodeId>& nodes) {
  std::vector<NodeId> result;
  for (NodeId node : nodes) result.push_back(context.form.origin[node]);
  std::ranges::sort(result);
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

NodeId producer(const Context& context, ValueId value) {
  NodeId node = context.form.graph.values[value].producer;
  return node == kNone ? kNone : context.form.origin[node];
}

std::string describe_value(const Context& context, ValueId value) {
  if (value == kNone) return "nothing";
  const graph::TensorMeta& meta = context.form.graph.values[value].meta;
  if (meta.number && context.form.graph.values[value].producer == kNone)
    return fmt::format("{:.9g}", *meta.number);
  NodeId node = producer(context, value);
  if (node != kNone) return "the result of " + where(context.graph, node);
  return "a tensor from outside of the step";
}

std::string operator_of(const Pattern& pattern, ValueId value) {
  const Graph& g = pattern.graph();
  if (value == kNone) return "nothing";
  const graph::Value& v = g.values[value];
  if (v.producer != kNone) return g.nodes[v.producer].op;
  return v.meta.number ? fmt::format("{:.9g}", *v.meta.number) : "a tensor";
}

bool is_cast_of(const Context& context, ValueId value, ValueId other) {
  NodeId node = context.form.graph.values[value].producer;
  if (node == kNone) return false;
  const graph::Node& n = context.form.graph.nodes[node];
  return is_cast(n) && (other == kNone || n.inputs[0].values[0] == other);
}

Refusal binding_refusal(const Context& context, const Mismatch& m, NodeId root) {
  const graph::Value& a = context.form.graph.values[m.value];
  const graph::Value& b = context.form.graph.values[m.expected];
  if (a.storage != kNone && a.storage == b.storage && a.version != b.version) {
    const graph::Value& later = a.version > b.version ? a : b;
    NodeId writer = later.producer == kNone ? kNone : context.form.origin[later.producer];
    bool same = writer != kNone && std::ranges::any_of(context.node(writer).writes, [&](ValueId w) {
                  return w == m.value || w == m.expected;
                });
    std::string by = writer == kNone ? "from outside" : "by " + where(context.graph, writer);
    return {same || writer == kNone ? 5 : 6,
            fmt::format("the input is written {} between its two reads{}", by,
                        same || writer == kNone ? "" : ", through another view"),
            writer == kNone ? root : writer};
  }
  if (is_cast_of(context, m.value, m.expected) || is_cast_of(context, m.expected, m.value)) {
    ValueId cast = is_cast_of(context, m.value, m.expected) ? m.value : m.expected;
    NodeId node = producer(context, cast);
    return {16,
            fmt::format("{} stands inside the chain: one read is cast, the other is not",
                        where(context.graph, node)),
            node};
  }
  return {0,
          fmt::format("expected the same tensor at both places, found {} and {}",
                      describe_value(context, m.expected), describe_value(context, m.value)),
          producer(context, m.value) == kNone ? root : producer(context, m.value)};
}

Refusal attribute_refusal(const Context& context, const Pattern& pattern, const Mismatch& m) {
  NodeId node = producer(context, m.value);
  const graph::Node& found = context.form.graph.nodes[context.form.graph.values[m.value].producer];
  const graph::Node& wanted =
      pattern.graph().nodes[pattern.graph().values[m.pattern_value].producer];
  std::string name = found.schema ? found.schema->arguments[m.input].name : fmt::to_string(m.input);
  if (m.kind == Mismatch::Kind::kUnknown)
    return {29, fmt::format("argument '{}' of {} is not known", name, where(context.graph, node)),
            node};
  return {29,
          fmt::format("argument '{}' of {} is {}, expected {}", name, where(context.graph, node),
                      graph::print_attr(found.inputs[m.input].attr),
                      graph::print_attr(wanted.inputs[m.input].attr)),
          node};
}

Refusal operator_refusal(const Context& context, const Pattern& pattern, const Mismatch& m,
                         NodeId root) {
  NodeId node = m.value == kNone ? kNone : producer(context, m.value);
  if (m.value != kNone && is_cast_of(context, m.value, kNone))
    return {16, fmt::format("{}, a cast, stands inside the chain", where(context.graph, node)),
            node};
  return {0,
          fmt::format("expected {}, found {}", operator_of(pattern, m.pattern_value),
                      describe_value(context, m.value)),
          node == kNone ? root : node};
}

std::string number_told(const Pattern& pattern, int hole) {
  if (hole < 0) return "a whole number";
  const std::vector<std::string> names = pattern.rule->number_names();
  return number_text(pattern.spelling->numbers[hole], names);
}

std::string guard_told(const Pattern& pattern, const Guard& guard) {
  const std::vector<std::string> names = pattern.rule->number_names();
  switch (guard.kind) {
    case Guard::Kind::kNotSame:
      return fmt::format("'{}' and '{}' are the same value", guard.a, guard.b);
    case Guard::Kind::kSameShape:
      return fmt::format("'{}' and '{}' have not the same shape", guard.a, guard.b);
    case Guard::Kind::kOtherShape:
      return fmt::format("'{}' and '{}' have the same shape", guard.a, guard.b);
    case Guard::Kind::kCompare:
      return fmt::format("{} {} {} does not hold", number_text(guard.left, names), guard.sign,
                         number_text(guard.right, names));
  }
  return "";
}

std::string shape_told(const graph::TensorMeta& meta) {
  std::string text;
  for (int64_t size : meta.shape) text += fmt::format("{}{}", text.empty() ? "" : ", ", size);
  return "[" + text + "]";
}

// Every operator fits, but a condition of the rule does not hold.
Refusal condition_refusal(const Context& context, const Pattern& pattern, const Mismatch& m,
                          NodeId root) {
  const Rule& rule = *pattern.rule;
  const auto named = [&](int i) {
    return i < 0 ? std::string("the result") : fmt::format("'{}'", rule.parameters[i].name);
  };
  const graph::TensorMeta* meta =
      m.value == kNone ? nullptr : &context.form.graph.values[m.value].meta;
  switch (m.kind) {
    case Mismatch::Kind::kShape:
      return {19,
              fmt::format("{} has the shape {}, which is not that of the rule", named(m.input),
                          shape_told(*meta)),
              root};
    case Mismatch::Kind::kDtype:
      return {15,
              fmt::format("{} and the chain differ in dtype: {}", named(m.input),
                          dtype_name(meta->dtype)),
              root};
    case Mismatch::Kind::kNumber:
      return {29,
              fmt::format("expected the number {}, found {:.9g}", number_told(pattern, m.input),
                          m.number),
              root};
    case Mismatch::Kind::kRandom:
      return {
          13,
          fmt::format("{} is not made by an operator that draws random numbers", named(m.input)),
          root};
    default:
      return {0, guard_told(pattern, rule.guards[m.input]), root};
  }
}

Refusal refusal_for(const Context& context, const Pattern& pattern, const Mismatch& m,
                    NodeId root) {
  switch (m.kind) {
    case Mismatch::Kind::kBinding:
      return binding_refusal(context, m, root);
    case Mismatch::Kind::kConstant:
      return {29,
              fmt::format("expected the constant {}, found {}",
                          operator_of(pattern, m.pattern_value), describe_value(context, m.value)),
              root};
    case Mismatch::Kind::kAttribute:
    case Mismatch::Kind::kUnknown:
      return attribute_refusal(context, pattern, m);
    case Mismatch::Kind::kNothing:
    case Mismatch::Kind::kOperator:
    case Mismatch::Kind::kCast:
      return operator_refusal(context, pattern, m, root);
    default:
      return condition_refusal(context, pattern, m, root);
  }
}

// "{beta}" becomes the number, or "a tensor", that beta is bound to.
std::string filled(const Context& context, const Pattern& pattern, const Solver& solver) {
  std::string why = pattern.near->why;
  for (const std::string& name : pattern.near->others) {
    std::string hole = "{" + name + "}";
    size_t at = why.find(hole);
    if (at == std::string::npos) continue;
    const graph::TensorMeta& meta =
        context.form.graph.values[solver.values()[index_of(pattern, name)]].meta;
    why.replace(at, hole.size(), meta.number ? fmt::format("{:.9g}", *meta.number) : "a tensor");
  }
  return why;
}

}  // namespace

std::optional<NearMiss> describe_mismatch(const Context& context, const Pattern& pattern,
                                          const Mismatch& mismatch) {
  // All operators but one, or half of them where only an argument differs.
  size_t size = pattern.graph().nodes.size(), matched = mismatch.nodes.size();
  bool argument =
      mismatch.kind == Mismatch::Kind::kAttribute || mismatch.kind == Mismatch::Kind::kUnknown;
  if (matched < 2 || (matched + 1 < size && !(argument && 2 * matched >= size)))
    return std::nullopt;
  NearMiss miss;
  miss.rule = pattern.rule;
  miss.nodes = original_nodes(context, mismatch.nodes);
  miss.refusal = refusal_for(context, pattern, mismatch, miss.nodes.back());
  miss.certain = miss.refusal.row == 5 || miss.refusal.row == 6 || miss.refusal.row == 16;
  return miss;
}

std::optional<NearMiss> describe_neighbour(const Context& context, const Pattern& pattern,
                                           const Solver& solver) {
  const bool fits = std::ranges::all_of(pattern.near->guards, [&](const Guard& guard) {
    return guard_holds(context.form.graph, pattern, guard, solver.values(), solver.numbers());
  });
  if (!fits) return std::nullopt;
  NearMiss miss;
  miss.rule = pattern.rule;
  miss.nodes = original_nodes(context, solver.nodes());
  std::string title = pattern.near->title;
  std::string why = filled(context, pattern, solver);
  miss.refusal = {0, fmt::format("is a {}{}{}", title, why.empty() ? "" : ": ", why),
                  miss.nodes.back()};
  miss.certain = true;
  return miss;
}

}  // namespace opfuse::match
