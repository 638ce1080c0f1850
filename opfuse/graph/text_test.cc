#include "opfuse/graph/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "opfuse/graph/validate.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::graph {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Graph parse(std::string_view text) {
  Result<Graph> graph = parse_graph(text, SchemaTable::builtin());
  EXPECT_TRUE(graph.ok()) << (graph.ok() ? "" : graph.error().message);
  if (!graph.ok()) return {};
  Status valid = validate_graph(*graph);
  EXPECT_TRUE(valid.ok()) << (valid.ok() ? "" : valid.error().message);
  return std::move(*graph);
}

std::string error_of(std::string_view text) {
  Result<Graph> graph = parse_graph(text, SchemaTable::builtin());
  return graph.ok() ? "no error" : graph.error().message;
}

// Printing gives the text back: `text` is written as the printer writes it.
void expect_round_trip(std::string_view text) { EXPECT_EQ(print_graph(parse(text)), text); }

TEST(GraphText, GivesTheTextBack) {
  expect_round_trip(
      "%1: f32[16,32,112,112] requires_grad\n"
      "%2: f32[16,32,112,112] = aten.sigmoid(%1) #7 @ utils.py:67:21-37 (f)  1.35ms\n"
      "%3: f32[16,32,112,112] = aten.mul.Tensor(%1, %2) #8 @ utils.py:67:17-37 (f) < "
      "m.py:80:15-81:2  "
      "930us\n"
      "return %3\n");
}

TEST(GraphText, GivesAttributesListsAndSeveralResultsBack) {
  expect_round_trip(
      "%x: bf16[4,6] strides[1,4] offset[2] cuda requires_grad leaf parameter \"param:w\"\n"
      "%u: ?\n"
      "%v: f32\n"
      "%y: f32[4,6] strides[?] device[?] no_storage\n"
      "%a: bf16[4,3], %b: bf16[4,3] offset[3] = aten.split.Tensor(%x, 3, dim=-1)\n"
      "%c: bf16[4,6] = aten.cat([%a, %b], dim=1)\n"
      "%d: f32[4,6] = aten._to_copy(%c, dtype=f32)\n"
      "%e: f32[4,6] = aten.gelu(%d, approximate=\"tanh\")\n"
      "%f: f32[4,1] = aten.mean.dim(%e, [-1], keepdim=True)\n"
      "%g: f32[4,6] = aten.add.Tensor(%e, 1, alpha=2.5) {grad,autocast}\n"
      "%h: f32[4,6] = aten.pow.Tensor_Scalar(%g, ?)\n"
      "%i: f32[4,6], _ = aten.native_dropout(%h, 0.5, True) thread[1]\n"
      "%j: f32[4,6] = mine.op(%i, 1e-05, <Generator>)\n"
      "return %i, %j\n");
}

TEST(GraphText, GivesScopesBack) {
  expect_round_trip(
      "%i: f32[8] requires_grad\n"
      "%g: f32[8]\n"
      "scope \"Optimizer.step#SGD.step\" {\n"
      "  function SwishImplementation #12 {\n"
      "    %s: f32[8] = aten.sigmoid(%i)\n"
      "  }\n"
      "}\n"
      "backward SwishImplementationBackward #12 {\n"
      "  %m: f32[8] = aten.mul.Tensor(%g, %s)\n"
      "}\n"
      "function SwishImplementation #13 {\n"
      "  %t: f32[8] = aten.sigmoid(%i)\n"
      "}\n"
      "backward SwishImplementationBackward #12 again {\n"
      "  %n: f32[8] = aten.mul.Tensor(%m, %s)\n"
      "}\n");
}

TEST(GraphText, ScopesSayWhatRanByDefault) {
  Graph g = parse(
      "%x: f32[8]\n"
      "%a: f32[8] = aten.sigmoid(%x)\n"
      "function F #1 {\n"
      "  %b: f32[8] = aten.sigmoid(%x)\n"
      "}\n"
      "backward FBackward #1 {\n"
      "  %c: f32[8] = aten.sigmoid(%x)\n"
      "}\n");
  EXPECT_EQ(g.nodes[0].region.flags, trace::kGradMode);
  EXPECT_EQ(g.nodes[1].region.flags, 0);
  EXPECT_EQ(g.nodes[2].region.flags, trace::kGraphTask);
  EXPECT_EQ(g.scopes[g.nodes[2].scope].sequence, 1);
}

TEST(GraphText, AReadAfterAWriteIsAnotherValue) {
  std::string_view text =
      "%x: f32[8]\n"
      "%s: f32[8] = aten.sigmoid(%x)\n"
      "%x2: f32[8] = aten.add_.Tensor(%x, 1)\n"
      "%y: f32[8] = aten.mul.Tensor(%x, %s)\n";
  Graph g = parse(text);
  const Node& add = g.nodes[1];
  ValueId before = g.nodes[0].inputs[0].values[0];
  ValueId read = g.nodes[2].inputs[0].values[0];
  EXPECT_NE(before, read);
  EXPECT_EQ(read, add.outputs[0]);
  EXPECT_THAT(add.writes, ElementsAre(before));
  EXPECT_THAT(add.written, ElementsAre(read));
  EXPECT_EQ(g.values[read].version, 1u);
  EXPECT_EQ(g.values[read].storage, g.values[before].storage);
  EXPECT_EQ(print_graph(parse(print_graph(g))), print_graph(g));
}

