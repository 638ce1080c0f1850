// Real files of several profilers are read whole: the number of events is that of a strict JSON
// parser, nothing is lost, and two threads read what one reads.

#include "opfuse/trace/read.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include <gtest/gtest.h>

#include "opfuse/trace/chrome_reader.h"
#include "opfuse/trace/file_text.h"

namespace opfuse::trace {
namespace {

struct Sample {
  const char* name;
  size_t events, operators, kernels;
};

constexpr Sample kSmall[] = {
    {"kineto_alexnet.json.gz", 1408, 359, 79},
    {"kineto_backward_thread.json", 7, 3, 1},
    {"kineto_bert_small_h100.json.gz", 2551, 479, 60},
    {"kineto_cpu_only.json.gz", 30, 4, 0},
    {"kineto_gpu_only_mi210.json.gz", 2443, 0, 562},
    {"kineto_sglang_decode.json.gz", 2058, 61, 555},
    {"kineto_simple_add.json.gz", 111, 28, 4},
    {"kineto_triton.json.gz", 246, 41, 12},
    {"kineto_triton_example.json.gz", 71, 3, 1},
};

constexpr Sample kLarge[] = {
    {"kineto_diff_control.json.gz", 109123, 40506, 8568},
    {"kineto_diff_test.json.gz", 105167, 31236, 9876},
    {"kineto_ns_resolution.json.gz", 68692, 23910, 4350},
    {"kineto_owlv2_h100.json.gz", 132152, 24378, 4330},
    {"kineto_qwen_h100.json.gz", 18221, 4186, 1465},
    {"kineto_resnet.json.gz", 111631, 39416, 9628},
    {"kineto_resnet_checkpoint_mi300.json.gz", 56451, 8004, 2995},
};

size_t count(const TraceFile& file, FileKind kind) {
  return static_cast<size_t>(std::ranges::count(file.kind, kind));
}

void check(const Sample& sample, const std::string& folder) {
  SCOPED_TRACE(sample.name);
  const auto one = read_trace(folder + "/" + sample.name);
  ASSERT_TRUE(one.ok()) << one.error().message;
  EXPECT_EQ(one->size(), sample.events);
  EXPECT_EQ(count(*one, FileKind::kOperator), sample.operators);
  EXPECT_EQ(count(*one, FileKind::kKernel), sample.kernels);
  EXPECT_FALSE(one->losses.damaged()) << print_losses(one->losses);
  const auto two = read_trace(folder + "/" + sample.name, {.threads = 2});
  ASSERT_TRUE(two.ok()) << two.error().message;
  EXPECT_TRUE(print_events(*one) == print_events(*two));
  EXPECT_EQ(print_losses(one->losses), print_losses(two->losses));
  EXPECT_EQ(one->bytes, two->bytes);
}

TEST(ReadTrace, SmallFilesOfSeveralProfilers) {
  for (const Sample& sample : kSmall) check(sample, OPFUSE_SOURCE_DIR "/test/traces");
}

TEST(ReadTrace, LargeFilesWhereTheyAreFound) {
  const char* folder = std::getenv("OPFUSE_SAMPLES");
  if (folder == nullptr) GTEST_SKIP() << "OPFUSE_SAMPLES does not name the folder of large traces";
  for (const Sample& sample : kLarge) check(sample, folder);
}

TEST(ReadTrace, AscendTimelineKeepsItsNanoseconds) {
  const auto file = read_trace(OPFUSE_SOURCE_DIR "/test/traces/ascend_trace_view.json.gz");
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->size(), 3670u);
  EXPECT_EQ(count(*file, FileKind::kOperator), 711u);
  EXPECT_EQ(count(*file, FileKind::kQueue), 296u);
  EXPECT_GT(count(*file, FileKind::kKernel), 0u);
  EXPECT_GT(count(*file, FileKind::kHost), 0u);
  EXPECT_EQ(file->start_ns[0], 1704161511420306491);
  EXPECT_EQ(file->dur_ns[0], 13080);
  EXPECT_FALSE(file->losses.damaged()) << print_losses(file->losses);
}

// An odd step, so that pieces and windows end at every place of an event.
TEST(ReadTrace, WindowsAndPiecesCutAnywhere) {
  std::string text = "{\"traceEvents\": [\n";
  std::string expected;
  for (int i = 0; i < 60000; ++i) {
    const std::string name(static_cast<size_t>(i % 997), 'x');
    text += "  {\"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"" + name +
            "\", \"pid\": 1, \"tid\": 2, " + "\"ts\": " + std::to_string(i) +
            ".5, \"dur\": 0.25, \"args\": {\"Input Dims\": [[" + std::to_string(i % 10) + "]]}},\n";
  }
  text += "  {}\n], \"schemaVersion\": 1}";
  const auto one = read_trace_text(text, "one");
  const auto three = read_trace_text(text, "three", {.threads = 3});
  ASSERT_TRUE(one.ok() && three.ok());
  ASSERT_EQ(one->size(), 60001u);
  for (size_t i = 0; i < 60000; ++i) {
    ASSERT_EQ(one->start_ns[i], static_cast<int64_t>(i) * 1000 + 500);
    ASSERT_EQ(one->text(one->name[i]).size(), i % 997);
  }
  EXPECT_TRUE(print_events(*one) == print_events(*three));
  EXPECT_EQ(one->header.at("schemaVersion"), "1");
  EXPECT_EQ(three->header.at("schemaVersion"), "1");
}

TEST(ReadTrace, DamageInTheMiddleIsReadTheSameByTwoThreads) {
  std::string text = "{\"traceEvents\": [\n";
  for (int i = 0; i < 80000; ++i) {
    text +=
        "  {\"ph\": \"X\", \"name\": \"op\", \"pid\": 1, \"tid\": 2, \"ts\": " + std::to_string(i) +
        ", \"dur\": 1},\n";
    if (i == 60000) text += "  {\"ph\": \"X\", tid\": 3},\n";
  }
  text += "  {}]}";
  const auto one = read_trace_text(text, "one");
  const auto two = read_trace_text(text, "two", {.threads = 2});
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(one->size(), 80001u);
  EXPECT_EQ(two->size(), 80001u);
  EXPECT_EQ(one->losses.count(LossKind::kEventUnreadable), 1);
  EXPECT_EQ(print_losses(one->losses), print_losses(two->losses));
}

// Each thread has ids of its own for texts, threads and categories while it reads.
TEST(ReadTrace, TextsAndThreadsOfTwoReadersAreThoseOfOne) {
  std::string text = "{\"traceEvents\": [\n";
  for (int i = 0; i < 30000; ++i) {
    const std::string n = std::to_string(i), tid = std::to_string(i % 300 + i / 10000);
    text += "  {\"ph\": \"s\", \"cat\": \"c" + std::to_string(i / 9000) + "\", \"id\": \"arrow " +
            n + "\", \"name\": \"n" + std::to_string(i * 7919 % 20000) +
            "\", \"pid\": 1, \"tid\": " + tid + ", \"ts\": " + n + ".5},\n";
    if (i % 1000 == 0)
      text += "  {\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": 1, \"tid\": " + tid +
              ", \"args\": {\"name\": \"thread " + n + "\"}},\n";
  }
  text += "  {}\n]}";
  const auto one = read_trace_text(text, "one");
  const auto two = read_trace_text(text, "two", {.threads = 2});
  ASSERT_TRUE(one.ok() && two.ok());
  ASSERT_EQ(one->size(), 30031u);
  ASSERT_EQ(two->size(), one->size());
  ASSERT_EQ(two->threads.size(), one->threads.size());
  for (size_t i = 0; i < one->threads.size(); ++i)
    EXPECT_EQ(two->text(two->threads[i].name), one->text(one->threads[i].name)) << i;
  const auto id_text = [](const TraceFile& file, size_t row) {
    return file.text(static_cast<StringId>(file.id[row] - kNoId - 1));
  };
  for (size_t i = 0; i + 1 < one->size(); ++i) {
    ASSERT_EQ(two->text(two->name[i]), one->text(one->name[i])) << i;
    ASSERT_EQ(two->text(two->categories[two->category[i]]),
              one->text(one->categories[one->category[i]]));
    ASSERT_EQ(two->thread[i], one->thread[i]) << i;
    if (one->phase[i] == 's') {
      ASSERT_EQ(id_text(*two, i), id_text(*one, i)) << i;
    }
  }
}

// Text that is made while it is read: 120 MB of the same ten events, never held.
class RepeatingSource : public ByteSource {
 public:
  explicit RepeatingSource(int64_t blocks) : left_(blocks) {
    for (int i = 0; i < 10; ++i)
      block_ +=
          "  {\n    \"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"void at::native::kernel_" +
          std::to_string(i) + std::string(120, 'k') +
          "\", \"pid\": 0, \"tid\": 7,\n    \"ts\": 100" + std::to_string(i) +
          ".250, \"dur\": 2.500,\n    \"args\": {\n      \"correlation\": 5, \"stream\": 7, "
          "\"grid\": [1, 1, 1]\n    }\n  },\n";
  }
  size_t read(char* out, size_t size) override {
    const std::string& text = begun_ ? (left_ > 0 ? block_ : end_) : start_;
    size = std::min(size, text.size() - used_);
    std::copy_n(text.data() + used_, size, out);
    used_ += size;
    if (used_ == text.size()) {
      if (begun_ && left_ == 0) end_.clear();
      if (begun_ && left_ > 0) --left_;
      begun_ = true;
      used_ = 0;
    }
    return size;
  }

