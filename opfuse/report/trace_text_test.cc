#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "opfuse/report/trace_report.h"

namespace opfuse::report {
namespace {

using testing::HasSubstr;

TraceFinding silu(int64_t calls, int64_t now_ns) {
  TraceFinding finding;
  finding.rule = "silu";
  finding.module = "MBConvBlock_0";
  finding.shapes = "f32[16, 32]";
  finding.calls = calls;
  finding.price.now_ns = now_ns;
  return finding;
}

TEST(TracesText, FindingsOfOneChainInATraceAreSummed) {
  TraceReport first, second;
  first.findings = {silu(6, 4'000'000), silu(2, 1'000'000)};
  second.findings = {silu(4, 3'000'000)};
  EXPECT_THAT(traces_text({first, second}, 10),
              HasSubstr("silu             in 2 traces, 4 to 8 calls, 3.00 ms to 5.00 ms"));
}

}  // namespace
}  // namespace opfuse::report
