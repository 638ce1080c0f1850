// Trace files through all stages: what is found, at which proof level, and what is not.

#include "opfuse/pipeline_trace.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <unistd.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace opfuse {
namespace {

const match::Rulebook& rulebook() {
  static const match::Rulebook rules = [] {
    auto loaded = match::load_rulebook({}, graph::SchemaTable::builtin());
    EXPECT_TRUE(loaded.ok());
    return std::move(*loaded);
  }();
  return rules;
}

TraceAnalysis analyze_file(const std::string& path) {
  StageLog log;
  auto analysis = analyze_trace(path, {}, rulebook(), &log);
  EXPECT_TRUE(analysis.ok()) << (analysis.ok() ? "" : analysis.error().message);
  return analysis.ok() ? std::move(*analysis) : TraceAnalysis{};
}

TraceAnalysis analyze_text(const std::string& text, const char* name) {
  const auto path = std::filesystem::temp_directory_path() /
                    fmt::format("opfuse-trace-{}-{}", static_cast<int>(::getpid()), name);
  std::ofstream(path, std::ios::binary) << text;
  TraceAnalysis analysis = analyze_file(path);
  std::filesystem::remove(path);
  return analysis;
}

// Writes a step of a device: operators one after another, each with a kernel, and memory events.
class TraceWriter {
 public:
  explicit TraceWriter(bool memory) : memory_(memory) {}

  // `types` and `dims` as the file has them; the result's block is `bytes` at `address` (0: none).
  void op(const std::string& name, const std::string& dims, const std::string& types,
          int64_t address, int64_t bytes) {
    const int64_t at = now_ += 100;
    ++id_;
    add(fmt::format(R"({{"ph":"X","cat":"cpu_op","name":"{}","pid":1,"tid":1,"ts":{},"dur":20,)"
                    R"("args":{{"External id":{},"Input Dims":{},"Input type":{}}}}})",
                    name, at, id_, dims, types));
    if (memory_ && address != 0) memory(at + 2, address, bytes);
    add(fmt::format(R"({{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,)"
                    R"("ts":{},"dur":5,"args":{{"External id":{},"correlation":{}}}}})",
                    at + 5, id_, id_));
    add(fmt::format(R"({{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":{},"dur":10,)"
                    R"("args":{{"stream":7,"correlation":{}}}}})",
                    at + 30, id_));
  }
  void free(int64_t address, int64_t bytes) {
    if (memory_) memory(now_ + 50, address, -bytes);
  }
  std::string text() const { return "{\"traceEvents\":[" + events_ + "]}"; }

 private:
  void memory(int64_t at, int64_t address, int64_t bytes) {
    add(fmt::format(R"({{"ph":"i","cat":"cpu_instant_event","name":"[memory]","pid":1,"tid":1,)"
                    R"("ts":{},"args":{{"Addr":{},"Bytes":{},"Device Type":1,"Device Id":0}}}})",
                    at, address, bytes));
  }
  void add(const std::string& event) { events_ += (events_.empty() ? "" : ",\n") + event; }

  bool memory_;
  int64_t now_ = 1000, id_ = 0;
  std::string events_;
};

constexpr const char* kOne = "[[4,1024]]";
constexpr const char* kTwo = "[[4,1024],[4,1024]]";
constexpr const char* kFloat = R"(["float"])";
constexpr const char* kFloats = R"(["float","float"])";
constexpr int64_t kBytes = 4 * 1024 * 4;

// x from a matrix product, s = sigmoid(x), y = x * s; both die where the chain says.
std::string swish(bool memory) {
  TraceWriter trace(memory);
  trace.op("aten::mm", "[[4,8],[8,1024]]", kFloats, 100, kBytes);
  trace.op("aten::sigmoid", kOne, kFloat, 200, kBytes);
  trace.op("aten::mul", kTwo, kFloats, 300, kBytes);
  trace.free(200, kBytes);
  trace.free(100, kBytes);
  trace.op("aten::mm", "[[4,1024],[1024,8]]", kFloats, 400, 512);
  return trace.text();
}

