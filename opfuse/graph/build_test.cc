#include "opfuse/graph/build.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "opfuse/graph/validate.h"

namespace opfuse::graph {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using trace::ArgumentKind;
using trace::ArgumentRow;
using trace::EventKind;
using trace::EventTable;

// Writes tables by hand: tensors are rows on storages of four floats.
class Step {
 public:
  int32_t storage() {
    table.storages.push_back({.session_id = static_cast<int64_t>(table.storages.size()),
                              .bytes = 16,
                              .external = false,
                              .label = 0});
    return static_cast<int32_t>(table.storages.size()) - 1;
  }
  int32_t tensor(int32_t storage, int64_t offset = 0, int64_t size = 4, uint16_t flags = 0) {
    trace::TensorRow row;
    row.tensor = static_cast<int32_t>(table.tensors.size());
    row.storage = storage;
    row.offset = offset;
    row.dtype = DType::kF32;
    row.device = 0;
    row.flags = flags;
    row.shape_known = true;
    row.shape = {size};
    row.strides = {1};
    table.tensors.push_back(row);
    return row.tensor;
  }
  int32_t fresh(uint16_t flags = 0) { return tensor(storage(), 0, 4, flags); }

  static ArgumentRow of(int32_t tensor) { return {ArgumentKind::kTensor, {tensor}, {}, {}, 0}; }
  static ArgumentRow number(int64_t value) { return {ArgumentKind::kInt, {}, {value}, {}, 0}; }

  int32_t event(std::string_view name, std::vector<ArgumentRow> inputs,
                std::vector<ArgumentRow> outputs, int32_t parent = trace::kNone,
                EventKind kind = EventKind::kOperator, uint16_t flags = 0) {
    trace::EventRow row;
    row.name = table.strings.intern(name);
    row.kind = kind;
    row.parent = parent;
    row.flags = flags;
    row.inputs = std::move(inputs);
    row.outputs = std::move(outputs);
    table.events.push_back(row);
    return static_cast<int32_t>(table.events.size()) - 1;
  }
  int32_t scope(std::string_view name, EventKind kind, int32_t parent = trace::kNone) {
    return event(name, {}, {}, parent, kind);
  }

  Graph build(const SchemaTable* extra = nullptr) {
    auto graph = build_graph(table, SchemaTable::builtin(), extra);
    if (!graph.ok()) {
      ADD_FAILURE() << graph.error().message;
      return {};
    }
    Status valid = validate_graph(*graph);
    EXPECT_TRUE(valid.ok()) << valid.error().message;
    return std::move(graph.value());
  }

