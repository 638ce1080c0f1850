#include "opfuse/graph/schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "opfuse/base/embedded.h"

namespace opfuse::graph {
namespace {

using ::testing::HasSubstr;

Schema parse(std::string_view line) {
  Result<Schema> schema = parse_schema(line);
  EXPECT_TRUE(schema.ok()) << (schema.ok() ? "" : schema.error().message);
  return schema.ok() ? *schema : Schema{};
}

TEST(Schema, ReadsNamesTypesAndDefaultsOfEveryKind) {
  Schema s = parse(
      "aten::f.x(Tensor self, Tensor? w, SymInt[2] stride=1, float eps=1e-5, bool keep=False, *, "
      "ScalarType? dtype=None, str mode=\"a\\n\", float[] scale=[1., 2], int[] pad=[0, -1], "
      "Scalar alpha=1) -> (Tensor out, Tensor[] rest)");
  EXPECT_EQ(s.name, "aten.f.x");
  ASSERT_EQ(s.arguments.size(), 10u);
  EXPECT_EQ(s.arguments[1].type, "Tensor?");
  EXPECT_EQ(s.arguments[2].type, "int[]");
  EXPECT_EQ(s.arguments[2].list_size, 2);
  EXPECT_EQ(s.arguments[2].default_value, (Attr{std::vector<int64_t>{1, 1}}));
  EXPECT_EQ(s.arguments[3].default_value, Attr{1e-5});
  EXPECT_EQ(s.arguments[4].default_value, Attr{false});
  EXPECT_FALSE(s.arguments[4].keyword_only);
  EXPECT_TRUE(s.arguments[5].keyword_only);
  EXPECT_EQ(s.arguments[5].default_value, Attr{NoneAttr{}});
  EXPECT_EQ(s.arguments[6].default_value, Attr{std::string("a\n")});
  EXPECT_EQ(s.arguments[7].default_value, (Attr{std::vector<double>{1, 2}}));
  EXPECT_EQ(s.arguments[8].default_value, (Attr{std::vector<int64_t>{0, -1}}));
  EXPECT_EQ(s.arguments[9].default_value, Attr{int64_t{1}});
  ASSERT_EQ(s.returns.size(), 2u);
  EXPECT_EQ(s.returns[1].type, "Tensor[]");
}

TEST(Schema, ReadsAliasesAndWrites) {
  Schema add = parse("aten::add_(Tensor(a!) self, Tensor other) -> Tensor(a!)");
  EXPECT_TRUE(add.is_mutable());
  EXPECT_FALSE(add.is_view());
  EXPECT_EQ(add.arguments[0].alias_set, "a");
  Schema chunk = parse("aten::chunk(Tensor(a -> *) self, int n, int dim=0) -> Tensor(a)[]");
  EXPECT_TRUE(chunk.is_view());
  EXPECT_FALSE(chunk.is_mutable());
  EXPECT_EQ(chunk.arguments[0].alias_set, "a");
  EXPECT_EQ(chunk.returns[0].type, "Tensor[]");
  Schema foreach_add = parse("aten::_foreach_mul_(Tensor(a!)[] self, Scalar s) -> ()");
  EXPECT_TRUE(foreach_add.arguments[0].is_write);
  EXPECT_TRUE(foreach_add.arguments[0].is_tensor_list());
  EXPECT_TRUE(foreach_add.returns.empty());
}

TEST(Schema, ReadsFlags) {
  Schema s = parse("aten::f(Tensor x, Tensor? m) -> Tensor\tcomposite random pointwise writes=m");
  EXPECT_TRUE(s.composite_implicit && s.random && s.pointwise && s.writes_undeclared);
  EXPECT_FALSE(s.arguments[0].is_write);
  EXPECT_TRUE(s.arguments[1].is_write);
}

TEST(Schema, SaysWhereALineIsWrong) {
  EXPECT_THAT(parse_schema("aten::f(Tensor x -> Tensor").error().message,
              HasSubstr("column 18: expected ',' or ')', found '-> Tensor'"));
  EXPECT_THAT(parse_schema("aten::f(int n=) -> Tensor").error().message,
              HasSubstr("expected a default value"));
  EXPECT_THAT(parse_schema("aten::f() -> Tensor\tfast").error().message,
              HasSubstr("expected composite, random"));
}

TEST(SchemaTable, EveryLineOfTheBuiltInTableParses) {
  int lines = 0;
  for (const EmbeddedFile& file : embedded_schemas()) {
    std::string_view rest = file.text;
    while (!rest.empty()) {
      std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(line.size() + 1);
      if (line.starts_with('#')) continue;
      Result<Schema> schema = parse_schema(line);
      ASSERT_TRUE(schema.ok()) << schema.error().message;
      ++lines;
    }
  }
  EXPECT_GT(lines, 3000);
  EXPECT_EQ(SchemaTable::builtin().size(), static_cast<size_t>(lines));
}

TEST(SchemaTable, KnowsFactsThatTheTextOfASchemaDoesNotSay) {
  const SchemaTable& table = SchemaTable::builtin();
  EXPECT_TRUE(table.find("aten.linear")->composite_implicit);
  EXPECT_FALSE(table.find("aten.silu")->composite_implicit);
  EXPECT_TRUE(table.find("aten.bernoulli_.float")->random);
  EXPECT_TRUE(table.find("aten.sigmoid")->pointwise);
  EXPECT_TRUE(table.find("aten.native_batch_norm")->arguments[3].is_write);
  EXPECT_EQ(table.find("aten.no_such_operator"), nullptr);
}

TEST(SchemaTable, ANewTableExtendsTheBuiltInOne) {
  SchemaTable table;
  EXPECT_EQ(table.size(), 0u);
  const Schema* added = table.add(parse("mine::f(Tensor x) -> Tensor"));
  EXPECT_EQ(table.find("mine.f"), added);
  EXPECT_EQ(table.find("aten.silu"), SchemaTable::builtin().find("aten.silu"));
  EXPECT_EQ(SchemaTable::builtin().find("mine.f"), nullptr);
  EXPECT_EQ(table.size(), 1u);
}

}  // namespace
}  // namespace opfuse::graph