TEST(TraceAnalysis, SwishIsProvedByMemory) {
  const TraceAnalysis a = analyze_text(swish(true), "swish.json");
  ASSERT_EQ(a.report.findings.size(), 1u);
  const report::TraceFinding& finding = a.report.findings[0];
  EXPECT_EQ(finding.rule, "silu");
  EXPECT_EQ(finding.calls, 1);
  EXPECT_EQ(finding.proof, graph::Proof::kP2);
  EXPECT_EQ(finding.price.now_ns, 20000);
  EXPECT_EQ(finding.price.launches, 2);
  EXPECT_EQ(finding.shapes, "f32[4,1024]");
  EXPECT_EQ(a.report.by_kernel_ns, a.report.by_operator_ns + a.report.orphan_ns);
}

TEST(TraceAnalysis, WithoutMemoryTheProofIsWeaker) {
  const TraceAnalysis a = analyze_text(swish(false), "swish-p1.json");
  ASSERT_EQ(a.report.findings.size(), 1u);
  EXPECT_LT(a.report.findings[0].proof, graph::Proof::kP2);
  EXPECT_FALSE(a.report.advice.empty());
}

// Halves of one tensor: a * sigmoid(b) has the same names, shapes and dtypes as Swish.
TEST(TraceAnalysis, AGatedHalfIsNotSwish) {
  TraceWriter trace(true);
  trace.op("aten::mm", "[[4,8],[8,2048]]", kFloats, 100, 2 * kBytes);
  trace.op("aten::sigmoid", kOne, kFloat, 200, kBytes);
  trace.op("aten::mul", kTwo, kFloats, 300, kBytes);
  trace.free(200, kBytes);
  trace.free(100, 2 * kBytes);
  const TraceAnalysis a = analyze_text(trace.text(), "glu.json");
  for (const report::TraceFinding& finding : a.report.findings)
    EXPECT_LT(finding.proof, graph::Proof::kP2) << finding.rule;
}

TEST(TraceAnalysis, AModelThatIsFusedAlreadyHasNoFinding) {
  const TraceAnalysis a =
      analyze_file(OPFUSE_SOURCE_DIR "/test/traces/kineto_bert_small_h100.json.gz");
  EXPECT_TRUE(a.report.findings.empty()) << a.report.findings.size();
  EXPECT_FALSE(a.report.fused.empty());
  EXPECT_FALSE(a.report.losses.damaged());
}

// Two shapes of schema, tensor ids reused: values follow the last writer.
TEST(TraceAnalysis, ExecutionTracesHaveTensorIds) {
  const TraceAnalysis a = analyze_file(OPFUSE_SOURCE_DIR "/test/traces/et_simple_add.json.gz");
  EXPECT_EQ(a.report.events, 38);
  EXPECT_GT(a.report.edges[3], 0);
}

TEST(TraceAnalysis, AscendKernelTablesHaveShapes) {
  const TraceAnalysis a = analyze_file(OPFUSE_SOURCE_DIR "/test/traces/ascend_kernel_details.csv");
  EXPECT_EQ(a.report.events, 29);
  EXPECT_GT(a.report.total_ns, 0);
  EXPECT_FALSE(a.report.losses.damaged());
}

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

TEST(TraceAnalysis, QwenKeepsItsOrphanKernels) {
  const std::string path = sample("kineto_qwen_h100.json.gz");
  if (path.empty()) GTEST_SKIP() << "OPFUSE_SAMPLES does not name the folder of large traces";
  const TraceAnalysis a = analyze_file(path);
  EXPECT_EQ(a.report.orphan_kernels, 436);
  EXPECT_EQ(a.report.kernels, 1465);
  EXPECT_EQ(calls_of(a, "silu"), 0);  // its SiLU is fused already
}

}  // namespace
}  // namespace opfuse
