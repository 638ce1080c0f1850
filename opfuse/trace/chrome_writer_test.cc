#include "opfuse/trace/chrome_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

namespace opfuse::trace {
namespace {

using Json = nlohmann::ordered_json;
using testing::ElementsAre;

class Tables {
 public:
  Tables() { table.threads.push_back({.pid = 100, .tid = 100, .name = 0}); }

  int32_t add(std::string_view name, EventKind kind, int64_t start, int64_t dur,
              int32_t parent = kNone) {
    EventRow event;
    event.name = table.strings.intern(name);
    event.kind = kind;
    event.start_ns = 5'000'000'000 + start;
    event.dur_ns = dur;
    event.parent = parent;
    table.events.push_back(event);
    return static_cast<int32_t>(table.events.size()) - 1;
  }
  EventRow& event(int32_t row) { return table.events[row]; }

  EventTable table;
};

std::vector<Json> events_of(const Json& trace, const std::string& phase) {
  std::vector<Json> found;
  for (const Json& event : trace["traceEvents"])
    if (event["ph"] == phase) found.push_back(event);
  return found;
}

TEST(ChromeWriter, TimesAreMicrosecondsWithTheDigitsOfTheNanoseconds) {
  Tables t;
  t.add("aten::relu", EventKind::kOperator, 0, 1);
  t.add("aten::relu", EventKind::kOperator, 1'234'567, 1'007);
  std::string text = chrome_trace(t.table, {});
  EXPECT_THAT(text, testing::HasSubstr("\"ts\": 0.000, \"dur\": 0.001"));
  EXPECT_THAT(text, testing::HasSubstr("\"ts\": 1234.567, \"dur\": 1.007"));
}

TEST(ChromeWriter, AnyBytesInNamesGiveStrictJson) {
  Tables t;
  std::string name = "quote\" back\\ tab\t nul";
  name += '\0';
  name += "\xff\xc0\xaf\xed\xa0\x80 \xe4\xb8\xad \xf0\x9f\x98\x80\xf5";
  t.add(name, EventKind::kUserScope, 0, 10);
  t.table.losses[name] = 1;
  Json trace = Json::parse(chrome_trace(t.table, {}));
  std::string read = events_of(trace, "X")[0]["name"];
  EXPECT_EQ(read.substr(0, 20), name.substr(0, 20));
  EXPECT_THAT(read, testing::HasSubstr("\xe4\xb8\xad \xf0\x9f\x98\x80\xef\xbf\xbd"));
}

TEST(ChromeWriter, ArrowsPairAndBeginInsideTheirSlices) {
  Tables t;
  int32_t composite = t.add("aten::linear", EventKind::kOperator, 0, 100);
  int32_t leaf = t.add("aten::addmm", EventKind::kOperator, 10, 80, composite);
  t.event(composite).forward_sequence = t.event(leaf).forward_sequence = 4;
  int32_t function = t.add("Swish", EventKind::kFunction, 200, 50);
  t.event(function).sequence = 5;
  int32_t swish = t.add("SwishBackward", EventKind::kAutogradNode, 300, 50);
  t.event(swish).sequence = 5;
  int32_t addmm = t.add("AddmmBackward0", EventKind::kAutogradNode, 400, 50);
  t.event(addmm).sequence = 4;
  t.event(t.add("AccumulateGrad", EventKind::kAutogradNode, 460, 5)).sequence = -1;
  Json trace = Json::parse(chrome_trace(t.table, {}));
  std::map<int64_t, double> starts, ends;
  for (const Json& flow : events_of(trace, "s")) starts[flow["id"]] = flow["ts"];
  for (const Json& flow : events_of(trace, "f")) {
    EXPECT_EQ(flow["bp"], "e");
    ends[flow["id"]] = flow["ts"];
  }
  EXPECT_THAT(starts, ElementsAre(std::pair{0, 0.2}, std::pair{1, 0.01}));
  EXPECT_THAT(ends, ElementsAre(std::pair{0, 0.3}, std::pair{1, 0.4}));
}

TEST(ChromeWriter, AFunctionWithoutANodeGetsNoArrow) {
  Tables t;
  t.event(t.add("Swish", EventKind::kFunction, 0, 50)).sequence = 5;
  int32_t relu = t.add("aten::relu", EventKind::kOperator, 60, 5);
  t.event(relu).forward_sequence = 5;
  t.event(t.add("ReluBackward0", EventKind::kAutogradNode, 100, 5)).sequence = 5;
  Json trace = Json::parse(chrome_trace(t.table, {}));
  auto starts = events_of(trace, "s");
  ASSERT_EQ(starts.size(), 1u);
  EXPECT_EQ(starts[0]["ts"], 0.06);
}

TEST(ChromeWriter, ChainsAreARowOfTheirOwnWithOneSliceACall) {
  Tables t;
  ChromeOptions options;
  for (int call = 0; call < 2; ++call)
    for (const char* name : {"aten::sigmoid", "aten::mul.Tensor"}) {
      int32_t row =
          t.add(name, EventKind::kOperator, 100 * static_cast<int>(t.table.events.size()), 90);
      options.marks.push_back({row, "silu", 0, call});
    }
  Json trace = Json::parse(chrome_trace(t.table, options));
  std::vector<Json> chains;
  for (const Json& slice : events_of(trace, "X"))
    if (slice["cat"] == "opfuse") chains.push_back(slice);
  ASSERT_EQ(chains.size(), 2u);
  EXPECT_EQ(chains[1]["ts"], 0.2);
  EXPECT_EQ(chains[1]["dur"], 0.19);
  EXPECT_EQ(chains[1]["args"]["operators"], 2);
  bool named = false;
  for (const Json& name : events_of(trace, "M"))
    named |= name["args"].contains("name") && name["args"]["name"] == "opfuse chains" &&
             name["tid"] == chains[0]["tid"];
  EXPECT_TRUE(named);
  EXPECT_EQ(events_of(trace, "X")[0]["args"]["chain"], "silu");
}

TEST(ChromeWriter, SourceIsTheInnermostFrameOutsideTheFramework) {
  Tables t;
  auto frame = [&](const char* file, const char* function, int line, int32_t parent) {
    t.table.frames.push_back(
        {t.table.strings.intern(file), t.table.strings.intern(function), line, 17, line, 37, 0});
    t.table.stacks.push_back({static_cast<int32_t>(t.table.frames.size()) - 1, parent});
    return static_cast<int32_t>(t.table.stacks.size()) - 1;
  };
  int32_t outer = frame("main.py", "train", 9, kNone);
  int32_t user = frame("net/utils.py", "Swish.forward", 67, outer);
  int32_t inner = frame("/usr/lib/python3/torch/nn/functional.py", "silu", 2000, user);
  t.event(t.add("aten::silu", EventKind::kOperator, 0, 5)).stack = inner;
  Json args = events_of(Json::parse(chrome_trace(t.table, {})), "X")[0]["args"];
  EXPECT_EQ(args["source"], "net/utils.py:67:17-37");
  EXPECT_THAT(args["stack"].get<std::vector<std::string>>(),
              ElementsAre("Swish.forward (net/utils.py:67:17-37)", "train (main.py:9:17-37)"));
}

TEST(ChromeWriter, AnUnfinishedEventReachesToTheEndAndSaysSo) {
  Tables t;
  t.event(t.add("aten::relu", EventKind::kOperator, 0, -1)).flags = kUnfinished;
  t.add("aten::relu", EventKind::kOperator, 50, 50);
  Json first = events_of(Json::parse(chrome_trace(t.table, {})), "X")[0];
  EXPECT_EQ(first["dur"], 0.1);
  EXPECT_EQ(first["args"]["unfinished"], true);
}

TEST(ChromeWriter, AnEmptyTableIsAValidTrace) {
  EXPECT_TRUE(Json::parse(chrome_trace({}, {}))["traceEvents"].empty());
}

}  // namespace
}  // namespace opfuse::trace
