// What happens at the start and the end of every operator while a step is recorded.

#include <ATen/record_function.h>
#include <sys/syscall.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "opfuse/base/check.h"
#include "opfuse/torch/recorder_flags.h"
#include "opfuse/torch/recorder_state.h"

namespace opfuse::torch_bridge {
namespace {

using trace::EventKind;

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
  const auto look = [&](const at::Tensor& output) {
    if (event->forward_sequence == -1 && output.defined() && output.requires_grad())
      event->forward_sequence = made_node(output, next_sequence);
  };
  for (const c10::IValue& output : outputs) {
    if (output.isTensor()) look(output.toTensor());
    if (output.isTensorList())  // split, unbind: one node for all of them
      for (const at::Tensor& one : output.toTensorVector()) look(one);
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

}  // namespace

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
  uint64_t number = running_recording.load(std::memory_order_acquire);
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

}  // namespace opfuse::torch_bridge
