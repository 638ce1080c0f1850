#include "opfuse/report/pack.h"

#include <gmock/gmock.h>

#include "opfuse/report/machine.h"
#include "opfuse/report/sample_run.h"

namespace opfuse::report {
namespace {

Report swish_report(const std::string& file) {
  Report report;
  Site site;
  site.id = 0;
  site.function_class = "efficientnet_pytorch.utils.SwishImplementation";
  site.file = site.chain_file = file;
  site.line = 80;
  site.chain_line = 67;
  site.target = "aten.silu";
  site.operators = {{"aten.sigmoid", 67, 21}, {"aten.mul.Tensor", 67, 17}};
  report.sites.push_back(site);
  return report;
}

TEST(Marks, FindForwardAndBackwardOfEveryCallOfAFunction) {
  const auto table = sample_step("utils.py", false);
  const ChainMarks marks = mark_chains(table, swish_report("utils.py"), Side::kBefore);
  ASSERT_EQ(marks.calls.size(), 49u);
  for (const ChainCall& call : marks.calls) {
    ASSERT_EQ(call.backward.size(), 1u);
    EXPECT_EQ(table.name(table.events[call.backward[0]]), "SwishImplementationBackward");
  }
  int sigmoids = 0, others = 0;
  for (size_t row = 0; row < table.events.size(); ++row)
    if (table.name(table.events[row]) == "aten::sigmoid")
      ++(marks.site_of[row] == 0 ? sigmoids : others);
  EXPECT_EQ(sigmoids, 98);  // forward and backward; the gates' own are not part of the chain
  EXPECT_EQ(others, 16);
}

TEST(Marks, FindTheOperatorThatReplacedTheChain) {
  const auto table = sample_step("utils.py", true);
  const ChainMarks marks = mark_chains(table, swish_report("utils.py"), Side::kAfter);
  ASSERT_EQ(marks.calls.size(), 49u);
  EXPECT_EQ(table.name(table.events[marks.calls[0].forward[0]]), "aten::silu");
  EXPECT_EQ(table.name(table.events[marks.calls[0].backward[0]]), "SiluBackward0");
}

TEST(Marks, AnInlineChainIsFoundByOperatorAndPosition) {
  const auto table = sample_step("utils.py", false);
  Report report = swish_report("utils.py");
  report.sites[0].function_class.clear();
  const ChainMarks marks = mark_chains(table, report, Side::kBefore);
  ASSERT_EQ(marks.calls.size(), 49u);
  EXPECT_EQ(marks.calls[7].forward.size(), 2u);
}

TEST(Marks, NothingIsMarkedInAnotherFile) {
  const auto table = sample_step("utils.py", false);
  EXPECT_TRUE(mark_chains(table, swish_report("other.py"), Side::kBefore).calls.empty());
}

TEST(Pack, KeepsChainsAndTheLongestWhenThereAreTooMany) {
  const auto table = sample_step("utils.py", false);
  const auto marks = mark_chains(table, swish_report("utils.py"), Side::kBefore);
  TimelinePacker packer;
  packer.add(table, marks, "before", 800);
  const Json step = packer.take()["steps"][0];
  EXPECT_EQ(step["count"], 800);
  EXPECT_EQ(step["left_out"], table.events.size() - 800);
  for (const Json& call : step["calls"]) EXPECT_EQ(call["forward"].size(), 1u);
}

TEST(Pack, AnEmptyTableIsAnEmptyStep) {
  TimelinePacker packer;
  packer.add(trace::EventTable{}, ChainMarks{}, "before");
  const Json step = packer.take()["steps"][0];
  EXPECT_EQ(step["count"], 0);
  EXPECT_EQ(step["duration"], 0);
}

TEST(Pack, Base64IsThatOfRfc4648) {
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foobar"), "Zm9vYmFy");
}

TEST(Machine, IsReadFromCpuinfo) {
  Machine machine;
  read_cpuinfo(
      "processor\t: 0\ncpu family\t: 6\nmodel name\t: Xeon 8488C\ncpu MHz\t: 2400\n"
      "flags\t\t: fpu avx2 fma avx512f avx512bw avx512vl\n\nprocessor\t: 1\nmodel name\t: other\n",
      &machine);
  EXPECT_EQ(machine.cpu, "Xeon 8488C");
  EXPECT_EQ(machine.cores_total, 2);
  EXPECT_EQ(machine.isa, "avx512");
}

TEST(Machine, ThisOneHasACoreAndMemory) {
  const Machine machine = this_machine();
  EXPECT_GT(machine.cores, 0);
  EXPECT_GT(machine.memory_bytes, 0);
  EXPECT_FALSE(machine.cpu.empty());
}

}  // namespace
}  // namespace opfuse::report
