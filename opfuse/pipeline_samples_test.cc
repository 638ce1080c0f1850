// Large real traces, where OPFUSE_SAMPLES names their folder: the counts that others found in them.

#include <cstdlib>
#include <filesystem>

#include "opfuse/pipeline_trace_test.h"

namespace opfuse {
namespace {

std::string sample(const char* name) {
  const char* folder = std::getenv("OPFUSE_SAMPLES");
  return folder == nullptr ? "" : std::string(folder) + "/" + name;
}

int64_t calls_of(const TraceAnalysis& a, std::string_view rule) {
  int64_t calls = 0;
  for (const report::TraceFinding& finding : a.report.findings)
    if (finding.rule == rule) calls += finding.calls;
  return calls;
}

// 120 large ones take 12.9 ms, and would take about 3.8 ms at the bandwidth of this trace's
// kernels.
TEST(TraceAnalysis, TheGelusOfOwlv2AreProvedByMemory) {
  const std::string path = sample("kineto_owlv2_h100.json.gz");
  if (path.empty()) GTEST_SKIP() << "OPFUSE_SAMPLES does not name the folder of large traces";
  auto rules = match::parse_rules(
      "op quick_gelu(x: T) -> T\n  version 1\n  composition\n    return x * sigmoid(1.702 * x)\n"
      "  target vendor.quick_gelu(x)\n",
      "quick.rule", graph::SchemaTable::builtin());
  ASSERT_TRUE(rules.ok());
  match::Rulebook book;
  book.rules = std::move(*rules);
  StageLog log;
  const auto a = analyze_trace(path, {}, book, &log);
  ASSERT_TRUE(a.ok());
  ASSERT_EQ(a->report.findings.size(), 2u);
  const report::TraceFinding& large = a->report.findings[0];
  EXPECT_EQ(large.calls, 120);
  EXPECT_EQ(large.shapes, "bf16[1,5185,4096]");
  EXPECT_EQ(large.proof, graph::Proof::kP2);
  EXPECT_EQ(large.conditions.size(), 1u);
  EXPECT_NEAR(static_cast<double>(large.price.now_ns), 12.9e6, 0.1e6);
  EXPECT_LE(large.price.low_ns, 3'800'000);
  EXPECT_GE(large.price.high_ns, 3'800'000);
  EXPECT_EQ(a->report.findings[1].calls, 60);
}

// 49 RMSNorms of 8 operators each take 7.38 of 45.4 ms of kernels: 48 are seen with the addition of
// the residual before them. 24 SwiGLUs have a matrix product in between.
TEST(TraceAnalysis, TheNormsAndGatesOfQwen) {
  const std::string path = sample("kineto_qwen_h100.json.gz");
  if (path.empty()) GTEST_SKIP() << "OPFUSE_SAMPLES does not name the folder of large traces";
  const TraceAnalysis a = analyze_file(path);
  EXPECT_EQ(a.report.orphan_kernels, 436);
  EXPECT_EQ(a.report.kernels, 1465);
  EXPECT_EQ(calls_of(a, "silu"), 0);  // its SiLU is fused already
  EXPECT_EQ(calls_of(a, "rms_norm") + calls_of(a, "add_rms_norm"), 49);
  EXPECT_EQ(calls_of(a, "silu_mul"), 24);
  EXPECT_EQ(calls_of(a, "rope"), 48);
  int64_t norms_ns = 0, kernels_ns = 0;
  for (const match::Match& match : a.matches.matches) {
    if (!match.rule->name.ends_with("rms_norm") || !match.refusals.empty()) continue;
    const size_t first = match.nodes.size() - 8;
    for (size_t i = first; i < match.nodes.size(); ++i)
      norms_ns += a.inferred.graph.nodes[match.nodes[i]].dur_ns;
  }
  for (const trace::KernelRow& kernel : a.events.table.kernels)
    if (kernel.work == trace::DeviceWork::kKernel) kernels_ns += kernel.dur_ns;
  EXPECT_NEAR(static_cast<double>(norms_ns), 7.378e6, 1e3);
  EXPECT_NEAR(static_cast<double>(kernels_ns), 45.43e6, 0.01e6);
  for (const report::TraceFinding& finding : a.report.findings)
    if (finding.rule == "silu_mul" || finding.rule == "rms_norm") {
      EXPECT_EQ(finding.proof, graph::Proof::kP2) << finding.rule;
    }
}

// The recorded time of every trace of a device, played again: one stream and several, a host that
// waits, captured graphs, queues that are full, work from before the file.
TEST(TraceAnalysis, StepsPlayedAgainTakeTheirRecordedTime) {
  if (sample("").empty()) GTEST_SKIP() << "OPFUSE_SAMPLES does not name the folder of large traces";
  for (const char* name :
       {"kineto_qwen_h100.json.gz", "kineto_owlv2_h100.json.gz", "kineto_bert_small_h100.json.gz",
        "kineto_resnet.json.gz", "kineto_ns_resolution.json.gz", "kineto_alexnet.json.gz",
        "kineto_gpu_only_mi210.json.gz", "kineto_triton.json.gz", "kineto_diff_control.json.gz",
        "kineto_diff_test.json.gz", "kineto_resnet_checkpoint_mi300.json.gz",
        "kineto_sglang_decode.json.gz", "kineto_simple_add.json.gz",
        "kineto_triton_example.json.gz"}) {
    SCOPED_TRACE(name);
    const TraceAnalysis a = analyze_file(sample(name));
    EXPECT_TRUE(a.report.step.known);
    EXPECT_LT(a.report.step.error, 0.03);
    EXPECT_LE(a.report.step.host_alone_ns, a.report.step.replayed_ns);
    EXPECT_LE(a.report.step.device_alone_ns, a.report.step.replayed_ns);
  }
}

}  // namespace
}  // namespace opfuse
