// Trace files through all stages: what is found, at which proof level, and what is not.

#include "opfuse/pipeline_trace_test.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace opfuse {
namespace {

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

TEST(TraceAnalysis, AChainThatNoRuleKnowsIsToldWithItsShare) {
  TraceWriter trace(true);
  trace.op("aten::mm", "[[4,8],[8,1024]]", kFloats, 100, kBytes);
  trace.op("aten::sin", kOne, kFloat, 200, kBytes);
  trace.op("aten::cos", kOne, kFloat, 300, kBytes);
  trace.free(200, kBytes);
  trace.free(100, kBytes);
  const TraceAnalysis a = analyze_text(trace.text(), "unknown.json");
  ASSERT_EQ(a.report.candidates.size(), 1u);
  const report::Candidate& chain = a.report.candidates[0];
  EXPECT_EQ(chain.operators, (std::vector<std::string>{"aten.sin", "aten.cos"}));
  EXPECT_NEAR(chain.share, 2.0 / 3, 1e-9);
  EXPECT_NE(report::trace_text(a.report, {}).find("66.7% of the operators' time: sin, cos (1 call"),
            std::string::npos);
  EXPECT_NE(report::trace_json(a.report).find("\"bytes_saved\": 32768"), std::string::npos);
  const TraceAnalysis known = analyze_text(swish(true), "known.json");
  EXPECT_TRUE(known.report.candidates.empty());
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

// Attention, GELU and norms are fused operators; what is left are the additions before its norms,
// two a layer.
TEST(TraceAnalysis, AModelThatIsFusedAlreadyHasNoFalseFinding) {
  const TraceAnalysis a =
      analyze_file(OPFUSE_SOURCE_DIR "/test/traces/kineto_bert_small_h100.json.gz");
  int64_t calls = 0;
  for (const report::TraceFinding& finding : a.report.findings) {
    EXPECT_EQ(finding.rule, "dropout_add_layer_norm");
    calls += finding.calls;
  }
  EXPECT_EQ(calls, 8);
  EXPECT_FALSE(a.report.fused.empty());
  EXPECT_FALSE(a.report.losses.damaged());
}

// Nodes of an execution trace, flat (1.0.1) or nested (1.1).
class ExecutionWriter {
 public:
  explicit ExecutionWriter(bool flat) : flat_(flat) {
    add("[pytorch|profiler|execution_trace|thread]", "", {}, {});
  }

  // Tensors are "tensor id, storage id, offset"; all are f32[4,8].
  void add(const std::string& name, const std::string& schema,
           const std::vector<std::string>& inputs, const std::vector<std::string>& outputs) {
    const std::string in = fmt::format("{}", fmt::join(tensors(inputs), ",")),
                      out = fmt::format("{}", fmt::join(tensors(outputs), ","));
    const std::string in_shapes = repeat("[4,8]", inputs.size()),
                      out_shapes = repeat("[4,8]", outputs.size()),
                      in_types = repeat("\"Tensor(float)\"", inputs.size()),
                      out_types = repeat("\"Tensor(float)\"", outputs.size());
    const int id = ++id_ + 1;
    std::string node;
    if (flat_)
      node = fmt::format(
          R"({{"name":"{}","id":{},"parent":{},"seq_id":-1,"tid":1,"op_schema":"{}","inputs":[{}],)"
          R"("input_shapes":[{}],"input_types":[{}],"outputs":[{}],"output_shapes":[{}],)"
          R"("output_types":[{}]}})",
          name, id, id == 2 ? 1 : 2, schema, in, in_shapes, in_types, out, out_shapes, out_types);
    else
      node = fmt::format(
          R"({{"id":{},"name":"{}","ctrl_deps":{},"inputs":{{"values":[{}],"shapes":[{}],)"
          R"("types":[{}],"strides":[{}]}},"outputs":{{"values":[{}],"shapes":[{}],"types":[{}],)"
          R"("strides":[{}]}},"attrs":[{{"name":"tid","type":"uint64","value":1}},)"
          R"({{"name":"op_schema","type":"string","value":"{}"}}]}})",
          id, name, id == 2 ? 1 : 2, in, in_shapes, in_types, repeat("[8,1]", inputs.size()), out,
          out_shapes, out_types, repeat("[8,1]", outputs.size()), schema);
    nodes_ += (nodes_.empty() ? "" : ",") + node;
  }
  void sigmoid(const std::string& x, const std::string& y) {
    add("aten::sigmoid", "aten::sigmoid(Tensor self) -> Tensor", {x}, {y});
  }
  void mul(const std::string& a, const std::string& b, const std::string& y) {
    add("aten::mul", "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor", {a, b}, {y});
  }
  std::string text() const {
    return fmt::format(R"({{"schema":"{}","pid":1,"nodes":[{}]}})", flat_ ? "1.0.1" : "1.1.1",
                       nodes_);
  }

 private:
  static std::vector<std::string> tensors(const std::vector<std::string>& ids) {
    std::vector<std::string> list;
    for (const std::string& id : ids) list.push_back("[" + id + ",32,4,\"cuda:0\"]");
    return list;
  }
  static std::string repeat(const std::string& text, size_t count) {
    return fmt::format("{}", fmt::join(std::vector<std::string>(count, text), ","));
  }

  bool flat_;
  int id_ = 0;
  std::string nodes_;
};

TEST(TraceAnalysis, ExecutionTracesProveByTensorIds) {
  for (const bool flat : {true, false}) {
    SCOPED_TRACE(flat ? "1.0.1" : "1.1.1");
    ExecutionWriter trace(flat);
    trace.sigmoid("10,11,0", "20,21,0");
    trace.mul("10,11,0", "20,21,0", "30,31,0");
    // The same pointers again: other values.
    trace.sigmoid("30,31,0", "20,21,0");
    trace.mul("30,31,0", "20,21,0", "10,11,0");
    const TraceAnalysis a = analyze_text(trace.text(), "et.json");
    ASSERT_EQ(a.report.findings.size(), 1u);
    EXPECT_EQ(a.report.findings[0].rule, "silu");
    EXPECT_EQ(a.report.findings[0].calls, 2);
    EXPECT_EQ(a.report.findings[0].proof, graph::Proof::kP3);
    EXPECT_FALSE(a.report.losses.damaged());
  }
}

TEST(TraceAnalysis, ATensorIdThatIsUsedAgainIsAnotherValue) {
  ExecutionWriter trace(false);
  trace.sigmoid("10,11,0", "20,21,0");
  trace.sigmoid("20,21,0", "10,11,0");  // not x any more
  trace.mul("10,11,0", "20,21,0", "30,31,0");
  const TraceAnalysis a = analyze_text(trace.text(), "reused.json");
  ASSERT_EQ(a.report.findings.size(), 1u);  // s * sigmoid(s), with s = sigmoid(x)
  EXPECT_EQ(a.report.findings[0].calls, 1);
  EXPECT_EQ(a.inferred.graph.nodes.size(), 3u);
}

TEST(TraceAnalysis, HalvesOfOneStorageAreTwoValues) {
  for (const bool flat : {true, false}) {
    ExecutionWriter trace(flat);
    trace.sigmoid("10,11,0", "20,21,0");
    trace.mul("12,11,32", "20,21,0", "30,31,0");
    const TraceAnalysis a = analyze_text(trace.text(), "halves.json");
    EXPECT_TRUE(a.report.findings.empty());
  }
}

// Missing commas, a string cut at the end, a parent that is not there.
TEST(TraceAnalysis, DamagedExecutionTracesGiveTheirWholeNodes) {
  const TraceAnalysis a = analyze_text(
      R"({"schema":"1.1.1-chakra","nodes":[{"id":1,"name":"a"} {"id":2,"name":"b","ctrl_deps":77},{"id":3,"na)",
      "cut-et.json");
  EXPECT_EQ(a.report.events, 2);
  EXPECT_EQ(a.report.losses.count(trace::LossKind::kCommaMissing), 1);
  EXPECT_EQ(a.report.losses.count(trace::LossKind::kEventCut), 1);
  EXPECT_EQ(a.report.losses.count(trace::LossKind::kParentMissing), 1);
}

TEST(TraceAnalysis, AnExecutionTraceOfAProgramIsRead) {
  const TraceAnalysis a = analyze_file(OPFUSE_SOURCE_DIR "/test/traces/et_simple_add.json.gz");
  EXPECT_EQ(a.report.events, 38);
  EXPECT_GT(a.report.edges[3], 0);
  EXPECT_FALSE(a.report.losses.damaged());
}

TEST(TraceAnalysis, AscendKernelTablesHaveShapes) {
  const TraceAnalysis a = analyze_file(OPFUSE_SOURCE_DIR "/test/traces/ascend_kernel_details.csv");
  EXPECT_EQ(a.report.events, 29);
  EXPECT_GT(a.report.total_ns, 0);
  EXPECT_FALSE(a.report.losses.damaged());
}

// The published case on an NPU, synthetic: the columns of the profiler's table, EfficientNet-B0's
// 49 calls of Swish as Sigmoid and Mul behind each BatchNorm.
TEST(TraceAnalysis, SwishOnAnNpuBecomesNpuSilu) {
  std::string table =
      "Step Id,Model ID,Task ID,Stream ID,Name,Type,OP State,Accelerator Core,Start Time(us),"
      "Duration(us),Wait Time(us),Input Shapes,Input Data Types,Output Shapes,Output Data Types\n";
  double now = 1736413971558972.5;
  const auto kernel = [&](const char* type, const std::string& in, const std::string& types,
                          const std::string& out, double dur) {
    table += fmt::format(
        "19,1,7,2,aclnn{0}_{0},{0},dynamic,AI_VECTOR_CORE,\"{1:.3f}\t\",{2},0.5,"
        "\"\"\"{3}\"\"\",{4},\"\"\"{5}\"\"\",DT_FLOAT16\n",
        type, now, dur, in, types, out);
    now += dur + 1;
  };
  for (int i = 0; i < 49; ++i) {
    const std::string shape = fmt::format("128,{},56,56", 16 + 8 * i);
    kernel("Conv2D", "128,16,56,56;32,16,3,3", "DT_FLOAT16;DT_FLOAT16", shape, 90);
    kernel("BNTrainingUpdate", shape, "DT_FLOAT16", shape, 60);
    kernel("Sigmoid", shape, "DT_FLOAT16", shape, 30);
    kernel("Mul", shape + ";" + shape, "DT_FLOAT16;DT_FLOAT16", shape, 40);
  }
  const TraceAnalysis a = analyze_text(table, "kernel_details.csv");
  EXPECT_FALSE(a.report.losses.damaged());
  int64_t calls = 0, now_ns = 0;
  for (const report::TraceFinding& finding : a.report.findings) {
    EXPECT_EQ(finding.rule, "silu");
    EXPECT_EQ(finding.target, "torch_npu.npu_silu");
    EXPECT_TRUE(finding.priced);
    EXPECT_LT(finding.price.mid_ns, finding.price.now_ns);
    EXPECT_LT(finding.proof, graph::Proof::kP2);
    calls += finding.calls;
    now_ns += finding.price.now_ns;
  }
  EXPECT_EQ(calls, 49);
  EXPECT_EQ(now_ns, 49 * 70000);
}

// The same as a timeline, synthetic: Swish is an autograd.Function, whose backward are six small
// operators on the engine's thread. Lists are Ascend's lines; kernels are joined by arrows.
class NpuTimeline {
 public:
  NpuTimeline() {
    add(R"({"ph":"M","name":"process_name","pid":7,"tid":0,"args":{"name":"Python"}})");
    add(R"({"ph":"M","name":"process_name","pid":800,"tid":0,"args":{"name":"Ascend Hardware"}})");
  }

