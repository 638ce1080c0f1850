#include "opfuse/torch/recorder.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/record_function.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "opfuse/base/check.h"
#include "opfuse/torch/python_frames.h"
#include "opfuse/torch/recorder_flags.h"
#include "opfuse/torch/recorder_identity.h"
#include "opfuse/torch/recorder_rows.h"
#include "opfuse/torch/recorder_values.h"

#ifndef NDEBUG
#error "compile with -DNDEBUG: without it RecordFunction has another layout than in the wheel"
#endif

namespace opfuse::torch_bridge {
namespace {

using trace::EventKind;
using trace::EventRow;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// An event that has started and not ended on this thread.
struct OpenEvent {
  int32_t event = trace::kNone;
  bool is_operator = false;
  bool is_aten = false;
  bool inside_leaf = false;  // an enclosing operator is a leaf
  bool is_leaf = false;      // a leaf of the cut, as far as one can tell when it starts
  bool is_backward_node = false;
  bool clones_argument = false;  // a clone, inside a leaf, of what the leaf was given
  bool grad_mode = false;
  uint16_t inherited = 0;  // flags that hold for what it calls
};

struct ThreadState {
  bool busy = false;           // our own work calls no callback
  uint64_t recording = 0;      // number of the recording that `open` and `row` belong to
  int32_t row = trace::kNone;  // of table.threads
  std::vector<OpenEvent> open;
  std::vector<FrameSite> frames;
};

ThreadState& this_thread() {
  thread_local ThreadState state;
  return state;
}

struct OperatorKey {
  const char *name, *overload;
  bool operator==(const OperatorKey&) const = default;
};
struct OperatorKeyHash {
  size_t operator()(const OperatorKey& key) const {
    return std::hash<const void*>()(key.name) * 31 + std::hash<const void*>()(key.overload);
  }
};

struct Recording {
  Recording(const RecorderOptions& options, IdentityTable* identities, uint64_t number)
      : options(options),
        number(number),
        record(std::make_unique<Record>()),
        rows(record.get(), &log, identities, number),
        values(record.get(), &log, &rows, options.values, options.max_snapshot_bytes) {}

  RecorderOptions options;
  uint64_t number;
  std::unique_ptr<Record> record;
  EventLog log;
  RowBuilder rows;
  ValueCapture values;
  std::unordered_map<OperatorKey, std::unique_ptr<OperatorInfo>, OperatorKeyHash> operators;
  std::shared_ptr<CodeTable> codes;
  bool communication = false;  // operators whose writes may arrive later have been seen
  int64_t start_ns = 0;
};

// Everything below is guarded by `mutex`, which is never held while waiting for the GIL.
struct Recorder {
  std::mutex mutex;
  std::unique_ptr<Recording> recording;
  IdentityTable identities;
  at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
  bool fork_handlers = false;
};

Recorder& recorder() {
  static Recorder* instance = new Recorder;  // outlives threads that end late
  return *instance;
}

// Number of the running recording, 0 when there is none.
std::atomic<uint64_t> running{0};
std::atomic<uint64_t> last_number{0};

class BusyGuard {
 public:
  explicit BusyGuard(ThreadState* thread) : thread_(thread) { thread_->busy = true; }
  ~BusyGuard() { thread_->busy = false; }

