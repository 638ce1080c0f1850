// What profilers and crashes leave in trace files, each as the smallest text that shows it: the
// good events are read, the rest is named, counted and located.

#include <gtest/gtest.h>

#include "opfuse/trace/byte_source.h"
#include "opfuse/trace/chrome_reader.h"
#include "opfuse/trace/file_text.h"
#include "opfuse/trace/read.h"

namespace opfuse::trace {
namespace {

struct Quirk {
  const char* name;
  std::string text;
  const char* events;  // print_events
  const char* losses;  // print_losses
};

// Two good events around `middle`.
std::string between(const std::string& middle) {
  return R"({"traceEvents":[{"ph":"X","name":"a","ts":1,"dur":1.5},)" + middle +
         R"(,{"ph":"X","name":"z","ts":9,"dur":1.5}]})";
}
constexpr const char* kAround = "X other a [1000, +1500] 0/0\nX other z [9000, +1500] 0/0\n";

const Quirk kQuirks[] = {
    {"bare infinity beside a good event",
     R"~({"traceEvents":[{"ph":"X","cat":"gpu_memcpy","name":"Memcpy HtoD","pid":0,"tid":7,"ts":10,"dur":0,"args":{"memory bandwidth (GB/s)":inf}}]
})~",
     "X memcpy Memcpy HtoD [10000, +0] 0/7\n", "NumberNotFinite 1 @ 132\n"},
    {"nan, -inf, NaN, Infinity, -Infinity",
     R"([{"ph":"X","name":"a","ts":1,"args":{"a":nan,"b":-inf,"c":NaN,"d":Infinity,"e":-Infinity,"f":-1}}])",
     "X other a [1000] 0/0\n", "NumberNotFinite 5 @ 41\n"},
    {"bare N/A", R"([{"ph":"X","name":"a","ts":1,"args":{"a":N/A}}])", "X other a [1000] 0/0\n",
     "WordBare 1 @ 41\n"},
    {"bytes that are not UTF-8",
     "[{\"ph\":\"X\",\"name\":\"x\xF0\x28\x8C\x28\",\"ts\":1},{\"ph\":\"X\",\"name\":\"\xB9\","
     "\"ts\":2}]",
     "X other x\xEF\xBF\xBD(\xEF\xBF\xBD( [1000] 0/0\nX other \xEF\xBF\xBD [2000] 0/0\n",
     "NotUtf8 2 @ 19\n"},
    {"raw control bytes", std::string("[{\"ph\":\"X\",\"name\":\"a\x01\x1F\",\"ts\":1}]"),
     "X other a\x01\x1F [1000] 0/0\n", "ControlBytes 1 @ 19\n"},
    {"single backslashes of Windows paths",
     R"([{"ph":"X","name":"torch\cuda\__init__.py(219): f","ts":1}])",
     "X other torch\\cuda\\__init__.py(219): f [1000] 0/0\n", "EscapeIllegal 1 @ 19\n"},
    {"escapes", R"([{"ph":"X","name":"a\"b\\\u00e9\ud83d\ude00","ts":1}])",
     "X other a\"b\\\xC3\xA9\xF0\x9F\x98\x80 [1000] 0/0\n", ""},
    {"a quote inside a name", R"([{"ph":"X","name":"apply "x" now","ts":1}])",
     "X other apply \"x\" now [1000] 0/0\n", "QuoteInString 1 @ 25\n"},
    {"a raw newline in a name", "[{\"ph\":\"X\",\"name\":\"a\nb\",\"ts\":1}]",
     "X other a\nb [1000] 0/0\n", ""},
    {"a key without its opening quote",
     between(R"({"ph":"f","ts":1,tid":0,"pid":"CUDA functions"})"), kAround,
     "EventUnreadable 1 @ 55\n"},
    {"a missing comma between members", R"([{"ph":"X" "name":"a","ts":1 "dur":2}])",
     "X other a [1000, +2000] 0/0\n", "CommaMissing 2 @ 11\n"},
    {"a trailing comma", R"([{"ph":"X","name":"a","ts":1},])", "X other a [1000] 0/0\n", ""},
    {"events glued without a comma",
     R"([{"ph":"X","name":"a","ts":1}{"ph":"X","name":"b","ts":2}])",
     "X other a [1000] 0/0\nX other b [2000] 0/0\n", "CommaMissing 1 @ 29\n"},
    {"arrays glued together", R"([{"ph":"X","name":"a","ts":1},][{"ph":"X","name":"b","ts":2}])",
     "X other a [1000] 0/0\nX other b [2000] 0/0\n", "StrayText 1 @ 30\n"},
    {"the array is not closed", R"([{"ph":"X","name":"a","ts":1},)", "X other a [1000] 0/0\n",
     "FileEndMissing 1 @ 30\n"},
    {"cut inside a number", R"([{"ph":"X","name":"a","ts":1},{"ph":"X","name":"b","ts":2,"dur":12)",
     "X other a [1000] 0/0\n", "EventCut 1 @ 30\nFileEndMissing 1 @ 66\n"},
    {"cut inside a string", R"({"traceEvents":[{"ph":"X","name":"a","ts":1},{"ph":"X","na)",
     "X other a [1000] 0/0\n", "EventCut 1 @ 45\nFileEndMissing 1 @ 58\n"},
    {"the metadata behind the events is cut",
     R"({"traceEvents":[{"ph":"X","name":"a","ts":1}],"deviceProperties":[{"id)",
     "X other a [1000] 0/0\n", "FileEndMissing 1 @ 70\n"},
    {"legacy array: text as pid, no category, whole microseconds",
     R"([{"name":"aten::mul","ph":"X","ts":633,"dur":54,"tid":1,"pid":"CPU functions","args":{}}])",
     "X operator aten::mul [633000, +54000] CPU functions/1\n", ""},
    {"unknown top-level members of any type",
     R"({"schemaVersion":1,"deviceProperties":[{"id":0}],"x":{"y":[1,[2],"}"]},"traceEvents":[{"ph":"X","name":"a","ts":1}],"z":null})",
     "X other a [1000] 0/0\n", ""},
    {"old categories, stream as text",
     R"([{"ph":"X","cat":"Operator","name":"aten::mul","ts":1,"dur":1,"args":{"external id":7}},
         {"ph":"X","cat":"Kernel","name":"k","tid":"stream 7","ts":2,"dur":1,"args":{"external id":7,"correlation":9}}])",
     "X operator aten::mul [1000, +1000] 0/0 id=7\nX kernel k [2000, +1000] 0/stream 7 id=9\n", ""},
    {"zero stamps are no fast operators",
     R"([{"ph":"X","name":"a","ts":5.5,"dur":1},{"ph":"X","name":"b","ts":0.000,"dur":0.000},{"ph":"X","name":"c","ts":0.000,"dur":0.000}])",
     "X other a [5500, +1000] 0/0\nX other b 0/0\nX other c 0/0\n", "TimeZero 2\n"},
    {"neighbours 49 ns apart at epoch size",
     R"([{"ph":"X","name":"a","ts":1732107142997066.682,"dur":476375.838},{"ph":"X","name":"b","ts":1732107143473442.569,"dur":300492.826}])",
     "X other a [1732107142997066682, +476375838] 0/0\n"
     "X other b [1732107143473442569, +300492826] 0/0\n",
     ""},
    {"times as text, ids above 2^53",
     R"([{"ph":"X","name":"a","ts":"1732107142997066.682","dur":"476.838","pid":9007199254740993,"tid":"7"},
         {"ph":"s","id":9007199254740993,"name":"f","cat":"HostToDevice","ts":"1.5"},
         {"ph":"f","id":"9007199254740992","name":"f","cat":"HostToDevice","ts":"2"}])",
     "X other a [1732107142997066682, +476838] 9007199254740993/7\n"
     "s flow f [1500] 0/0 id=9007199254740993\nf flow f [2000] 0/0 id=9007199254740992\n",
     "FlowUnpaired 2\n"},
    {"four digits behind the point are rounded, exponents are read",
     R"([{"ph":"X","name":"a","ts":1.0005,"dur":0.00049},{"ph":"X","name":"b","ts":1.5e3,"dur":25E-1}])",
     "X other a [1001, +0] 0/0\nX other b [1500000, +2500] 0/0\n", ""},
    {"negative and unreadable durations",
     R"([{"ph":"X","name":"a","ts":1.5,"dur":-877330},{"ph":"X","name":"b","ts":2,"dur":"abc"}])",
     "X other a [1500] 0/0\nX other b [2000] 0/0\n",
     "DurationNegative 1 @ 37\nDurationUnreadable 1 @ 80\n"},
    {"no time stamp", R"([{"ph":"X","name":"a"},{"ph":"X","name":"b","ts":"soon"}])",
     "X other a 0/0\nX other b 0/0\n", "EventWithoutTime 2 @ 1\n"},
    {"a number beyond 64 bits", R"([{"ph":"X","name":"a","ts":1,"id":99999999999999999999}])",
     "X other a [1000] 0/0\n", "NumberTooLarge 1 @ 34\n"},
    {"begin and end are paired, also nested; what is alone is counted",
     R"([{"ph":"E","name":"x","ts":0.5},{"ph":"B","name":"a","ts":1},{"ph":"B","name":"b","ts":2},{"ph":"E","ts":4},{"ph":"E","ts":9},{"ph":"B","name":"c","ts":10}])",
     "E other x [500] 0/0\nB other a [1000, +8000] 0/0\nB other b [2000, +2000] 0/0\n"
     "E other  [4000] 0/0\nE other  [9000] 0/0\nB other c [10000] 0/0\n",
     "UnpairedBegin 1\nUnpairedEnd 1\n"},
    {"launch calls are known by category, whatever their name",
     R"([{"ph":"X","cat":"cuda_driver","name":"cuLaunchKernelEx","ts":1.5,"args":{"correlation":1}},
         {"ph":"X","cat":"privateuse1_runtime","name":"aclrtLaunchKernel","ts":2,"args":{"correlation":2}}])",
     "X runtime cuLaunchKernelEx [1500] 0/0 id=1\nX runtime aclrtLaunchKernel [2000] 0/0 id=2\n",
     ""},
    {"memory events",
     R"([{"ph":"i","cat":"cpu_instant_event","s":"t","name":"[memory]","ts":1,"args":{"Bytes":-8,"Addr":77,"Device Type":1,"Device Id":0}}])",
     "i memory [memory] [1000] 0/0 id=77\n", ""},
    {"a byte order mark", "\xEF\xBB\xBF[{\"ph\":\"X\",\"name\":\"a\",\"ts\":1}]",
     "X other a [1000] 0/0\n", ""},
    {"an empty object", "{}", "", "FileEmpty 1\n"},
    {"no events", R"({"traceEvents":[]})", "", "FileEmpty 1\n"},
    {"nothing at all", "", "", "FileEmpty 1\n"},
};

