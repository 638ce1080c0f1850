// Edits and diffs: what runs keeps every line in its place, and git takes the diff.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "opfuse/rewrite/test_case.h"

namespace opfuse::rewrite {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Gives `diff` to the real git and returns what the file has become.
std::string after_git_apply(const std::string& before, const std::string& diff) {
  const std::string folder = ::testing::TempDir() + "opfuse_git_apply_XXXXXX";
  std::vector<char> made(folder.begin(), folder.end());
  made.push_back('\0');
  if (!mkdtemp(made.data())) return "no folder";
  const std::filesystem::path root(made.data());
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(root / name, std::ios::binary) << text;
  };
  write("m.py", before);
  write("changes.diff", diff);
  const std::string command =
      "cd '" + root.string() +
      "' && git init -q . && git apply --whitespace=nowarn changes.diff 2>error";
  const int status = std::system(command.c_str());
  const auto read = [&](const char* name) {
    std::ifstream file(root / name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string after = status == 0 ? read("m.py") : "git apply: " + read("error");
  std::filesystem::remove_all(root);
  return after;
}

int count_lines(const std::string& text) {
  return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

// Both texts of a case: memory with every line in its place, and a diff that git applies.
struct Edited {
  std::string memory, source, diff;
};

Edited edit(const Case& c) {
  Edited out{c.memory(), "", c.diff()};
  out.source = after_git_apply(c.facts.text, out.diff);
  const auto expected = apply_edits(c.facts.text, c.plan(), c.facts.file, false);
  EXPECT_EQ(out.source, *expected) << out.diff;
  EXPECT_EQ(count_lines(out.memory), count_lines(c.facts.text));
  return out;
}

TEST(Edits, WriteTheCallAsTheModuleSaysIt) {
  Case c = Case::apply_case();
  EXPECT_EQ(c.diff(),
            "--- a/m.py\n"
            "+++ b/m.py\n"
            "@@ -2,4 +2,4 @@\n"
            " from torch.nn import functional as F\n"
            " class M:\n"
            "     def forward(self, x):\n"
            "-        return Swish.apply(x)\n"
            "+        return F.silu(x)\n");
  EXPECT_THAT(edit(c).memory, HasSubstr("        return _opfuse_silu(x)\n"));
}

TEST(Edits, UseWhatTheModuleHas) {
  Case c = Case::inline_case();
  EXPECT_THAT(edit(c).source, HasSubstr("return torch.nn.functional.silu(x)\n"));
  c.facts.module_aliases = {"nn=torch.nn", "torch=torch"};
  EXPECT_THAT(edit(c).source, HasSubstr("return nn.functional.silu(x)\n"));
  c.facts.module_aliases = {"nn=torch.nn", "silu=torch.nn.functional.silu", "torch=torch"};
  EXPECT_THAT(edit(c).source, HasSubstr("return silu(x)\n"));
}

TEST(Edits, AddAnImportWhereNothingLeadsToTorch) {
  Case c = Case::inline_case();
  c.facts.module_aliases.clear();
  c.facts.module_globals = {"f"};
  const Edited edited = edit(c);
  EXPECT_THAT(edited.source, HasSubstr("import torch\nimport torch\ndef f"));
  EXPECT_THAT(edited.memory, Not(HasSubstr("import torch\nimport")));
  c.facts.module_globals = {"f", "torch"};  // and it is something else
  EXPECT_THAT(edit(c).source, HasSubstr("import torch as _opfuse_torch\n"));
}

TEST(Edits, WriteThePublishedEditForTheVendor) {
  Case c = Case::apply_case();
  c.options.target_vendor = "torch_npu";
  const Edited edited = edit(c);
  EXPECT_THAT(edited.source, HasSubstr("import torch\nimport torch_npu\nfrom torch.nn"));
  EXPECT_THAT(edited.source, HasSubstr("        return torch_npu.npu_silu(x)\n"));
  EXPECT_THAT(edited.memory, HasSubstr("return _opfuse_silu(x)\n"));
  const Plan plan = c.plan();
  EXPECT_FALSE(plan.replacements[0].verified);
  EXPECT_EQ(plan.replacements[0].python_target, "torch.nn.functional.silu");
  EXPECT_EQ(plan.replacements[0].source_target, "torch_npu.npu_silu");
}

TEST(Edits, ChooseAFreeName) {
  Case c = Case::apply_case();
  c.facts.module_globals = {"_opfuse_silu"};
  EXPECT_THAT(c.memory(), HasSubstr("return _opfuse_silu_2(x)"));
}

struct Layout {
  std::string name, text, call, source_line;
};

class Layouts : public ::testing::TestWithParam<Layout> {};

TEST_P(Layouts, KeepTheRestOfTheFile) {
  const Layout& layout = GetParam();
  SiteFacts facts = apply_facts(layout.text, layout.call);
  int line = 1, column = 0;
  const auto place = [&](int64_t offset) {
    line = 1, column = 0;
    for (int64_t i = layout.text.starts_with("\xEF\xBB\xBF") ? 3 : 0; i < offset; i++) {
      column++;
      if (layout.text[i] == '\n') line++, column = 0;
    }
    return std::to_string(line) + ":" + std::to_string(column);
  };
  const std::string begin = place(facts.span.begin), end = place(facts.span.end);
  std::string graph(kApplyGraph);
  const std::string at = begin + "-" +
                         (begin.substr(0, begin.find(':')) == end.substr(0, end.find(':'))
                              ? end.substr(end.find(':') + 1)
                              : end);
  for (size_t i; (i = graph.find("5:15-29")) != graph.npos;) graph.replace(i, 7, at);
  Case c(facts, graph);
  ASSERT_EQ(c.refusal().row, -1) << c.refusal().reason << " at " << at;
  const Edited edited = edit(c);
  EXPECT_THAT(edited.source, HasSubstr(layout.source_line));
  EXPECT_THAT(edited.memory, HasSubstr("_opfuse_silu(x"));
}

std::string long_file() {
  std::string text = "import torch\n";
  for (int i = 0; i < 3000; i++) text += "# line " + std::to_string(i % 7) + "\n";
  text += "def forward(self, x):\n    return Swish.apply(x)\n";
  for (int i = 0; i < 3000; i++) text += "# line " + std::to_string(i % 5) + "\n";
  return text;
}

INSTANTIATE_TEST_SUITE_P(
    Edits, Layouts,
    ::testing::Values(
        Layout{"Crlf", "import torch\r\ndef f(x):\r\n    return Swish.apply(x)\r\n\r\n",
               "Swish.apply(x)", "    return F.silu(x)\r\n"},
        Layout{"NoFinalNewline", "import torch\ndef f(x):\n    return Swish.apply(x)",
               "Swish.apply(x)", "    return F.silu(x)"},
        Layout{"ByteOrderMark", "\xEF\xBB\xBFimport torch\ndef f(x): return Swish.apply(x)\n",
               "Swish.apply(x)", "def f(x): return F.silu(x)\n"},
        Layout{"Tabs", "import torch\ndef f(x):\n\tif x:\n\t\treturn  Swish.apply(x)\n",
               "Swish.apply(x)", "\t\treturn  F.silu(x)\n"},
        Layout{"Unicode", "import torch\ndef f(x):\n    ä = 'é😀'; return Swish.apply(x)  # ü\n",
               "Swish.apply(x)", "    ä = 'é😀'; return F.silu(x)  # ü\n"},
        Layout{"SeveralLines",
               "import torch\ndef f(x):\n    return Swish.apply(\n        x\n    )  # why\n",
               "Swish.apply(\n        x\n    )", "    return F.silu(x)  # why\n"},
        Layout{"Backslash", "import torch\ndef f(x):\n    return Swish. \\\n        apply(x)\n",
               "Swish. \\\n        apply(x)", "    return F.silu(x)\n"},
        Layout{"Decorated",
               "import torch\n@torch.no_grad()\ndef f(x):\n    return Swish.apply(x)\n",
               "Swish.apply(x)", "@torch.no_grad()\ndef f(x):\n    return F.silu(x)\n"},
        Layout{"Inner", "import torch\ndef f(x):\n    return g(Swish.apply(x), h)\n",
               "Swish.apply(x)", "    return g(F.silu(x), h)\n"},
        Layout{"LongFile", long_file(), "Swish.apply(x)", "    return F.silu(x)\n"}),
    [](const auto& info) { return info.param.name; });

SiteFacts statement_facts(const std::string& text, std::string_view first) {
  SiteFacts facts = inline_facts(text, "x * s");
  facts.span_kind = "statements";
  facts.first_statement = span_of(text, first);
  return facts;
}

constexpr std::string_view kStatementGraph =
    "%x: f32[4]\n"
    "%s: f32[4] = aten.sigmoid(%x) @ m.py:3:8-24 (f)\n"
    "%y: f32[4] = aten.mul.Tensor(%x, %s) @ m.py:4:11-16 (f)\nreturn %y\n";

TEST(Edits, RemoveAStatementFromTheDiffAndBlankItInMemory) {
  const std::string text =
      "import torch\ndef f(x):\n    s = torch.sigmoid(x)  # gate\n    return x * s\n";
  Case c(statement_facts(text, "s = torch.sigmoid(x)"), kStatementGraph);
  const Edited edited = edit(c);
  EXPECT_EQ(edited.source, "import torch\ndef f(x):\n    return torch.nn.functional.silu(x)\n");
  EXPECT_EQ(edited.memory, "import torch\ndef f(x):\n\n    return _opfuse_silu(x)\n");
}

TEST(Edits, RefuseAStatementThatSharesItsLine) {
  const std::string text = "import torch\ndef f(x):\n  1; s = torch.sigmoid(x)\n    return x * s\n";
  Case c(statement_facts(text, "s = torch.sigmoid(x)"),
         "%x: f32[4]\n"
         "%s: f32[4] = aten.sigmoid(%x) @ m.py:3:9-25 (f)\n"
         "%y: f32[4] = aten.mul.Tensor(%x, %s) @ m.py:4:11-16 (f)\nreturn %y\n");
  EXPECT_THAT(c.refusal().reason, HasSubstr("shares its line"));
}

TEST(Edits, KeepTheArgumentsText) {
  Case c(apply_facts("import torch\n\n\ndef f(x):\n        return Swish.apply(x + 1)\n",
                     "Swish.apply(x + 1)"),
         std::string(kApplyGraph));
  c.facts.operations[0].arguments = {"expr"};
  c.facts.argument_sources = {"x + 1"};
  for (graph::Position& at : c.graph.positions)
    if (at.column == 15) at.end_column = 33;
  EXPECT_THAT(edit(c).source, HasSubstr("return F.silu(x + 1)\n"));
}

TEST(Edits, RefuseATextThatIsNotTheOne) {
  Case c = Case::apply_case();
  const auto wrong = apply_edits("import torch\n" + c.facts.text, c.plan(), c.facts.file, true);
  ASSERT_FALSE(wrong.ok());
  EXPECT_THAT(wrong.error().message, HasSubstr("/src/m.py: bytes "));
  EXPECT_THAT(wrong.error().message, HasSubstr("expected \"Swish.apply(x)\", found "));
  EXPECT_FALSE(apply_edits("", c.plan(), c.facts.file, true).ok());
}

// Against all pairs of short texts: git must come from one to the other.
TEST(Diff, IsAppliedByGit) {
  const std::vector<std::string> texts = {"a\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk\nl\nm\nn\n",
                                          "A\nb\nc\nd\ne\nf\ng\nH\ni\nj\nk\nl\nm\nN\n",
                                          "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk\nl\nm\nn",
                                          "x\ny\na\nb\nc\nd\ne\nn\n",
                                          "b\r\nc\r\nd\r\n",
                                          "a\n"};
  for (const std::string& before : texts)
    for (const std::string& after : texts) {
      if (before == after) continue;
      const std::string diff = unified_diff("m.py", before, after);
      EXPECT_EQ(after_git_apply(before, diff), after) << diff;
    }
  EXPECT_EQ(unified_diff("m.py", texts[0], texts[0]), "");
}

TEST(Diff, QuotesNamesAsGitDoes) {
  EXPECT_THAT(unified_diff("a b.py", "1\n", "2\n"), HasSubstr("--- a/a b.py\t\n+++ b/a b.py\t\n"));
  EXPECT_THAT(unified_diff("a\"b.py", "1\n", "2\n"), HasSubstr("--- \"a/a\\\"b.py\"\n"));
}

}  // namespace
}  // namespace opfuse::rewrite