 private:
  std::string block_, start_ = "{\"traceEvents\": [\n", end_ = "  {}\n]}";
  int64_t left_;
  size_t used_ = 0;
  bool begun_ = false;
};

TEST(ReadTrace, ALongFileGivesWhatAShortOneGivesScaledUp) {
  constexpr int64_t kBlocks = 40'000;
  for (const int threads : {1, 2}) {
    RepeatingSource source(kBlocks);
    TraceFile file;
    read_chrome(&source, {.threads = threads, .expected_bytes = -1}, &file);
    finish_trace_file(&file);
    ASSERT_EQ(file.size(), static_cast<size_t>(kBlocks * 10 + 1));
    int64_t sum = 0;
    for (int64_t dur : file.dur_ns) sum += std::max<int64_t>(dur, 0);
    EXPECT_EQ(sum, kBlocks * 10 * 2500);
    EXPECT_GT(file.bytes, 100 << 20);
    EXPECT_LT(file.strings.bytes(), 1 << 20);
  }
}

TEST(ReadTrace, AFormatThatIsNoTraceIsAnError) {
  const auto file = read_trace_text("hello, world", "x.txt");
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().message,
            "x.txt: expected a trace (JSON, a table or database of Ascend, or .ofr), found 'hello, "
            "world'");
  EXPECT_FALSE(read_trace("no such file").ok());
}

}  // namespace
}  // namespace opfuse::trace