TEST(Quirks, AreReadAndNamed) {
  for (const Quirk& quirk : kQuirks) {
    SCOPED_TRACE(quirk.name);
    const auto file = read_trace_text(quirk.text, "quirk");
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_EQ(print_events(*file), quirk.events);
    EXPECT_EQ(print_losses(file->losses), quirk.losses);
  }
}

// Pieces end inside of every kind of damage: two threads say what one says.
TEST(Quirks, AreTheSameInPiecesOfTwoThreads) {
  for (const Quirk& quirk : kQuirks)
    for (const size_t piece : {40, 64, 100, 200}) {
      SCOPED_TRACE(std::string(quirk.name) + ", pieces of " + std::to_string(piece));
      TraceFile file;
      file.format = "chrome";
      const auto source = bytes_of(quirk.text);
      read_chrome(source.get(), {.threads = 2, .piece_bytes = piece}, &file);
      finish_trace_file(&file);
      EXPECT_EQ(print_events(file), quirk.events);
      EXPECT_EQ(print_losses(file.losses), quirk.losses);
    }
}

// Every beginning of a file gives the events that are whole in it.
TEST(Quirks, AnyPrefixGivesItsWholeEvents) {
  const std::string text =
      R"({"schemaVersion":1,"traceEvents":[{"ph":"X","name":"a\"","ts":1,"args":{"x":[1,{"y":"}"}]}},)"
      "\n"
      R"({"ph":"X","name":"b","ts":2}],"traceName":"t"})";
  const size_t first = text.find("}},") + 2, second = text.find("],\"traceName");
  for (size_t size = 0; size < text.size(); ++size) {
    const auto file = read_trace_text(text.substr(0, size), "prefix");
    ASSERT_TRUE(file.ok());
    EXPECT_EQ(file->size(), size < first ? 0u : size < second ? 1u : 2u) << text.substr(0, size);
    EXPECT_TRUE(file->losses.damaged()) << text.substr(0, size);
  }
}

TEST(Quirks, SecretsOfTheHeaderAreNotHeld) {
  const auto file = read_trace_text(
      R"({"env":{"API_TOKEN":"hunter2"},"traceEvents":[{"ph":"X","name":"a","ts":1,"args":{"env":"hunter2"}}]})",
      "secret");
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->header.empty());
  StringId id = 0;
  EXPECT_FALSE(file->strings.find("hunter2", &id));
}

}  // namespace
}  // namespace opfuse::trace
