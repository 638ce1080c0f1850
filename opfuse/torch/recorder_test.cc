#include "opfuse/torch/recorder.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <set>
#include <thread>

#include "opfuse/graph/validate.h"
#include "opfuse/torch/recorded_step_test.h"
#include "opfuse/torch/recorder_hash.h"
#include "opfuse/torch/recorder_identity.h"

namespace opfuse::torch_bridge {
namespace {

using graph::kNone;
using graph::NodeId;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

const trace::EventRow* find_event(const Record& record, std::string_view name, int skip = 0) {
  for (const trace::EventRow& event : record.table.events)
    if (record.table.name(event) == name && skip-- == 0) return &event;
  ADD_FAILURE() << "no event " << name;
  return &record.table.events.at(0);
}

const trace::TensorRow& input_of(const Record& record, const trace::EventRow& event, size_t k) {
  return record.table.tensors.at(event.inputs.at(k).tensors.at(0));
}

std::unique_ptr<Record> record(const RecorderOptions& options, const std::function<void()>& step) {
  EXPECT_TRUE(start_recording(options).ok());
  try {
    step();
  } catch (...) {
    abandon_recording();
    throw;
  }
  auto record = stop_recording();
  if (!record.ok()) {
    ADD_FAILURE() << record.error().message;
    return std::make_unique<Record>();
  }
  return std::move(record.value());
}

TEST(Recorder, ChecksItself) {
  Status status = self_check();
  EXPECT_TRUE(status.ok()) << status.error().message;
  EXPECT_FALSE(is_recording());
}

TEST(Recorder, AStepWithoutOperatorsIsAnError) {
  ASSERT_TRUE(start_recording({}).ok());
  EXPECT_TRUE(is_recording());
  EXPECT_FALSE(start_recording({}).ok());
  auto record = stop_recording();
  ASSERT_FALSE(record.ok());
  EXPECT_THAT(record.error().message, HasSubstr("expected operators"));
  EXPECT_FALSE(stop_recording().ok());
}

TEST(Recorder, AnAddressUsedAgainIsAnotherStorage) {
  // The allocator gives the same block to each of these.
  RecordedStep step = record_step([] {
    for (int i = 0; i < 50; ++i) at::sigmoid(at::ones({64, 64}));
  });
  std::set<int32_t> storages, tensors;
  for (NodeId node : nodes_of(step.graph, "aten.sigmoid")) {
    storages.insert(step.graph.values[step.graph.nodes[node].inputs[0].values[0]].storage);
    tensors.insert(step.graph.nodes[node].inputs[0].values[0]);
  }
  EXPECT_EQ(storages.size(), 50u);
  EXPECT_EQ(tensors.size(), 50u);
  EXPECT_THAT(step.record->declined, IsEmpty());
}

TEST(Recorder, AStorageThatLivesOnKeepsItsSessionId) {
  at::Tensor x = at::ones({4});
  std::vector<int64_t> ids;
  for (int i = 0; i < 3; ++i) {
    at::Tensor other = at::ones({i + 1, 4});
    auto one = record({}, [&] { at::sigmoid(other + x); });
    std::pair<const void*, std::string> label{x.storage().unsafeGetStorageImpl(), "param:x"};
    ASSERT_EQ(set_storage_labels(one.get(), {&label, 1}), 1);
    for (const trace::StorageRow& storage : one->table.storages)
      if (one->table.strings.get(storage.label) == "param:x") ids.push_back(storage.session_id);
    const trace::TensorRow& row = input_of(*one, *find_event(*one, "aten::add.Tensor"), 1);
    EXPECT_TRUE(row.flags & trace::kIsParameter);
  }
  ASSERT_EQ(ids.size(), 3u);
  EXPECT_EQ(ids[0], ids[1]);
  EXPECT_EQ(ids[0], ids[2]);
}

TEST(Recorder, KeepsNoTensorAlive) {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage{c10::intrusive_ptr<c10::StorageImpl>()};
  ASSERT_TRUE(start_recording({.values = true}).ok());
  {
    at::Tensor x = at::sigmoid(at::ones({8}));
    storage = x.storage().getWeakStorageImpl();
    EXPECT_FALSE(storage.expired());
  }
  EXPECT_TRUE(storage.expired());
  ASSERT_TRUE(stop_recording().ok());
}

TEST(Recorder, IdentitiesOfDeadObjectsAreForgottenAsNewOnesCome) {
  IdentityTable table;
  at::Tensor kept = at::ones({2});
  const int64_t id = table.tensor(kept).id;
  for (int i = 0; i < 1000; ++i) table.tensor(at::ones({2}));
  EXPECT_LT(table.size(), 32u);
  EXPECT_EQ(table.tensor(kept).id, id);
}

TEST(Recorder, CompositesAreMarkedAndLeavesAreNot) {
  auto one = record({}, [] { at::linear(at::ones({2, 3}), at::ones({4, 3})); });
  EXPECT_TRUE(find_event(*one, "aten::linear")->flags & trace::kComposite);
  RecordedStep step = record_step([] {
    at::linear(at::ones({2, 3}), at::ones({4, 3}));
    at::convolution(at::ones({1, 2, 4, 4}), at::ones({2, 2, 3, 3}), {}, {1, 1}, {0, 0}, {1, 1},
                    false, {0, 0}, 1);
  });
  EXPECT_THAT(nodes_of(step.graph, "aten.linear"), IsEmpty());
  EXPECT_EQ(nodes_of(step.graph, "aten.mm").size(), 1u);
  // A leaf hides what it calls.
  EXPECT_EQ(nodes_of(step.graph, "aten.convolution").size(), 1u);
  EXPECT_THAT(nodes_of(step.graph, "aten._convolution"), IsEmpty());
  EXPECT_TRUE(graph::validate_graph(step.graph).ok());
}

TEST(Recorder, ReadsTheValueOfAPythonScalar) {
  at::Tensor number = at::scalar_tensor(1.702, at::kDouble);
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  auto one = record({}, [&] { at::mul(at::ones({2}), number); });
  const trace::TensorRow& row = input_of(*one, *find_event(*one, "aten::mul.Tensor"), 1);
  EXPECT_TRUE(row.flags & trace::kWrappedNumber);
  EXPECT_EQ(row.number, 1.702);
}

TEST(Recorder, WithoutPythonThereAreNoFrames) {
  auto one = record({.python_frames = true}, [] { at::sigmoid(at::ones({3})); });
  EXPECT_THAT(one->table.frames, IsEmpty());
  EXPECT_EQ(find_event(*one, "aten::sigmoid")->stack, trace::kNone);
  EXPECT_THAT(code_objects(*one), IsEmpty());
}

TEST(Recorder, StopsAtTheCapAndCountsTheRest) {
  auto one = record({.max_events = 5}, [] {
    for (int i = 0; i < 10; ++i) at::relu(at::ones({2}));
  });
  EXPECT_EQ(one->table.events.size(), 5u);
  EXPECT_FALSE(one->complete);
  EXPECT_GT(one->table.losses["events dropped: cap"], 0);
}

TEST(Recorder, FlagsSayWhatHeldWhenAnOperatorRan) {
  at::Tensor x = at::ones({3}).requires_grad_();
  auto one = record({}, [&] {
    at::Tensor y = at::sigmoid(x);
    torch::autograd::backward({y.sum()});
    at::NoGradGuard no_grad;
    at::relu(x);
  });
  uint16_t forward = find_event(*one, "aten::sigmoid")->flags;
  EXPECT_TRUE(forward & trace::kGradMode);
  EXPECT_FALSE(forward & trace::kGraphTask);
  const trace::EventRow* backward = find_event(*one, "aten::sigmoid_backward");
  EXPECT_TRUE(backward->flags & trace::kGraphTask);
  EXPECT_FALSE(backward->flags & (trace::kGradMode | trace::kCreateGraph));
  EXPECT_FALSE(find_event(*one, "aten::relu")->flags & trace::kGradMode);
  // The node that ran the backward operator has the number that the forward operator made.
  const trace::EventRow& node = one->table.events[backward->parent];
  EXPECT_EQ(one->table.name(node), "SigmoidBackward0");
  EXPECT_EQ(node.sequence, find_event(*one, "aten::sigmoid")->forward_sequence);
}

TEST(Recorder, CreateGraphIsSeenInTheBackwardPass) {
  at::Tensor x = at::ones({3}).requires_grad_();
  auto one =
      record({}, [&] { torch::autograd::grad({at::sigmoid(x).sum()}, {x}, {}, true, true); });
  EXPECT_TRUE(find_event(*one, "aten::sigmoid_backward")->flags & trace::kCreateGraph);
  EXPECT_FALSE(find_event(*one, "aten::sigmoid_backward")->flags & trace::kCheckpointRecompute);
}

TEST(Recorder, HooksOnATensorAreSeenWhereItIsUsed) {
  at::Tensor x = at::ones({3}).requires_grad_();
  auto one = record({}, [&] {
    at::Tensor plain = at::sigmoid(x), hooked = at::sigmoid(x);
    hooked.register_hook([](const at::Tensor& grad) { return grad; });
    at::mul(plain, hooked);
  });
  const trace::EventRow* mul = find_event(*one, "aten::mul.Tensor");
  EXPECT_FALSE(input_of(*one, *mul, 0).flags & trace::kHasHooks);
  EXPECT_TRUE(input_of(*one, *mul, 1).flags & trace::kHasHooks);
}

TEST(Recorder, AutocastIsSeenInsideItsOwnCasts) {
  at::autocast::set_autocast_enabled(at::kCPU, true);
  RecordedStep step = record_step([] { at::mm(at::ones({2, 2}), at::ones({2, 2})); });
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  auto mm = nodes_of(step.graph, "aten.mm");
  ASSERT_EQ(mm.size(), 1u);
  const graph::Node& node = step.graph.nodes[mm[0]];
  EXPECT_EQ(step.graph.values[node.inputs[0].values[0]].meta.dtype, DType::kBF16);
  EXPECT_TRUE(node.region.flags & trace::kAutocast);
  EXPECT_FALSE(step.record->calls[node.event].hashes.empty());
}

TEST(Recorder, EveryWriteIsANewVersion) {
  RecordedStep step = record_step([] {
    at::Tensor x = at::ones({4});
    at::Tensor s = at::sigmoid(x);
    x.slice(0, 0, 2).add_(1);
    at::mul(x, s);
  });
  const auto value_of = [&](NodeId node, int k) {
    return step.graph.nodes[node].inputs[k].values[0];
  };
  NodeId sigmoid = nodes_of(step.graph, "aten.sigmoid").at(0);
  NodeId add = nodes_of(step.graph, "aten.add_.Scalar").at(0);
  NodeId mul = nodes_of(step.graph, "aten.mul.Tensor").at(0);
  EXPECT_NE(value_of(sigmoid, 0), value_of(mul, 0));
  const graph::Value& after = step.graph.values[value_of(mul, 0)];
  EXPECT_EQ(after.producer, add);
  EXPECT_EQ(after.output, -1);
  EXPECT_EQ(after.version, 1u);
  EXPECT_EQ(value_of(mul, 1), step.graph.nodes[sigmoid].outputs[0]);
  Status valid = graph::validate_graph(step.graph);
  EXPECT_TRUE(valid.ok()) << valid.error().message;
}

TEST(Recorder, BytesChangedFromOutsideAreFoundAndBreakTheFlow) {
  at::Tensor x = at::ones({4});
  RecordedStep step = record_step([&] {
    at::Tensor s = at::sigmoid(x);
    x.mutable_data_ptr<float>()[1] = 7;
    at::mul(x, s);
  });
  ASSERT_EQ(step.record->table.outside_writes.size(), 1u);
  NodeId mul = nodes_of(step.graph, "aten.mul.Tensor").at(0);
  const graph::Node& node = step.graph.nodes[mul];
  EXPECT_EQ(step.record->calls[node.event].pokes.size(), 1u);
  EXPECT_NE(node.inputs[0].values[0],
            step.graph.nodes[nodes_of(step.graph, "aten.sigmoid").at(0)].inputs[0].values[0]);
  EXPECT_TRUE(
      step.graph.storages[step.graph.values[node.inputs[0].values[0]].storage].opaque_writes);
  // The snapshot is what the tensor held when it was first seen.
  const at::Tensor& snapshot =
      step.record->snapshots[step.graph.values[node.inputs[0].values[0]].storage];
  EXPECT_EQ(static_cast<const float*>(snapshot.const_data_ptr())[1], 1.0f);
  Status valid = graph::validate_graph(step.graph);
  EXPECT_TRUE(valid.ok()) << valid.error().message;
}

TEST(Recorder, NothingChangesInAStepThatNobodyTouches) {
  at::Tensor x = at::rand({8, 8}).requires_grad_();
  RecordedStep step = record_step([&] {
    for (int i = 0; i < 3; ++i) torch::autograd::backward({at::silu(at::mm(x, x)).sum()});
  });
  EXPECT_THAT(step.record->table.outside_writes, IsEmpty());
  EXPECT_THAT(step.record->table.losses, IsEmpty());
  EXPECT_THAT(step.record->declined, IsEmpty());
}

TEST(Recorder, RunningStatisticsOfBatchNormAreWrites) {
  at::Tensor mean = at::zeros({2}), var = at::ones({2}), x = at::rand({4, 2});
  RecordedStep step = record_step([&] {
    at::native_batch_norm(x, {}, {}, mean, var, true, 0.1, 1e-5);
    at::native_batch_norm(x, {}, {}, mean, var, false, 0.1, 1e-5);
  });
  auto norms = nodes_of(step.graph, "aten.native_batch_norm");
  ASSERT_EQ(norms.size(), 2u);
  const graph::Node& training = step.graph.nodes[norms[0]];
  EXPECT_EQ(training.writes.size(), 2u);
  EXPECT_THAT(step.graph.nodes[norms[1]].writes, IsEmpty());
  EXPECT_EQ(step.graph.nodes[norms[1]].inputs[3].values[0], training.written[0]);
  EXPECT_EQ(step.record->calls[training.event].hashes.size(), 5u);
}

TEST(Recorder, ACloneMadeForBackwardInsideAnOperatorBecomesANode) {
  at::Tensor w = at::rand({8}).requires_grad_();
  RecordedStep step = record_step([&] {
    at::Tensor y = at::mul(w, w);
    at::silu_(y);
    torch::autograd::backward({y.sum()});
  });
  NodeId silu = nodes_of(step.graph, "aten.silu_").at(0);
  ASSERT_GT(silu, 0);
  const graph::Node& clone = step.graph.nodes[silu - 1];
  EXPECT_EQ(clone.op, "aten.clone");
  EXPECT_TRUE(clone.hidden_product);
  NodeId backward = nodes_of(step.graph, "aten.silu_backward").at(0);
  EXPECT_THAT(step.graph.users[clone.outputs[0]], Contains(backward));
  Status valid = graph::validate_graph(step.graph);
  EXPECT_TRUE(valid.ok()) << valid.error().message;
}

TEST(Recorder, ADetachedViewIsAnotherValueWhereGradientsAreRecorded) {
  at::Tensor x = at::rand({8}).requires_grad_();
  RecordedStep step = record_step([&] {
    at::mul(x, at::sigmoid(x.detach()));
    at::NoGradGuard no_grad;
    at::mul(x, at::tanh(x.detach()));
  });
  const auto first_input = [&](const char* op) {
    return step.graph.nodes[nodes_of(step.graph, op).at(0)].inputs[0].values[0];
  };
  EXPECT_NE(first_input("aten.sigmoid"), first_input("aten.mul.Tensor"));
  EXPECT_EQ(first_input("aten.tanh"), first_input("aten.mul.Tensor"));
  Status valid = graph::validate_graph(step.graph);
  EXPECT_TRUE(valid.ok()) << valid.error().message;
}

TEST(Recorder, DataWithoutAnOperatorIsAnotherValueToo) {
  at::Tensor w = at::rand({8}).requires_grad_();
  RecordedStep step = record_step([&] {
    at::Tensor x = at::mul(w, w);
    at::mul(x, at::sigmoid(x.variable_data()));
  });
  NodeId sigmoid = nodes_of(step.graph, "aten.sigmoid").at(0);
  NodeId mul = nodes_of(step.graph, "aten.mul.Tensor").at(1);
  EXPECT_NE(step.graph.nodes[sigmoid].inputs[0].values[0],
            step.graph.nodes[mul].inputs[0].values[0]);
  Status valid = graph::validate_graph(step.graph);
  EXPECT_TRUE(valid.ok()) << valid.error().message;
}

TEST(Recorder, SparseTensorsAreDeclinedWithTheReason) {
  at::Tensor sparse = at::eye(3).to_sparse();
  RecordedStep step = record_step([&] { at::mm(sparse, at::ones({3, 2})); });
  EXPECT_THAT(step.record->declined, Contains(HasSubstr("sparse")));
  bool any_opaque = false;
  for (const graph::Node& node : step.graph.nodes) any_opaque |= node.opaque;
  EXPECT_TRUE(any_opaque);
}

TEST(Recorder, TensorsWithoutMemoryAreDeclinedWithoutLosses) {
  auto one =
      record({.values = true}, [] { at::sigmoid(at::empty({3}, c10::TensorOptions(at::kMeta))); });
  EXPECT_FALSE(one->with_values);
  EXPECT_EQ(one->declined.size(), 1u);
  EXPECT_THAT(one->table.losses, IsEmpty());
}

TEST(Recorder, ADtypeThatTheTableCannotNameIsDeclined) {
  auto one =
      record({.values = true}, [] { at::empty({3}, c10::TensorOptions(at::kFloat8_e4m3fn)); });
  EXPECT_THAT(one->declined, Contains(HasSubstr("dtype")));
}

TEST(Recorder, AnOperatorThatThrowsDoesNotDisturbTheRest) {
  RecordedStep step = record_step([] {
    EXPECT_ANY_THROW(at::mm(at::ones({2, 3}), at::ones({2, 3})));
    at::relu(at::ones({2}));
  });
  NodeId relu = nodes_of(step.graph, "aten.relu").at(0);
  EXPECT_EQ(step.graph.nodes[relu].scope, kNone);
  EXPECT_THAT(step.record->table.losses, IsEmpty());
}

TEST(Recorder, SnapshotsBeyondTheLimitEndTheValuesAndSaySo) {
  at::Tensor x = at::ones({1024});
  auto one = record({.values = true, .max_snapshot_bytes = 4000}, [&] { at::sigmoid(x); });
  EXPECT_FALSE(one->with_values);
  EXPECT_THAT(one->declined, Contains(HasSubstr("4000 bytes")));
  EXPECT_EQ(find_event(*one, "aten::sigmoid")->outputs.size(), 1u);
}

TEST(Recorder, RandomOperatorsKeepTheirGeneratorAndResult) {
  auto one = record({.values = true}, [] { at::rand({4}); });
  const trace::EventRow* rand = find_event(*one, "aten::rand");
  EXPECT_TRUE(rand->flags & trace::kRandom);
  const Call& call = one->calls[rand - one->table.events.data()];
  EXPECT_TRUE(call.generator.defined());
  ASSERT_EQ(call.random_results.size(), 1u);
  EXPECT_EQ(call.random_results[0].second.numel(), 4);
}

TEST(Recorder, OtherThreadsAreRowsOfTheirOwn) {
  auto one = record({}, [] {
    at::relu(at::ones({2}));
    std::thread([] { at::relu(at::ones({2})); }).join();
  });
  EXPECT_EQ(one->table.threads.size(), 2u);
  EXPECT_NE(find_event(*one, "aten::relu")->thread, find_event(*one, "aten::relu", 1)->thread);
  EXPECT_EQ(find_event(*one, "aten::relu", 1)->parent, trace::kNone);
}

TEST(Recorder, AForkedChildRecordsNothing) {
  ASSERT_TRUE(start_recording({}).ok());
  at::relu(at::ones({2}));
  pid_t child = fork();
  if (child == 0) {
    at::Tensor y = at::relu(at::ones({2}));
    _exit(is_recording() || y.numel() != 2 ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(is_recording());
  EXPECT_TRUE(stop_recording().ok());
}

TEST(Recorder, AnAbandonedRecordingLeavesNothingRunning) {
  ASSERT_TRUE(start_recording({.values = true}).ok());
  at::relu(at::ones({2}));
  abandon_recording();
  EXPECT_FALSE(is_recording());
  at::relu(at::ones({2}));
  EXPECT_FALSE(stop_recording().ok());
}

at::Tensor twice_and_write(at::Tensor input, at::Tensor secret) {
  static_cast<float*>(secret.mutable_data_ptr())[0] += 1;
  return at::empty_like(input).copy_(input).mul_(2);
}

TEST(Recorder, CustomOperatorsBringTheirSchemaAndTheirUndeclaredWrites) {
  torch::Library library(torch::Library::DEF, "opfuse_recorder_test", std::nullopt, __FILE__,
                         __LINE__);
  library.def("twice(Tensor x, Tensor secret) -> Tensor");
  library.impl("twice", torch::dispatch(c10::DispatchKey::CPU, twice_and_write));
  auto twice = c10::Dispatcher::singleton()
                   .findSchemaOrThrow("opfuse_recorder_test::twice", "")
                   .typed<at::Tensor(at::Tensor, at::Tensor)>();
  at::Tensor x = at::ones({2}), secret = at::zeros({2});
  RecordedStep step = record_step([&] {
    at::relu(secret);
    twice.call(x, secret);
    at::sigmoid(secret);
  });
  EXPECT_NE(step.record->extra_schemas.find("opfuse_recorder_test.twice"), nullptr);
  NodeId node = nodes_of(step.graph, "opfuse_recorder_test.twice").at(0);
  EXPECT_NE(step.graph.nodes[node].schema, nullptr);
  ASSERT_EQ(step.graph.nodes[node].written.size(), 1u);
  NodeId sigmoid = nodes_of(step.graph, "aten.sigmoid").at(0);
  EXPECT_EQ(step.graph.nodes[sigmoid].inputs[0].values[0], step.graph.nodes[node].written[0]);
  EXPECT_THAT(step.record->table.outside_writes, IsEmpty());
}

TEST(Recorder, PositionsComeFromPythonLater) {
  Record one;
  one.table.frames.resize(2);
  one.table.frames[0].code = one.table.frames[1].code = 4;
  one.frame_lasti = {12, 40};
  auto codes = code_objects(one);
  ASSERT_EQ(codes.size(), 1u);
  EXPECT_THAT(codes[0].lasti, testing::ElementsAre(12, 40));
  CodeDescription code{4, "utils.py", "Swish.forward", {{40, 67, 67, 21, 37}}};
  set_code_positions(&one, {&code, 1});
  EXPECT_EQ(one.table.strings.get(one.table.frames[0].function), "Swish.forward");
  EXPECT_EQ(one.table.frames[0].line, -1);
  EXPECT_EQ(one.table.frames[1].line, 67);
  EXPECT_EQ(one.table.frames[1].end_column, 37);
}

TEST(RecorderHash, PortableAndVectorPathsAgreeAndEveryByteCounts) {
  std::vector<uint8_t> bytes(5000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 131 + (i >> 8));
  std::set<uint64_t> hashes;
  for (size_t n : {0, 1, 7, 8, 63, 64, 65, 1023, 1024, 1025, 4096, 5000}) {
    uint64_t hash = hash_bytes(bytes.data(), n);
    EXPECT_EQ(hash, hash_bytes_portable(bytes.data(), n)) << n;
    EXPECT_TRUE(hashes.insert(hash).second) << n;
  }
  const uint64_t whole = hash_bytes(bytes.data(), bytes.size());
  for (size_t i = 0; i < bytes.size(); i += 7) {
    bytes[i] ^= 1;
    EXPECT_NE(hash_bytes(bytes.data(), bytes.size()), whole) << i;
    bytes[i] ^= 1;
  }
  // Blocks that change places.
  std::swap_ranges(bytes.begin(), bytes.begin() + 64, bytes.begin() + 1024);
  EXPECT_NE(hash_bytes(bytes.data(), bytes.size()), whole);
}

TEST(RecorderHash, OfATensorIsThatOfItsElements) {
  at::Tensor x = at::rand({4, 6});
  at::Tensor part = x.slice(1, 1, 4);
  EXPECT_EQ(torch_bridge::hash_tensor(part), torch_bridge::hash_tensor(part.contiguous()));
  EXPECT_NE(torch_bridge::hash_tensor(part), torch_bridge::hash_tensor(x.slice(1, 2, 5)));
  EXPECT_EQ(torch_bridge::hash_tensor(x.expand({2, 4, 6})),
            torch_bridge::hash_tensor(x.expand({2, 4, 6}).contiguous()));
}

}  // namespace
}  // namespace opfuse::torch_bridge