 private:
  ThreadState* thread_;
};

struct EventContext : at::ObserverContext {
  uint64_t recording = 0;
  int32_t event = trace::kNone;
  std::vector<HeldTensor> held;
};

void count_loss(std::string name) {
  name.resize(std::min(name.find('\n'), name.size()));  // torch appends its own stack
  Recorder& global = recorder();
  std::lock_guard lock(global.mutex);
  if (global.recording) ++global.recording->record->table.losses[name];
}

const OperatorInfo* find_operator(Recording* recording, const at::RecordFunction& function) {
  if (function.scope() != at::RecordScope::FUNCTION) return nullptr;
  OperatorKey key{function.name(), function.overload_name()};
  auto it = recording->operators.find(key);
  // Names of schemas keep their address while the operator is registered; compared to be sure.
  if (it != recording->operators.end()) {
    const c10::OperatorName& name = it->second->handle->operator_name();
    if (name.name == key.name && name.overload_name == key.overload) return it->second.get();
    recording->operators.erase(it);
  }
  std::optional<c10::OperatorName> name = function.operator_name();
  if (!name) return nullptr;
  auto handle = c10::Dispatcher::singleton().findOp(*name);
  if (!handle) return nullptr;
  auto info = std::make_unique<OperatorInfo>(describe_operator(*handle));
  info->name_id = recording->record->table.strings.intern(info->name);
  return recording->operators.emplace(key, std::move(info)).first->second.get();
}

// Grad mode inside a backward pass means create_graph when the node itself runs with it, and a
// forward computed again (checkpoint) when the node does not.
uint16_t backward_flags(uint16_t flags, EventKind kind, const std::vector<OpenEvent>& open) {
  if (!(flags & trace::kGraphTask) || !(flags & trace::kGradMode)) return 0;
  if (kind == EventKind::kAutogradNode) return trace::kCreateGraph;
  for (auto it = open.rbegin(); it != open.rend(); ++it)
    if (it->is_backward_node)
      return it->grad_mode ? trace::kCreateGraph : trace::kCheckpointRecompute;
  return 0;
}

EventKind kind_of(const at::RecordFunction& function, bool is_operator) {
  switch (function.scope()) {
    case at::RecordScope::BACKWARD_FUNCTION:
      return EventKind::kAutogradNode;
    case at::RecordScope::USER_SCOPE:
      return EventKind::kUserScope;
    default:
      return is_operator ? EventKind::kOperator : EventKind::kFunction;
  }
}

int32_t thread_row(Recording* recording, ThreadState* thread) {
  if (thread->row == trace::kNone) {
    auto& threads = recording->record->table.threads;
    thread->row = static_cast<int32_t>(threads.size());
    threads.push_back({.pid = getpid(), .tid = syscall(SYS_gettid), .name = 0});
  }
  return thread->row;
}

// The stack of a boxed call may hold more than the arguments (functorch): they are its end.
template <class Values>
c10::ArrayRef<c10::IValue> last_values(const Values& values, size_t count, bool has_schema) {
  c10::ArrayRef<c10::IValue> all(values.data(), values.size());
  return has_schema && all.size() > count ? all.slice(all.size() - count, count) : all;
}

bool python_may_have_run(const Recording& recording, const std::vector<OpenEvent>& open) {
  if (open.empty() || recording.communication) return true;
  // Nodes written in C++ call each other without Python in between; hooks that change memory
  // without an operator are found by the replay.
  return !open.back().is_operator && !open.back().is_backward_node;
}

void describe_inputs(Recording* recording, LogEvent* event, c10::ArrayRef<c10::IValue> inputs) {
  recording->rows.clear_opaque();
  event->inputs = recording->rows.arguments(inputs);
  if (recording->rows.saw_opaque() && event->op != nullptr) event->flags |= trace::kOpaqueArguments;
}

OpenEvent open_event(const LogEvent& event, const std::vector<OpenEvent>& open) {
  const OperatorInfo* op = event.op;
  OpenEvent entry;
  entry.is_operator = event.kind == EventKind::kOperator;
  entry.is_aten = op != nullptr && op->is_aten;
  entry.is_backward_node = event.kind == EventKind::kAutogradNode;
  entry.grad_mode = event.flags & trace::kGradMode;
  const uint16_t passed_on = trace::kAutocast | trace::kPythonMode | trace::kSavedTensorHooks;
  if (entry.is_operator)
    entry.inherited = event.flags & passed_on;
  else if (!open.empty())  // a dispatch mode at work inside an operator
    entry.inherited = open.back().inherited;
  entry.inside_leaf = !open.empty() && (open.back().inside_leaf || open.back().is_leaf);
  bool descends = (event.flags & (trace::kComposite | trace::kOpaqueArguments)) ||
                  (op != nullptr && op->has_autocast_kernel && (event.flags & trace::kAutocast) &&
                   (open.empty() || !(open.back().inherited & trace::kAutocast))) ||
                  dispatch_is_intercepted();
  entry.is_leaf = entry.is_operator && !entry.inside_leaf && !descends;
  return entry;
}

void fill_event(Recording* recording, ThreadState* thread, const at::RecordFunction& function,
                const OperatorInfo* op, c10::ArrayRef<c10::IValue> inputs, LogEvent* event) {
  auto& strings = recording->record->table.strings;
  event->op = op;
  event->kind = kind_of(function, op != nullptr);
  event->name = op != nullptr ? op->name_id : strings.intern(function.name());
  event->flags = thread_flags(inputs);
  event->flags |= backward_flags(event->flags, event->kind, thread->open);
  if (op != nullptr) event->flags |= op->flags;
  event->thread = thread_row(recording, thread);
  if (!thread->open.empty()) {
    event->parent = thread->open.back().event;
    event->flags |= thread->open.back().inherited;
  }
  // Of an operator this is the number that its node would get: kept until the end is seen.
  event->sequence = function.seqNr();
  event->stack = thread->frames.empty() ? trace::kNone : recording->rows.stack(thread->frames);
  describe_inputs(recording, event, inputs);
}

std::unique_ptr<at::ObserverContext> start_event(const at::RecordFunction& function,
                                                 ThreadState* thread, uint64_t number) {
  if (thread->recording != number) {
    thread->recording = number;
    thread->row = trace::kNone;
    thread->open.clear();
  }
  Recorder& global = recorder();
  std::shared_ptr<CodeTable> codes;
  thread->frames.clear();
  // Before our lock, because it may wait for the GIL.
  if (function.scope() != at::RecordScope::BACKWARD_FUNCTION &&
      (thread->open.empty() || !thread->open.back().is_aten)) {
    {
      std::lock_guard lock(global.mutex);
      if (global.recording && global.recording->number == number) codes = global.recording->codes;
    }
    if (codes) gather_python_frames(codes.get(), &thread->frames);
  }
  std::lock_guard lock(global.mutex);
  Recording* recording = global.recording.get();
  if (recording == nullptr || recording->number != number) return nullptr;
  Record& record = *recording->record;
  EventLog& log = recording->log;
  if (static_cast<int64_t>(log.events.size()) >= recording->options.max_events) {
    ++record.table.losses["events dropped: cap"];
    record.complete = false;
    return nullptr;
  }
  const OperatorInfo* op = find_operator(recording, function);
  auto inputs = last_values(function.inputs(), op != nullptr ? op->arguments : 0,
                            op != nullptr && op->handle->hasSchema());
  const auto index = static_cast<int32_t>(log.events.size());
  log.events.push_back({});
  LogEvent& event = log.events.back();
  fill_event(recording, thread, function, op, inputs, &event);
  OpenEvent entry = open_event(event, thread->open);
  entry.event = index;
  recording->values.note_new_storages(index, entry.inside_leaf);
  if (python_may_have_run(*recording, thread->open)) recording->values.python_may_have_run();

  auto context = std::make_unique<EventContext>();
  context->recording = number;
  context->event = index;
  if (op != nullptr && !op->is_aten && op->name.compare(0, 10, "profiler::") != 0)
    recording->communication = true;
  entry.clones_argument = entry.inside_leaf && op != nullptr && op->is_clone &&
                          recording->values.is_given_to_leaf(inputs[0]);
  if (entry.is_leaf) recording->values.before_leaf(index, *op, inputs, &context->held);
  thread->open.push_back(entry);
  event.start_ns = now_ns();
  return context;
}

// Sequence number of the node that this call made, -1 when it made none.
int64_t made_node(const at::Tensor& output, int64_t next_sequence) {
  auto* meta = torch::autograd::impl::get_autograd_meta(output);
  // Read without grad_fn(), which makes new nodes for views that were written to.
  if (meta == nullptr || !meta->grad_fn_) return -1;
  auto made = static_cast<int64_t>(meta->grad_fn_->sequence_nr());
  return next_sequence < 0 || made >= next_sequence ? made : -1;
}

void describe_outputs(Recording* recording, LogEvent* event, c10::ArrayRef<c10::IValue> outputs) {
  const int64_t next_sequence = event->sequence;
  event->sequence = -1;
  recording->rows.clear_opaque();
  event->outputs = recording->rows.arguments(outputs);
  if (recording->rows.saw_opaque()) event->flags |= trace::kOpaqueArguments;
  for (const c10::IValue& output : outputs) {
    if (!output.isTensor() || !output.toTensor().defined()) continue;
    if (!output.toTensor().requires_grad()) continue;
    event->forward_sequence = made_node(output.toTensor(), next_sequence);
    if (event->forward_sequence != -1) break;
  }
}

void end_event(const at::RecordFunction& function, EventContext* context, ThreadState* thread,
               int64_t end_ns) {
  OpenEvent entry;
  if (thread->recording == context->recording) {
    // Ends are in order but after an exception in a callback of another observer.
    auto it = std::find_if(thread->open.begin(), thread->open.end(),
                           [&](const OpenEvent& open) { return open.event == context->event; });
    if (it != thread->open.end()) {
      entry = *it;
      thread->open.erase(it, thread->open.end());
    }
  }
  Recorder& global = recorder();
  std::lock_guard lock(global.mutex);
  Recording* recording = global.recording.get();
  if (recording == nullptr || recording->number != context->recording) return;
  LogEvent& event = recording->log.events[context->event];
  event.dur_ns = end_ns - event.start_ns;
  const OperatorInfo* op = event.op;
  if (op == nullptr) return;
  auto outputs = last_values(function.outputs(), op->returns, op->handle->hasSchema());
  describe_outputs(recording, &event, outputs);
  recording->values.note_new_storages(context->event, entry.inside_leaf);
  if (entry.clones_argument) recording->values.note_clone(context->event, outputs);
  if (entry.is_leaf) recording->values.after_leaf(context->event, *op, outputs, context->held);
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
  uint64_t number = running.load(std::memory_order_acquire);
  if (number == 0) return nullptr;
  ThreadState& thread = this_thread();
  if (thread.busy) return nullptr;
  BusyGuard busy(&thread);
  // torch swallows what a callback throws, and the event with it: count it by name instead.
  try {
    return start_event(function, &thread, number);
  } catch (const std::exception& error) {
    count_loss(std::string("exception when an event started: ") + error.what());
  } catch (...) {
    count_loss("exception when an event started: unknown");
  }
  return nullptr;
}

void on_end(const at::RecordFunction& function, at::ObserverContext* observer) {
  if (observer == nullptr) return;
  int64_t end_ns = now_ns();
  auto* context = static_cast<EventContext*>(observer);
  ThreadState& thread = this_thread();
  BusyGuard busy(&thread);
  try {
    end_event(function, context, &thread, end_ns);
  } catch (const std::exception& error) {
    count_loss(std::string("exception when an event ended: ") + error.what());
  } catch (...) {
    count_loss("exception when an event ended: unknown");
  }
}

// A forked child inherits the callbacks; it must record nothing. The record is not freed there: it
// holds code objects, and the child may be between fork and exec.
void before_fork() { recorder().mutex.lock(); }
void after_fork_in_parent() { recorder().mutex.unlock(); }
void after_fork_in_child() {
  running.store(0, std::memory_order_release);
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
  running.store(0, std::memory_order_release);
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
    running.store(number, std::memory_order_release);
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

bool is_recording() { return running.load(std::memory_order_acquire) != 0; }

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