  EventTable table;
};

std::vector<std::string> ops(const Graph& graph) {
  std::vector<std::string> names;
  for (const Node& node : graph.nodes) names.push_back(node.op);
  return names;
}

ValueId input(const Graph& graph, NodeId node, int k) {
  return graph.nodes[node].inputs[k].values.at(0);
}

TEST(BuildGraph, CompositesAreDescendedIntoAndBecomeScopes) {
  Step s;
  int32_t x = s.fresh(), w = s.fresh(), y = s.fresh();
  int32_t function = s.scope("Swish", EventKind::kFunction);
  int32_t linear = s.event("aten::linear", {s.of(x), s.of(w)}, {s.of(y)}, function,
                           EventKind::kOperator, trace::kComposite);
  s.event("aten::mm", {s.of(x), s.of(w)}, {s.of(y)}, linear);
  Graph graph = s.build();
  EXPECT_THAT(ops(graph), ElementsAre("aten.mm"));
  int32_t scope = graph.nodes[0].scope;
  EXPECT_EQ(graph.scopes[scope].name, "aten.linear");
  EXPECT_EQ(graph.scopes[graph.scopes[scope].parent].name, "Swish");
  EXPECT_EQ(graph.nodes[0].event, 2);
}

TEST(BuildGraph, ACompositeThatCalledNothingLeavesNoNode) {
  Step s;
  int32_t x = s.fresh();
  s.event("aten::contiguous", {s.of(x), s.number(0)}, {s.of(x)}, trace::kNone, EventKind::kOperator,
          trace::kComposite);
  s.event("aten::relu", {s.of(x)}, {s.of(s.fresh())});
  EXPECT_THAT(ops(s.build()), ElementsAre("aten.relu"));
}

TEST(BuildGraph, AnOperatorThatCallsItselfIsDescendedInto) {
  Step s;
  int32_t x = s.fresh(), half = s.fresh(), y = s.fresh();
  int32_t outer = s.event("aten::mm", {s.of(x), s.of(x)}, {s.of(y)});
  s.event("aten::_to_copy", {s.of(x)}, {s.of(half)}, outer);
  s.event("aten::mm", {s.of(half), s.of(half)}, {s.of(y)}, outer);
  EXPECT_THAT(ops(s.build()), ElementsAre("aten._to_copy", "aten.mm"));
}

TEST(BuildGraph, WhatALeafCallsIsHidden) {
  Step s;
  int32_t x = s.fresh(), y = s.fresh();
  int32_t leaf = s.event("aten::relu", {s.of(x)}, {s.of(y)});
  s.event("aten::clamp_min", {s.of(x), s.number(0)}, {s.of(y)}, leaf);
  Graph graph = s.build();
  EXPECT_THAT(ops(graph), ElementsAre("aten.relu"));
  EXPECT_TRUE(graph.storages[0].external);
  EXPECT_FALSE(graph.storages[1].external);
}

TEST(BuildGraph, AWriteThroughAViewMakesTheBaseAnotherValue) {
  Step s;
  int32_t base = s.storage();
  int32_t x = s.tensor(base), part = s.tensor(base, 0, 2), one = s.fresh(), y = s.fresh(),
          z = s.fresh();
  s.event("aten::sigmoid", {s.of(x)}, {s.of(y)});
  s.event("aten::slice.Tensor", {s.of(x), s.number(0), s.number(0), s.number(2), s.number(1)},
          {s.of(part)});
  s.event("aten::add_.Tensor", {s.of(part), s.of(one), s.number(1)}, {s.of(part)});
  s.event("aten::mul.Tensor", {s.of(x), s.of(y)}, {s.of(z)});
  Graph graph = s.build();
  EXPECT_NE(input(graph, 0, 0), input(graph, 3, 0));
  EXPECT_EQ(input(graph, 3, 1), graph.nodes[0].outputs[0]);
  const Value& after = graph.values[input(graph, 3, 0)];
  EXPECT_EQ(after.producer, 2);
  EXPECT_EQ(after.output, -1);
  EXPECT_EQ(after.version, 1u);
  // The operator's own result is the written view.
  EXPECT_EQ(graph.nodes[2].outputs, graph.nodes[2].written);
  EXPECT_EQ(graph.values[graph.nodes[2].written[0]].output, 0);
}

TEST(BuildGraph, ReadsWithoutAWriteBetweenAreTheSameValue) {
  Step s;
  int32_t x = s.fresh(), y = s.fresh();
  s.event("aten::sigmoid", {s.of(x)}, {s.of(y)});
  s.event("aten::mul.Tensor", {s.of(x), s.of(y)}, {s.of(s.fresh())});
  Graph graph = s.build();
  EXPECT_EQ(input(graph, 0, 0), input(graph, 1, 0));
  EXPECT_THAT(graph.users[input(graph, 0, 0)], ElementsAre(0, 1));
}

TEST(BuildGraph, PiecesOfOneStorageAreDifferentValues) {
  Step s;
  int32_t base = s.storage();
  int32_t a = s.tensor(base, 0, 2), b = s.tensor(base, 2, 2), y = s.fresh();
  s.event("aten::sigmoid", {s.of(a)}, {s.of(y)});
  s.event("aten::mul.Tensor", {s.of(b), s.of(y)}, {s.of(s.fresh())});
  Graph graph = s.build();
  EXPECT_NE(input(graph, 0, 0), input(graph, 1, 0));
}

TEST(BuildGraph, WritesFromOutsideEndAVersion) {
  Step s;
  int32_t x = s.fresh(), y = s.fresh();
  s.event("aten::sigmoid", {s.of(x)}, {s.of(y)});
  int32_t mul = s.event("aten::mul.Tensor", {s.of(x), s.of(y)}, {s.of(s.fresh())});
  s.table.outside_writes.push_back({mul, 0});
  Graph graph = s.build();
  EXPECT_NE(input(graph, 0, 0), input(graph, 1, 0));
  EXPECT_EQ(graph.values[input(graph, 1, 0)].producer, kNone);
  EXPECT_TRUE(graph.storages[0].opaque_writes);
}

TEST(BuildGraph, UndeclaredWritesAreWrites) {
  SchemaTable extra;
  auto schema = parse_schema("mine::op(Tensor a, Tensor b) -> Tensor");
  ASSERT_TRUE(schema.ok());
  extra.add(*schema);
  Step s;
  int32_t a = s.fresh(), b = s.fresh();
  int32_t op = s.event("mine::op", {s.of(a), s.of(b)}, {s.of(s.fresh())});
  s.table.undeclared_writes.push_back({op, 1});
  s.event("aten::relu", {s.of(b)}, {s.of(s.fresh())});
  Graph graph = s.build(&extra);
  EXPECT_FALSE(graph.nodes[0].opaque);
  EXPECT_THAT(graph.nodes[0].writes, ElementsAre(input(graph, 0, 1)));
  EXPECT_EQ(input(graph, 1, 0), graph.nodes[0].written[0]);
}

TEST(BuildGraph, AnUnknownOperatorIsOpaqueAndMayWriteWhatItReads) {
  Step s;
  int32_t x = s.fresh(), y = s.fresh();
  s.event("aten::sigmoid", {s.of(x)}, {s.of(y)});
  s.event("other::op", {s.of(x)}, {});
  s.event("aten::mul.Tensor", {s.of(x), s.of(y)}, {s.of(s.fresh())});
  Graph graph = s.build();
  EXPECT_TRUE(graph.nodes[1].opaque);
  EXPECT_EQ(graph.nodes[1].schema, nullptr);
  EXPECT_NE(input(graph, 0, 0), input(graph, 2, 0));
}

TEST(BuildGraph, BatchNormWritesItsStatisticsOnlyInTraining) {
  for (bool training : {true, false}) {
    Step s;
    int32_t x = s.fresh(), mean = s.fresh(), var = s.fresh();
    ArgumentRow none{ArgumentKind::kNone, {}, {}, {}, 0};
    ArgumentRow flag{ArgumentKind::kBool, {}, {training}, {}, 0};
    ArgumentRow real{ArgumentKind::kDouble, {}, {}, {0.1}, 0};
    s.event("aten::native_batch_norm",
            {s.of(x), none, none, s.of(mean), s.of(var), flag, real, real},
            {s.of(s.fresh()), s.of(s.fresh()), s.of(s.fresh())});
    EXPECT_EQ(s.build().nodes[0].writes.size(), training ? 2u : 0u);
  }
}

TEST(BuildGraph, DefaultsAreFilledInAndWhatIsNotSaidIsUnknown) {
  Step s;
  int32_t x = s.fresh();
  s.event("aten::add.Tensor", {s.of(x), s.of(x)}, {s.of(s.fresh())});
  s.event("aten::sum.dim_IntList", {s.of(x)}, {s.of(s.fresh())});
  Graph graph = s.build();
  EXPECT_EQ(graph.nodes[0].inputs[2].attr, Attr(int64_t{1}));
  EXPECT_TRUE(std::holds_alternative<UnknownAttr>(graph.nodes[1].inputs[1].attr));
  EXPECT_EQ(graph.nodes[1].inputs[2].attr, Attr(false));
}

TEST(BuildGraph, HooksAreEscapesAndNumbersHaveTheirValue) {
  Step s;
  int32_t x = s.fresh(trace::kHasHooks), n = s.fresh(trace::kWrappedNumber);
  s.table.tensors[n].number = 1.702;
  s.table.tensors[n].shape = s.table.tensors[n].strides = {};
  s.event("aten::mul.Tensor", {s.of(x), s.of(n)}, {s.of(s.fresh())});
  Graph graph = s.build();
  EXPECT_TRUE(graph.values[input(graph, 0, 0)].escapes & kEscapesHook);
  EXPECT_EQ(graph.values[input(graph, 0, 1)].meta.number, 1.702);
}

TEST(BuildGraph, ADetachUnderGradModeIsAnotherValueAndItsViewsToo) {
  for (bool grad : {true, false}) {
    Step s;
    uint16_t flags = grad ? trace::kGradMode : 0;
    int32_t base = s.storage();
    int32_t x = s.tensor(base, 0, 4, trace::kRequiresGrad), d = s.tensor(base),
            view = s.tensor(base, 0, 4);
    auto op = EventKind::kOperator;
    s.event("aten::detach", {s.of(x)}, {s.of(d)}, trace::kNone, op, flags);
    s.event("aten::alias", {s.of(d)}, {s.of(view)}, trace::kNone, op, flags);
    s.event("aten::sigmoid", {s.of(view)}, {s.of(s.fresh())}, trace::kNone, op, flags);
    s.event("aten::relu", {s.of(x)}, {s.of(s.fresh())}, trace::kNone, op, flags);
    Graph graph = s.build();
    EXPECT_EQ(input(graph, 2, 0) != input(graph, 3, 0), grad);
    EXPECT_EQ(input(graph, 2, 0), graph.nodes[0].outputs[0]);
  }
}

TEST(BuildGraph, PositionsAreInnermostFirst) {
  Step s;
  s.table.frames.push_back({s.table.strings.intern("main.py"), 0, 9, 0, 9, 5, 0});
  s.table.frames.push_back({s.table.strings.intern("utils.py"), 0, 67, 21, 67, 37, 1});
  s.table.stacks.push_back({0, trace::kNone});
  s.table.stacks.push_back({1, 0});
  int32_t x = s.fresh();
  int32_t outer = s.event("aten::silu_x", {s.of(x)}, {s.of(s.fresh())}, trace::kNone,
                          EventKind::kOperator, trace::kComposite);
  s.table.events[outer].stack = 1;
  s.event("aten::relu", {s.of(x)}, {s.of(s.fresh())}, outer);
  Graph graph = s.build();
  EXPECT_THAT(graph.nodes[0].positions, ElementsAre(1, 0));
  EXPECT_EQ(graph.positions[graph.nodes[0].positions[0]].line, 67);
}

TEST(BuildGraph, ProfilerMarksLeaveNoNode) {
  Step s;
  s.event("profiler::_record_function_enter_new", {}, {});
  s.event("aten::relu", {s.of(s.fresh())}, {s.of(s.fresh())});
  EXPECT_THAT(ops(s.build()), ElementsAre("aten.relu"));
}

TEST(BuildGraph, AHiddenCloneStandsBeforeTheOperatorThatMadeIt) {
  Step s;
  int32_t x = s.fresh(), copy = s.fresh(), grad = s.fresh();
  int32_t silu = s.event("aten::silu_", {s.of(x)}, {s.of(x)});
  s.event("aten::clone", {s.of(x)}, {s.of(copy)}, silu);
  s.event("aten::silu_backward", {s.of(grad), s.of(copy)}, {s.of(s.fresh())});
  Graph graph = s.build();
  EXPECT_THAT(ops(graph), ElementsAre("aten.clone", "aten.silu_", "aten.silu_backward"));
  EXPECT_TRUE(graph.nodes[0].hidden_product);
  EXPECT_EQ(input(graph, 0, 0), input(graph, 1, 0));
  EXPECT_EQ(input(graph, 2, 1), graph.nodes[0].outputs[0]);
}

TEST(BuildGraph, RowsThatDoNotExistAreAnError) {
  Step s;
  s.event("aten::relu", {s.of(5)}, {});
  auto graph = build_graph(s.table, SchemaTable::builtin());
  ASSERT_FALSE(graph.ok());
  EXPECT_THAT(graph.error().message, HasSubstr("event 0: no tensor row 5"));
  Step cycle;
  cycle.event("aten::relu", {}, {}, 0);
  EXPECT_FALSE(build_graph(cycle.table, SchemaTable::builtin()).ok());
}

}  // namespace
}  // namespace opfuse::graph
