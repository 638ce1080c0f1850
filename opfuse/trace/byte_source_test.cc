#include "opfuse/trace/byte_source.h"

#include <zlib.h>

#include <gtest/gtest.h>

#include "opfuse/trace/file_text.h"
#include "opfuse/trace/json_marks.h"
#include "opfuse/trace/read.h"

namespace opfuse::trace {
namespace {

std::string gzip(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(text.size() + 1024, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string read_all(ByteSource* source, size_t step) {
  std::string text, block(step, '\0');
  while (const size_t got = source->read(block.data(), block.size())) text.append(block, 0, got);
  return text;
}

std::string sample() {
  std::string text = "[";
  for (int i = 0; i < 20000; ++i)
    text += "{\"ph\":\"X\",\"name\":\"op" + std::to_string(i * 7919 % 1000) +
            "\",\"ts\":" + std::to_string(i) + ".5},\n";
  return text + "]";
}

TEST(ByteSource, InflatesInAnySteps) {
  const std::string text = sample();
  for (const size_t step : {size_t{1} << 20, size_t{4096}, size_t{7}}) {
    auto source = inflate(bytes_of(gzip(text)));
    EXPECT_TRUE(read_all(source.get(), step) == text) << step;
    EXPECT_FALSE(source->losses().damaged()) << print_losses(source->losses());
  }
}

TEST(ByteSource, ReadsAheadTheSameBytes) {
  const std::string text = sample();
  auto source = read_ahead(inflate(bytes_of(gzip(text))));
  EXPECT_TRUE(read_all(source.get(), 100000) == text);
}

TEST(ByteSource, MembersOneAfterAnotherAreOneStream) {
  auto source = inflate(bytes_of(gzip("one ") + gzip("two")));
  EXPECT_EQ(read_all(source.get(), 100), "one two");
  EXPECT_FALSE(source->losses().damaged());
}

TEST(ByteSource, WhatIsNoFurtherMemberIsNamed) {
  auto source = inflate(bytes_of(gzip("one") + "garbage"));
  EXPECT_EQ(read_all(source.get(), 100), "one");
  EXPECT_EQ(print_losses(source->losses()).substr(0, 12), "StreamTail 1");
}

TEST(ByteSource, ACutStreamGivesWhatItHolds) {
  const std::string text = sample(), packed = gzip(text);
  auto source = inflate(bytes_of(packed.substr(0, packed.size() / 2)));
  const std::string half = read_all(source.get(), 4096);
  EXPECT_GT(half.size(), text.size() / 4);
  EXPECT_TRUE(text.starts_with(half));
  EXPECT_EQ(source->losses().count(LossKind::kStreamCut), 1);
}

// Several ranks wrote into one file at once.
TEST(ByteSource, MixedStreamsAreADamagedStreamAtAByte) {
  const std::string a = gzip(sample()), b = gzip(sample() + "x");
  std::string mixed;
  for (size_t at = 0; at < std::min(a.size(), b.size()); at += 4096)
    mixed += a.substr(at, 4096) + b.substr(at, 4096);
  const auto file = read_trace_text(mixed, "mixed.json.gz");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->losses.count(LossKind::kStreamDamaged), 1);
  EXPECT_GT(file->losses.of(LossKind::kStreamDamaged).first_offset, 0);
  EXPECT_TRUE(file->losses.damaged());
}

TEST(JsonMarks, EveryLevelFindsWhatTheFirstFinds) {
  std::string text(64 * 9, 'x');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 37 + i / 64);
  const MarksLevel* levels = nullptr;
  const size_t count = marks_levels(&levels);
  std::vector<JsonMarks> first(9), other(9);
  levels[0].find(text.data(), 9, first.data());
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool quote = c == '"' || c == '\\';
    const bool bracket = c == '{' || c == '}' || c == '[' || c == ']';
    EXPECT_EQ(first[i / 64].quotes >> i % 64 & 1, quote) << i;
    EXPECT_EQ(first[i / 64].marks >> i % 64 & 1, quote || bracket) << i;
  }
  for (size_t level = 1; level < count; ++level) {
    levels[level].find(text.data(), 9, other.data());
    for (size_t i = 0; i < 9; ++i) {
      EXPECT_EQ(other[i].quotes, first[i].quotes) << levels[level].name;
      EXPECT_EQ(other[i].marks, first[i].marks) << levels[level].name;
    }
  }
}

}  // namespace
}  // namespace opfuse::trace
