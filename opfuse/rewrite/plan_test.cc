#include "opfuse/rewrite/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "opfuse/rewrite/test_case.h"

namespace opfuse::rewrite {
namespace {

using ::testing::HasSubstr;

std::string replaced(std::string text, std::string_view old, std::string_view now) {
  const size_t at = text.find(old);
  EXPECT_NE(at, text.npos) << old;
  return at == text.npos ? text : text.replace(at, old.size(), now);
}

TEST(Plan, ComesBackFromJson) {
  Case c = Case::apply_case();
  Plan plan = c.plan();
  plan.refused.push_back({4, {5, "x is \"written\"", graph::kNone}});
  const std::string json = plan_to_json(plan);
  const auto back = plan_from_json(json);
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(plan_to_json(*back), json);
  EXPECT_EQ(plan_hash(*back), plan_hash(plan));
}

TEST(Plan, LocatesWhatIsWrongInAJson) {
  const std::string json = plan_to_json(Case::apply_case().plan());
  const auto message = [](const std::string& text) {
    const auto plan = plan_from_json(text);
    return plan.ok() ? "no error" : plan.error().message;
  };
  EXPECT_EQ(message(replaced(json, "\"version\": 1", "\"version\": 2")),
            "plan.version: expected 1, found 2");
  EXPECT_THAT(message(json.substr(0, json.size() / 2)), HasSubstr("expected JSON"));
  EXPECT_EQ(message(replaced(json, "\"calls\": 1", "\"calls\": \"1\"")),
            "plan.replacements[0].calls: expected an integer, found \"1\"");
  EXPECT_EQ(message(replaced(json, "\"calls\": 1", "\"call\": 1")),
            "plan.replacements[0].calls: expected an integer, found nothing");
  EXPECT_EQ(message(replaced(json, "\"calls\": 1", "\"calls\": 1, \"more\": 1")),
            "plan.replacements[0].more: expected no such field, found 1");
  EXPECT_THAT(message(replaced(json, "_opfuse_silu(x)", "os.system(x)")),
              HasSubstr("plan.hash: expected "));
  EXPECT_EQ(message("[]"), "plan: expected an object, found []");
}

TEST(Plan, HashIsOfWhatRunsAndNotOfWhereItStands) {
  Case c = Case::apply_case();
  const std::string hash = plan_hash(c.plan());
  EXPECT_EQ(hash.size(), 16u);
  Plan moved = c.plan();
  moved.replacements[0].file = moved.replacements[0].edits[0].file = "/elsewhere/m.py";
  moved.replacements[0].calls = 7;
  EXPECT_EQ(plan_hash(moved), hash);
  Plan other = c.plan();
  other.replacements[0].edits[0].span.begin--;
  EXPECT_NE(plan_hash(other), hash);
  EXPECT_NE(plan_hash(Plan{}), hash);
}

TEST(Plan, TakesTheNativeTargetWhateverTheOrder) {
  Case c = Case::apply_case();
  EXPECT_EQ(c.plan().replacements[0].target, "aten.silu");
  EXPECT_EQ(c.plan().replacements[0].domain, "floating");
  c.rule.targets.insert(c.rule.targets.begin(), target("opfuse.silu", "opfuse.functional.silu"));
  c.options.own_operators = true;
  EXPECT_EQ(c.plan().replacements[0].target, "aten.silu");
  c.options.strict = true;  // ours is total
  EXPECT_EQ(c.plan().replacements[0].target, "opfuse.silu");
  EXPECT_EQ(c.plan().replacements[0].domain, "");
}

// Of two sites whose spans meet the one that takes more time is replaced.
TEST(Plan, KeepsTheSiteThatSavesMore) {
  const std::string text =
      "import torch\n\n\ndef f(x):\n        return Swish.apply(Swish.apply(x))\n";
  const std::string graph =
      "%x: f32[4]\n"
      "function Swish #1 {\n"
      "  %a: f32[4] = aten.sigmoid(%x) @ m.py:9:5-9 (Swish.forward) < m.py:5:27-41 (f)\n"
      "  %b: f32[4] = aten.mul.Tensor(%x, %a) @ m.py:9:1-9 (Swish.forward) < m.py:5:27-41 (f)\n"
      "}\n"
      "function Swish #2 {\n"
      "  %s: f32[4] = aten.sigmoid(%b) @ m.py:9:5-9 (Swish.forward) < m.py:5:15-42 (f)\n"
      "  %y: f32[4] = aten.mul.Tensor(%b, %s) @ m.py:9:1-9 (Swish.forward) < m.py:5:15-42 (f)\n"
      "}\nreturn %y\n";
  Case c(apply_facts(text, "Swish.apply(x)"), graph, {"a", "b"});
  Case outer(apply_facts(text, "Swish.apply(Swish.apply(x))"), graph);
  outer.facts.operations[0].arguments = {"expr"};
  outer.facts.site = 1;
  c.report.matches.push_back(outer.match());
  c.sites.push_back({1, &c.rule, {1}, "Swish", {}, 0, 0});
  for (const bool first : {true, false}) {
    c.sites[0].forward_ns = first ? 20 : 10;
    c.sites[1].forward_ns = 15;
    const Plan plan = make_plan(c.graph, c.report, c.sites, {c.facts, outer.facts}, {});
    ASSERT_EQ(plan.replacements.size(), 1u);
    EXPECT_EQ(plan.replacements[0].site, first ? 0 : 1);
    EXPECT_THAT(plan.refused[0].refusal.reason, HasSubstr("overlaps the edit of site"));
  }
}

TEST(Facts, AreReadStrictly) {
  const auto message = [](std::string_view json) {
    const auto facts = parse_facts(json);
    return facts.ok() ? "no error" : facts.error().message;
  };
  EXPECT_EQ(message("{}"), "facts.site: expected an integer, found nothing");
  EXPECT_THAT(message("{\"site\": 0"), HasSubstr("facts: byte "));
  EXPECT_EQ(message("{\"site\": true}"), "facts.site: expected an integer, found true");
}

// testdata/facts.json is what python/opfuse/source.py says; test/source_test.py keeps it so.
TEST(Facts, FromPythonGiveThePublishedEdit) {
  std::ifstream file(std::string(OPFUSE_SOURCE_DIR) + "/opfuse/rewrite/testdata/facts.json");
  const std::string json(std::istreambuf_iterator<char>(file), {});
  const auto facts = parse_facts(json);
  ASSERT_TRUE(facts.ok()) << facts.error().message;
  Case c(
      *facts,
      "%x: f32[4]\n"
      "function Swish #1 {\n"
      "  %s: f32[4] = aten.sigmoid(%x) @ swish.py:9:21-37 (Swish.forward) < swish.py:21:15-29 (f)\n"
      "  %y: f32[4] = aten.mul.Tensor(%x, %s) @ swish.py:9:17-37 (Swish.forward) < "
      "swish.py:21:15-29 (f)\n"
      "}\nreturn %y\n");
  EXPECT_THAT(c.diff(), HasSubstr("-        return Swish.apply(x)\n+        return F.silu(x)\n"));
}

// A package in a folder of its own, patched by the module that is written for it.
class PatchModule : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = ::testing::TempDir() + "opfuse_patch_XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    root_ = folder;
    write("m.py", text_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write(const std::string& name, const std::string& text) {
    std::ofstream(root_ / name, std::ios::binary) << text;
  }
  std::string run(const std::string& code) {
    write("main.py", code);
    const std::string command = "cd '" + root_.string() + "' && python3 main.py >out 2>&1";
    [[maybe_unused]] const int status = std::system(command.c_str());
    std::ifstream file(root_ / "out");
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  Plan plan() {
    Replacement one;
    one.package = "m";
    one.module = "m";
    one.qualname = "M.half";
    one.file = (root_ / "m.py").string();
    one.global_name = "_opfuse_floor";
    one.python_target = "math.floor";
    const Span span = span_of(text_, "x // 1");
    one.edits = {{one.file, sha256_, span, "x // 1", "_opfuse_floor(x)", "math.floor(x)"}};
    Plan plan;
    plan.replacements = {one};
    return plan;
  }

  std::filesystem::path root_;
  const std::string text_ =
      "class M:\n    @staticmethod\n    def half(x):\n        return x // 1\n";
  std::string sha256_ = "0000";
};

TEST_F(PatchModule, EditsTheInstalledCodeInMemory) {
  sha256_ =
      run("import hashlib; print(hashlib.sha256(open('m.py','rb').read()).hexdigest(), end='')");
  write("opfuse_patch.py", patch_module(plan()));
  EXPECT_EQ(run("import m\nf = m.M.half\nimport opfuse_patch\nprint(f(2.5), m.M.half(2.5), "
                "m._opfuse_floor)"),
            "2 2 <built-in function floor>\n");
  EXPECT_EQ(run("import m; print(m.M.half(2.5))"), "2.0\n");
}

TEST_F(PatchModule, FailsClearlyOnAnotherFile) {
  write("opfuse_patch.py", patch_module(plan()));
  const std::string said =
      run("import m\ntry:\n  import opfuse_patch\nexcept ImportError as e:\n  "
          "print(e)\nprint(m.M.half(2.5))");
  EXPECT_THAT(said, HasSubstr("opfuse_patch: expected "));
  EXPECT_THAT(said, HasSubstr("with sha256 0000, found "));
  EXPECT_THAT(said, HasSubstr("\n2.0\n"));
}

TEST_F(PatchModule, IsEmptyWithoutAnInstalledPackage) {
  EXPECT_EQ(patch_module(Case::apply_case().plan()), "");
}

}  // namespace
}  // namespace opfuse::rewrite