TEST(GraphText, AWriteThroughAViewChangesTheBase) {
  Graph g = parse(
      "%x: f32[2,8]\n"
      "%v: f32[8] = aten.select.int(%x, 0, 1)\n"
      "%w: f32[8] = aten.add_.Tensor(%v, 1)\n"
      "%y: f32[2,8] = aten.sigmoid(%x)\n");
  ValueId read = g.nodes[2].inputs[0].values[0];
  EXPECT_EQ(g.values[read].version, 1u);
  EXPECT_EQ(g.values[read].producer, 1);
  EXPECT_EQ(g.values[read].output, -1);
  EXPECT_NE(read, g.nodes[0].inputs[0].values[0]);
}

TEST(GraphText, WritesThatTheSchemaDoesNotDeclareCount) {
  Graph g = parse(
      "%x: f32[2,8,4,4]\n%m: f32[8]\n%v: f32[8]\n"
      "%y: f32[2,8,4,4], %a: f32[8], %b: f32[8] = aten.native_batch_norm(%x, None, None, %m, %v, "
      "True, 0.1, 1e-5)\n"
      "%z: f32[8] = aten.sigmoid(%m)\n");
  EXPECT_EQ(g.nodes[0].written.size(), 2u);
  EXPECT_EQ(g.nodes[1].inputs[0].values[0], g.nodes[0].written[0]);
}

TEST(GraphText, ALiteralInATensorsPlaceIsAWrappedNumber) {
  Graph g = parse("%x: f32[8]\n%y: f32[8] = aten.mul.Tensor(%x, 1.702)\n");
  const Value& number = g.values[g.nodes[0].inputs[1].values[0]];
  EXPECT_EQ(number.meta.number, 1.702);
  EXPECT_EQ(number.meta.dtype, DType::kF64);
  EXPECT_EQ(number.meta.flags, trace::kWrappedNumber);
}

TEST(GraphText, ANumberHasNoMemoryToWrite) {
  Graph g = parse("%x: f32[8]\n%y: f32[8] = aten.add_.Tensor(2, %x)\n");
  EXPECT_TRUE(g.nodes[0].writes.empty());
}

TEST(GraphText, UnknownIsNotADefault) {
  Graph g = parse("%x: ?\n%y: f32 = aten.gelu(%x, approximate=?)\n");
  EXPECT_FALSE(g.values[0].meta.shape_known);
  EXPECT_EQ(g.values[0].meta.dtype, DType::kUnknown);
  EXPECT_EQ(g.nodes[0].inputs[1].attr, Attr{UnknownAttr{}});
  Graph defaulted = parse("%x: ?\n%y: f32 = aten.gelu(%x)\n");
  EXPECT_EQ(defaulted.nodes[0].inputs[1].attr, Attr{std::string("none")});
}

TEST(GraphText, SaysWhereATextIsWrong) {
  EXPECT_EQ(error_of("%x: f32[8]\n%y: f32[8] = aten.sigmoid(%z)\n"), "2:27: %z is not defined");
  EXPECT_EQ(error_of("%x: f33[8]\n"), "1:5: expected a dtype such as f32, or ?");
  EXPECT_EQ(error_of("%x: f32[8\n"), "1:10: expected ',' or ']', found the end of the line");
  EXPECT_EQ(error_of("%x: f32[8]\n%x: f32[8]\n"), "2:1: %x is defined twice");
  EXPECT_EQ(error_of("%x: f32[8]\n%y: f32[8] = aten.mul.Tensor(%x)\n"),
            "2:33: aten.mul.Tensor needs its argument 'other'");
  EXPECT_EQ(error_of("%x: f32[8]\n%y: f32[8] = aten.sigmoid(%x, 2)\n"),
            "2:31: aten.sigmoid has no further argument ''");
  EXPECT_THAT(error_of("function F {\n"), HasSubstr("expected '}' for scope F"));
  EXPECT_THAT(error_of("%x: f32[8]\n%y: f32[8] = aten.sigmoid(%x) @ utils.py\n"),
              HasSubstr("expected file:line"));
  EXPECT_THAT(error_of("%x: f32[8]\n%y: f32[8] = aten.sigmoid(%x) 1.3parsec\n"),
              HasSubstr("expected a duration such as 1.35ms"));
  EXPECT_THAT(error_of("%x: f32[8] shiny\n"), HasSubstr("found 'shiny'"));
}

TEST(GraphText, PrintsOneNodeForAMessage) {
  Graph g = parse("%x: f32[8]\n%y: f32[8] = aten.sigmoid(%x) @ a.py:3:1-9 < b.py:4  12ns\n");
  EXPECT_EQ(print_node(g, 0), "%y: f32[8] = aten.sigmoid(%x) @ a.py:3:1-9  12ns");
}

TEST(GraphText, PrintsAttributesSoThatTheyReadBack) {
  EXPECT_EQ(print_attr(Attr{1.0}), "1.0");
  EXPECT_EQ(print_attr(Attr{1e-5}), "1e-05");
  EXPECT_EQ(print_attr(Attr{std::string("a\"b")}), "\"a\\\"b\"");
  EXPECT_EQ(print_attr(Attr{std::vector<bool>{true, false}}), "[True, False]");
  EXPECT_EQ(print_attr(Attr{UnknownAttr{}}), "?");
}

}  // namespace
}  // namespace opfuse::graph