  // A range of the host around what is added until end().
  void begin(const std::string& name, int tid, int64_t sequence) {
    open_.push_back({name, tid, sequence, now_ += 1000});
  }
  void end() {
    const Open& o = open_.back();
    now_ += 1000;
    add(fmt::format(R"({{"ph":"X","name":"{}","pid":7,"tid":{},"ts":"{}","dur":{},"cat":"cpu_op",)"
                    R"("args":{{"Sequence number":{},"Fwd thread id":0}}}})",
                    o.name, o.tid, us(o.from), us(now_ - o.from), o.sequence));
    open_.pop_back();
  }
  void op(const std::string& name, int tid, const std::string& dims, const std::string& types,
          int64_t kernel_ns) {
    const int64_t from = now_ += 2000, to = now_ += 8000;
    add(fmt::format(R"({{"ph":"X","name":"{}","pid":7,"tid":{},"ts":"{}","dur":{},"cat":"cpu_op",)"
                    R"("args":{{"Sequence number":-1,"Input Dims":"{}","Input type":"{}"}}}})",
                    name, tid, us(from), us(to - from), dims, types));
    device_ = std::max(device_ + 500, to);
    add(fmt::format(R"({{"ph":"s","bp":"e","name":"torch_to_npu","id":{},"pid":7,"tid":{},)"
                    R"("ts":"{}","cat":"async_npu"}})",
                    device_, tid, us(from + 1000)));
    add(fmt::format(R"({{"ph":"f","bp":"e","name":"torch_to_npu","id":{},"pid":800,"tid":3,)"
                    R"("ts":"{}","cat":"async_npu"}})",
                    device_, us(device_)));
    add(fmt::format(R"({{"ph":"X","name":"aclnn_{}","pid":800,"tid":3,"ts":"{}","dur":{},)"
                    R"("args":{{"Task Type":"AI_VECTOR_CORE","Stream Id":3}}}})",
                    name.substr(6), us(device_), us(kernel_ns)));
    device_ += kernel_ns;
  }
  std::string text() const { return "[" + events_ + "]"; }

