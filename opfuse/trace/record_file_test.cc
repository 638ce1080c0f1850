#include "opfuse/trace/record_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

namespace opfuse::trace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

EventTable small_table() {
  EventTable table;
  table.source = "recorder";
  table.wall_start_unix_ns = 1'700'000'000'123'456'789;
  table.threads.push_back({.pid = 7, .tid = 8, .name = table.strings.intern("main")});
  table.storages.push_back({.session_id = 3,
                            .bytes = 48,
                            .external = true,
                            .label = table.strings.intern("param:fc.weight")});
  TensorRow tensor;
  tensor.tensor = 5;
  tensor.storage = 0;
  tensor.offset = 2;
  tensor.dtype = DType::kBF16;
  tensor.device = 0;
  tensor.flags = kRequiresGrad | kExported;
  tensor.shape_known = true;
  tensor.shape = {2, 3};
  tensor.strides = {3, 1};
  tensor.torch_version = 1;
  tensor.number = -0.1;
  table.tensors.push_back(tensor);
  table.frames.push_back(
      {table.strings.intern("utils.py"), table.strings.intern("Swish.forward"), 67, 21, 67, 37, 4});
  table.stacks.push_back({0, kNone});
  EventRow event;
  event.name = table.strings.intern("aten::mul.Tensor");
  event.kind = EventKind::kOperator;
  event.flags = kGradMode | kOpaqueArguments;
  event.start_ns = 123'456'789'012'345;
  event.dur_ns = 1350;
  event.forward_sequence = 17;
  event.stack = 0;
  event.inputs.push_back({ArgumentKind::kTensor, {0}, {}, {}, 0});
  event.inputs.push_back({ArgumentKind::kDouble, {}, {}, {1.702}, 0});
  event.outputs.push_back({ArgumentKind::kTensorList, {0, kNone}, {}, {}, 0});
  table.events.push_back(event);
  table.outside_writes.push_back({0, 0});
  table.losses["events dropped: cap"] = 2;
  return table;
}

TEST(RecordFile, GivesBackWhatWasWritten) {
  EventTable table = small_table();
  auto read = decode_record(encode_record(table), "x.ofr");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->source, "recorder");
  EXPECT_EQ(read->wall_start_unix_ns, table.wall_start_unix_ns);
  ASSERT_EQ(read->events.size(), 1u);
  const EventRow& event = read->events[0];
  EXPECT_EQ(read->name(event), "aten::mul.Tensor");
  EXPECT_EQ(event.start_ns, 123'456'789'012'345);
  EXPECT_EQ(event.flags, kGradMode | kOpaqueArguments);
  EXPECT_EQ(event.forward_sequence, 17);
  EXPECT_EQ(event.inputs[1].doubles[0], 1.702);
  EXPECT_THAT(event.outputs[0].tensors, ElementsAre(0, kNone));
  EXPECT_THAT(read->tensors[0].strides, ElementsAre(3, 1));
  EXPECT_EQ(read->tensors[0].number, -0.1);
  EXPECT_EQ(read->tensors[0].dtype, DType::kBF16);
  EXPECT_EQ(read->strings.get(read->storages[0].label), "param:fc.weight");
  EXPECT_EQ(read->frames[0].end_column, 37);
  EXPECT_EQ(read->outside_writes[0].storage, 0);
  EXPECT_EQ(read->losses.at("events dropped: cap"), 2);
  // The second writing is the same byte for byte.
  EXPECT_EQ(encode_record(*read), encode_record(table));
}

TEST(RecordFile, CutAtEveryByteIsAnErrorThatNamesAByte) {
  std::string bytes = encode_record(small_table());
  for (size_t length = 0; length < bytes.size(); ++length) {
    auto read = decode_record(std::string_view(bytes).substr(0, length), "cut.ofr");
    ASSERT_FALSE(read.ok()) << length;
    EXPECT_THAT(read.error().message, HasSubstr("cut.ofr: byte "));
  }
}

TEST(RecordFile, EveryChangedByteIsNoticed) {
  const std::string bytes = encode_record(small_table());
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x41);
    EXPECT_FALSE(decode_record(damaged, "x.ofr").ok()) << i;
  }
}

TEST(RecordFile, RowsThatDoNotExistAreAnError) {
  EventTable table = small_table();
  table.events[0].inputs[0].tensors[0] = 9;
  auto read = decode_record(encode_record(table), "x.ofr");
  ASSERT_FALSE(read.ok());
  EXPECT_THAT(read.error().message, HasSubstr("row 9 of 1"));
}

TEST(RecordFile, GoesThroughAFile) {
  std::string path = testing::TempDir() + "/record_file_test.ofr";
  ASSERT_TRUE(write_record(small_table(), path).ok());
  auto read = read_record(path);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->events.size(), 1u);
  std::remove(path.c_str());
  EXPECT_FALSE(read_record(path).ok());
  EXPECT_FALSE(write_record(small_table(), "/nonexistent/folder/x.ofr").ok());
}

}  // namespace
}  // namespace opfuse::trace
