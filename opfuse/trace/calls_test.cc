// Launches, kernels and nesting of trace files, each case as the smallest file that shows it.

#include "opfuse/trace/calls.h"

#include <gtest/gtest.h>

#include "opfuse/trace/file_events.h"
#include "opfuse/trace/read.h"

namespace opfuse::trace {
namespace {

struct Found {
  TraceFile file;
  Calls calls;
  EventTable table;
};

Found find(const std::string& events) {
  auto file = read_trace_text("[" + events + "]", "calls");
  EXPECT_TRUE(file.ok());
  Found found{std::move(*file), {}, {}};
  found.calls = find_calls(found.file, &found.file.losses);
  auto table = file_events(found.file, found.calls);
  EXPECT_TRUE(table.ok());
  found.table = std::move(table->table);
  return found;
}

std::string row(const char* category, const char* name, double ts, double dur,
                const std::string& args = "{}", int tid = 1) {
  return "{\"ph\":\"X\",\"cat\":\"" + std::string(category) + "\",\"name\":\"" + name +
         "\",\"pid\":1,\"tid\":" + std::to_string(tid) + ",\"ts\":" + std::to_string(ts) +
         ",\"dur\":" + std::to_string(dur) + ",\"args\":" + args + "}";
}

TEST(Calls, AKernelBelongsToTheOperatorAroundItsLaunch) {
  const Found f =
      find(row("cpu_op", "aten::linear", 0.5, 20) + "," + row("cpu_op", "aten::addmm", 1, 10) +
           "," + row("cuda_driver", "cuLaunchKernelEx", 2, 3, R"({"correlation":7})") + "," +
           row("kernel", "gemm", 30, 5, R"({"correlation":7,"stream":3})", 3));
  ASSERT_EQ(f.table.kernels.size(), 1u);
  const KernelRow& kernel = f.table.kernels[0];
  EXPECT_EQ(f.table.name(f.table.events[kernel.event]), "aten::addmm");
  EXPECT_EQ(kernel.launch_ns, 2000);
  EXPECT_EQ(kernel.stream, 3);
}

TEST(Calls, CorrelationZeroIsUnknown) {
  std::string events = row("cpu_op", "aten::mul", 0.5, 10) + "," +
                       row("cuda_runtime", "cudaLaunchKernel", 1, 1, R"({"correlation":0})");
  for (int i = 0; i < 5; ++i)
    events += "," + row("kernel", "nccl", 20 + i, 1, R"({"correlation":0})", 7);
  const Found f = find(events);
  EXPECT_EQ(f.calls.orphans, 5);
  EXPECT_EQ(f.file.losses.count(LossKind::kCorrelationZero), 5);
  for (const KernelRow& kernel : f.table.kernels) EXPECT_EQ(kernel.event, kNone);
}

TEST(Calls, KernelsOfACapturedGraphStayUnderTheirLaunchWithoutOperators) {
  std::string events = row("cuda_runtime", "cudaGraphLaunch", 1, 2, R"({"correlation":9})");
  for (int i = 0; i < 24; ++i)
    events += "," + row("kernel", "k", 20 + i, 1, R"({"correlation":9})", 7);
  const Found f = find(events);
  EXPECT_EQ(f.calls.graph_launches, 1);
  EXPECT_EQ(f.calls.orphans, 0);
  EXPECT_EQ(f.table.kernels.size(), 24u);
  for (const KernelRow& kernel : f.table.kernels) {
    EXPECT_EQ(kernel.event, kNone);
    EXPECT_EQ(kernel.launch_ns, 1000);
  }
}

TEST(Calls, AnnotationsOnTheDeviceAreNoWork) {
  const Found f = find(row("gpu_user_annotation", "step", 0.5, 50, "{}", 7) + "," +
                       row("kernel", "k", 10, 10, R"({"correlation":1})", 7));
  ASSERT_EQ(f.table.kernels.size(), 1u);
  EXPECT_EQ(f.table.kernels[0].dur_ns, 10000);
}

TEST(Calls, AChildMayEndAMicrosecondLate) {
  const Found f =
      find(row("cpu_op", "a::outer", 1.5, 10) + "," + row("cpu_op", "a::inner", 2, 10.2));
  EXPECT_EQ(f.calls.parent[1], 0);
  EXPECT_EQ(f.file.losses.count(LossKind::kCrossingSlices), 0);
}

TEST(Calls, CrossingSlicesAreCountedAndNested) {
  const Found f = find(row("cpu_op", "a::parent", 0.5, 10) + "," + row("cpu_op", "a::child", 5, 7) +
                       "," + row("cpu_op", "a::sibling", 11, 4));
  EXPECT_EQ(f.calls.parent[1], 0);
  EXPECT_EQ(f.calls.parent[2], kNone);  // touches the child by the microsecond of rounding
  EXPECT_EQ(f.file.losses.count(LossKind::kCrossingSlices), 1);
}

TEST(Calls, WholeMicrosecondsKeepTheOrderOfTheFile) {
  std::string events;
  for (int i = 0; i < 6; ++i)
    events += std::string(i ? "," : "") + row("cpu_op", "aten::sigmoid", 10 + i / 3, 0) + "," +
              row("cpu_op", "aten::mul", 10 + i / 3, 0);
  const Found f = find(events);
  ASSERT_EQ(f.table.events.size(), 12u);
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(f.table.name(f.table.events[i]), i % 2 ? "aten::mul" : "aten::sigmoid");
    EXPECT_EQ(f.table.events[i].parent, kNone);
  }
}

TEST(Calls, ForwardAndBackwardOnOneThreadAreToldByTheKindOfNode) {
  const Found f =
      find(row("cpu_op", "aten::mul", 1, 2, R"({"Sequence number":10})") + "," +
           row("cpu_op", "MulBackward0", 5, 3, R"({"Sequence number":10,"Fwd thread id":1})"));
  EXPECT_EQ(f.table.events[0].kind, EventKind::kOperator);
  EXPECT_EQ(f.table.events[0].forward_sequence, 10);
  EXPECT_EQ(f.table.events[1].kind, EventKind::kAutogradNode);
  EXPECT_EQ(f.table.events[1].sequence, 10);
}

TEST(Calls, ACustomFunctionIsLookedThrough) {
  const Found f =
      find(row("cpu_op", "SwishImplementation", 1, 9, R"({"Sequence number":3})") + "," +
           row("cpu_op", "aten::sigmoid", 2, 2) + "," + row("cpu_op", "aten::mul", 5, 2));
  EXPECT_EQ(f.table.events[0].kind, EventKind::kFunction);
  EXPECT_EQ(f.table.events[1].parent, 0);
  EXPECT_EQ(f.table.events[2].parent, 0);
}

TEST(Calls, PythonFramesBecomeStacksAndModulesScopes) {
  const Found f = find(row("python_function", "model.py(12): forward", 0.5, 50) + "," +
                       row("python_function", "nn.Module: SiLU_3", 1, 30) + "," +
                       row("cpu_op", "aten::silu", 2, 5));
  ASSERT_EQ(f.table.events.size(), 2u);
  EXPECT_EQ(f.table.name(f.table.events[0]), "nn.Module: SiLU_3");
  const FrameRow& frame = f.table.frames[f.table.stacks[f.table.events[1].stack].frame];
  EXPECT_EQ(f.table.strings.get(frame.file), "model.py");
  EXPECT_EQ(frame.line, 12);
}

// Ascend: the arrow from the host ends where the kernel begins; the host's row is a dequeue's.
TEST(Calls, AscendKernelsAreJoinedByTheirArrow) {
  const Found f = find(
      row("cpu_op", "aten::mul", 1.5, 20) +
      R"(,{"ph":"s","cat":"async_npu","id":"1736413971558972912","name":"torch_to_npu","pid":1,"tid":1,"ts":"2.000"})"
      R"(,{"ph":"f","cat":"async_npu","id":1736413971558972912,"name":"torch_to_npu","pid":9,"tid":4,"ts":"40.125"})"
      R"(,{"ph":"X","name":"aclnnMul","pid":9,"tid":4,"ts":"40.125","dur":3})"
      R"(,{"ph":"M","name":"process_name","pid":9,"tid":0,"args":{"name":"Ascend Hardware"}})");
  ASSERT_EQ(f.table.kernels.size(), 1u);
  EXPECT_EQ(f.table.name(f.table.events[f.table.kernels[0].event]), "aten::mul");
}

}  // namespace
}  // namespace opfuse::trace
