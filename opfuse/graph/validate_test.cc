#include "opfuse/graph/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "opfuse/graph/text.h"

namespace opfuse::graph {
namespace {

using ::testing::HasSubstr;

class Validate : public ::testing::Test {
 protected:
  Validate()
      : graph_(parse_graph("%x: f32[8]\n"
                           "%s: f32[8] = aten.sigmoid(%x)\n"
                           "%w: f32[8] = aten.add_.Tensor(%x, 1)\n"
                           "%y: f32[8] = aten.mul.Tensor(%w, %s)\n",
                           SchemaTable::builtin())
                   .value()) {}

  std::string error() {
    Status status = validate_graph(graph_);
    return status.ok() ? "valid" : status.error().message;
  }
  ValueId input(NodeId node, int i) { return graph_.nodes[node].inputs[i].values[0]; }

  Graph graph_;
};

TEST_F(Validate, AcceptsAGraph) { EXPECT_EQ(error(), "valid"); }

TEST_F(Validate, RefusesAReaderBeforeItsProducer) {
  std::swap(graph_.nodes[0].inputs[0].values[0], graph_.nodes[2].inputs[1].values[0]);
  EXPECT_THAT(error(), HasSubstr("node 0 (aten.sigmoid): reads value"));
}

TEST_F(Validate, RefusesAReadOfAnOldVersion) {
  graph_.nodes[2].inputs[0].values[0] = input(0, 0);
  index_users(&graph_);
  EXPECT_THAT(error(), HasSubstr("of version 0, when storage 0 is at 1"));
}

TEST_F(Validate, RefusesAWriteThatDoesNotAdvanceTheVersion) {
  graph_.values[graph_.nodes[1].written[0]].version = 0;
  EXPECT_THAT(error(), HasSubstr("does not advance the version"));
}

TEST_F(Validate, RefusesAProducerThatDoesNotMakeTheValue) {
  graph_.values[graph_.nodes[0].outputs[0]].producer = 2;
  EXPECT_THAT(error(), HasSubstr("is not result 0 of node 2"));
}

TEST_F(Validate, RefusesAnotherNumberOfArguments) {
  graph_.nodes[0].inputs.push_back({});
  EXPECT_THAT(error(), HasSubstr("node 0 (aten.sigmoid): expected 1 arguments, found 2"));
}

TEST_F(Validate, RefusesAnArgumentOfAnotherKind) {
  graph_.nodes[0].inputs[0].kind = InputKind::kTensorList;
  EXPECT_THAT(error(), HasSubstr("argument 'self' is not a Tensor"));
}

TEST_F(Validate, RefusesMoreResultsThanTheSchemaHas) {
  graph_.nodes[0].outputs.push_back(kNone);
  EXPECT_THAT(error(), HasSubstr("expected at most 1 results, found 2"));
}

TEST_F(Validate, RefusesAStaleIndexOfReaders) {
  graph_.users[0].clear();
  EXPECT_THAT(error(), HasSubstr("stale index"));
}

TEST_F(Validate, RefusesNumbersOutOfRange) {
  Graph good = graph_;
  graph_.nodes[1].scope = 3;
  EXPECT_THAT(error(), HasSubstr("no scope 3"));
  graph_ = good;
  graph_.nodes[1].positions = {0};
  EXPECT_THAT(error(), HasSubstr("no position 0"));
  graph_ = good;
  graph_.values[0].storage = 9;
  EXPECT_THAT(error(), HasSubstr("no storage 9"));
  graph_ = good;
  graph_.scopes.push_back({.name = "a", .parent = 0});
  EXPECT_THAT(error(), HasSubstr("expected an earlier parent"));
}

}  // namespace
}  // namespace opfuse::graph
