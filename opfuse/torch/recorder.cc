#include "opfuse/torch/recorder.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/record_function.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <unordered_map>

#include "opfuse/torch/recorder_flags.h"
#include "opfuse/torch/recorder_state.h"

#ifndef NDEBUG
#error "compile with -DNDEBUG: without it RecordFunction has another layout than in the wheel"
#endif

namespace opfuse::torch_bridge {

std::atomic<uint64_t> running_recording{0};

Recorder& recorder() {
  static Recorder* instance = new Recorder;  // outlives threads that end late
  return *instance;
}

namespace {

using trace::EventKind;
using trace::EventRow;

std::atomic<uint64_t> last_number{0};

// A forked child inherits the callbacks; it must record nothing. The record is not freed there: it
// holds code objects, and the child may be between fork and exec.
void before_fork() { recorder().mutex.lock(); }
void after_fork_in_parent() { recorder().mutex.unlock(); }
void after_fork_in_child() {
  running_recording.store(0, std::memory_order_release);
  (void)recorder().recording.release();
  recorder().mutex.unlock();
}

// Schemas of the operators that the built-in table does not know.
void add_extra_schemas(Recording* recording) {
  Record& record = *recording->record;
  const graph::SchemaTable& builtin = graph::SchemaTable::builtin();
  for (const auto& [key, info] : recording->operators) {
    if (!info->handle->hasSchema() || builtin.find(graph::dotted_name(info->name)) != nullptr)
      continue;
    auto schema = graph::parse_schema(c10::toString(info->handle->schema()));
    if (!schema.ok()) {
      ++record.table.losses["schema not understood: " + info->name];
      continue;
    }
    schema->composite_implicit = info->flags & trace::kComposite;
    schema->random = info->flags & trace::kRandom;
    record.extra_schemas.add(std::move(*schema));
  }
}

void finish(Recording* recording, int64_t end_ns) {
  Record& record = *recording->record;
  record.seconds = static_cast<double>(end_ns - recording->start_ns) * 1e-9;
  fill_record(&recording->log, &record);
  for (size_t row = 0; row < record.table.events.size(); ++row) {
    EventRow& event = record.table.events[row];
    if (event.dur_ns != -1) continue;
    event.flags |= trace::kUnfinished;
    // Scopes around the stop are expected: a step ends inside the optimizer's own.
    if (event.kind != EventKind::kOperator) continue;
    event.sequence = -1;
    ++record.table.losses["operators unfinished when the record stopped"];
  }
  add_extra_schemas(recording);
}

// Takes the recording away from the callbacks; null when there is none.
std::unique_ptr<Recording> detach_recording() {
  Recorder& global = recorder();
  running_recording.store(0, std::memory_order_release);
  std::unique_ptr<Recording> recording;
  at::CallbackHandle handle;
  {
    std::lock_guard lock(global.mutex);
    recording = std::move(global.recording);
    handle = std::exchange(global.handle, at::INVALID_CALLBACK_HANDLE);
    global.identities.drop_expired();
  }
  if (handle != at::INVALID_CALLBACK_HANDLE) at::removeCallback(handle);
  return recording;
}

}  // namespace

Status start_recording(const RecorderOptions& options) {
  Recorder& global = recorder();
  {
    std::lock_guard lock(global.mutex);
    if (global.recording) return Error{"recorder: expected no recording to be running, found one"};
    if (!std::exchange(global.fork_handlers, true))
      pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    uint64_t number = ++last_number;
    auto recording = std::make_unique<Recording>(options, &global.identities, number);
    Record& record = *recording->record;
    record.with_values = options.values;
    record.table.source = "recorder";
    record.table.wall_start_unix_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                                          std::chrono::system_clock::now().time_since_epoch())
                                          .count();
    if (options.python_frames && python_frames_available())
      record.codes = recording->codes = shared_code_table();
    // Grown during the step, these would leave holes in the heap.
    record.table.storages.reserve(1 << 14);
    record.snapshots.reserve(1 << 14);
    recording->start_ns = now_ns();
    global.recording = std::move(recording);
    running_recording.store(number, std::memory_order_release);
  }
  global.handle = at::addGlobalCallback(
      at::RecordFunctionCallback(&on_start, &on_end)
          .needsInputs(true)
          .needsOutputs(true)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
                   at::RecordScope::USER_SCOPE}));
  return ok_status();
}

Result<std::unique_ptr<Record>> stop_recording() {
  int64_t end_ns = now_ns();
  std::unique_ptr<Recording> recording = detach_recording();
  if (!recording) return Error{"recorder: expected a running recording, found none"};
  finish(recording.get(), end_ns);
  if (recording->record->table.events.empty())
    return Error{
        "recorder: expected operators in the step, found none; callbacks of this build of "
        "torch may not fit the library"};
  return std::move(recording->record);
}

void abandon_recording() { detach_recording(); }

bool is_recording() { return running_recording.load(std::memory_order_acquire) != 0; }

int64_t set_storage_labels(Record* record,
                           std::span<const std::pair<const void*, std::string>> labels) {
  trace::EventTable& table = record->table;
  std::unordered_map<int64_t, int32_t> rows;
  for (size_t row = 0; row < table.storages.size(); ++row)
    rows[table.storages[row].session_id] = static_cast<int32_t>(row);
  std::vector<char> is_parameter(table.storages.size(), 0);
  int64_t found = 0;
  {
    Recorder& global = recorder();
    std::lock_guard lock(global.mutex);
    for (const auto& [pointer, label] : labels) {
      const StorageIdentity* identity = global.identities.find_storage(pointer);
      auto row = identity == nullptr ? rows.end() : rows.find(identity->id);
      if (row == rows.end()) continue;
      table.storages[row->second].label = table.strings.intern(label);
      is_parameter[row->second] = label.compare(0, 6, "param:") == 0;
      ++found;
    }
  }
  for (trace::TensorRow& tensor : table.tensors)
    if (tensor.storage != trace::kNone && is_parameter[tensor.storage])
      tensor.flags |= trace::kIsParameter;
  return found;
}

Status self_check() {
  OPFUSE_TRY_STATUS(start_recording({.values = true, .python_frames = false}));
  at::Tensor result;
  try {
    result = at::sigmoid(at::ones({3}));
  } catch (const std::exception& error) {
    abandon_recording();
    return Error{std::string("self check: expected sigmoid(ones(3)) to run: ") + error.what()};
  }
  OPFUSE_TRY(std::unique_ptr<Record> record, stop_recording());
  for (const auto& [loss, count] : record->table.losses)
    return Error{"self check: expected no losses, found \"" + loss + "\""};
  for (size_t row = 0; row < record->table.events.size(); ++row) {
    const EventRow& event = record->table.events[row];
    if (record->table.name(event) != "aten::sigmoid") continue;
    bool described = event.inputs.size() == 1 && event.inputs[0].tensors.size() == 1 &&
                     event.outputs.size() == 1 && event.outputs[0].tensors.size() == 1;
    if (!described) break;
    const trace::TensorRow& output = record->table.tensors[event.outputs[0].tensors[0]];
    const auto& hashes = record->calls[row].hashes;
    if (output.shape == std::vector<int64_t>{3} && output.dtype == DType::kF32 &&
        hashes.size() == 1 && hashes[0].second == torch_bridge::hash_tensor(result))
      return ok_status();
    break;
  }
  return Error{
      "self check: expected aten::sigmoid on f32[3] with the hash of its result, found "
      "another record"};
}

}  // namespace opfuse::torch_bridge