 private:
  struct Open {
    std::string name;
    int tid;
    int64_t sequence, from;
  };
  static std::string us(int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }
  void add(const std::string& event) { events_ += (events_.empty() ? "" : ",\n") + event; }

  std::vector<Open> open_;
  int64_t now_ = 1704161511420306491, device_ = 0;
  std::string events_;
};

TEST(TraceAnalysis, SwishOnAnNpuIsFoundForwardAndBackward) {
  constexpr int kForward = 7, kBackward = 9;
  const std::string half = "c10::Half", line = R"(;\r\n)", scalar = line + "Scalar";
  NpuTimeline trace;
  const auto shape = [](int i) { return fmt::format("128,{},56,56", 16 + 8 * (i % 7)); };
  for (int i = 0; i < 49; ++i) {
    const std::string x = shape(i);
    trace.op("aten::native_batch_norm", kForward, x, half, 60000);
    trace.begin("SwishImplementation", kForward, 100 + i);
    trace.op("aten::sigmoid", kForward, x, half, 30000);
    trace.op("aten::mul", kForward, x + line + x, half + line + half, 40000);
    trace.end();
  }
  for (int i = 48; i >= 0; --i) {
    const std::string x = shape(i), two = x + line + x, halves = half + line + half;
    trace.begin("SwishImplementationBackward", kBackward, 100 + i);
    trace.op("aten::sigmoid", kBackward, x, half, 30000);
    trace.op("aten::rsub", kBackward, x + line + line, half + scalar + scalar, 30000);
    trace.op("aten::mul", kBackward, two, halves, 40000);
    trace.op("aten::add", kBackward, x + line + line, half + scalar + scalar, 30000);
    trace.op("aten::mul", kBackward, two, halves, 40000);
    trace.op("aten::mul", kBackward, two, halves, 40000);
    trace.end();
    trace.op("aten::native_batch_norm_backward", kBackward, two, halves, 80000);
  }
  const TraceAnalysis a = analyze_text(trace.text(), "trace_view.json");
  EXPECT_EQ(a.report.format, "ascend timeline");
  EXPECT_FALSE(a.report.losses.damaged());
  EXPECT_EQ(a.report.by_kernel_ns, a.report.by_operator_ns);
  int64_t calls = 0, backward = 0, launches = 0, now_ns = 0, backward_ns = 0, gain_ns = 0;
  for (const report::TraceFinding& finding : a.report.findings) {
    if (finding.rule != "silu" || finding.backward) continue;
    EXPECT_EQ(finding.target, "torch_npu.npu_silu");
    EXPECT_LT(finding.proof, graph::Proof::kP2);
    EXPECT_TRUE(finding.priced && finding.backward_price.known);
    calls += finding.calls;
    backward += finding.backward_calls;
    launches += finding.backward_price.launches;
    now_ns += finding.price.now_ns;
    backward_ns += finding.backward_price.now_ns;
    gain_ns += finding.step_gain_ns.mid;
  }
  EXPECT_EQ(calls, 49);
  EXPECT_EQ(backward, 49);
  EXPECT_EQ(launches, 49 * 6);
  EXPECT_EQ(now_ns, 49 * 70000);
  EXPECT_EQ(backward_ns, 49 * 210000);
  // Eight kernels become two: most of the 280 us of a call are gained, as the device decides.
  EXPECT_TRUE(a.report.step.known && a.report.step.has_host);
  EXPECT_LT(a.report.step.error, 0.03);
  EXPECT_GT(gain_ns, int64_t{49} * 100000);
  EXPECT_LT(gain_ns, int64_t{49} * 280000);
}

}  // namespace
}  // namespace opfuse
