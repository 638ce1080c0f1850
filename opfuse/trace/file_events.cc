#include "opfuse/trace/file_events.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include <fmt/format.h>

#include "opfuse/trace/file_arguments.h"
#include "opfuse/trace/kernel_table.h"

namespace opfuse::trace {
namespace {

constexpr int64_t kMicrosecond = 1000;
constexpr int8_t kOtherDevice = 2;  // TensorRow::device of an NPU
constexpr std::string_view kStep = "ProfilerStep#";
constexpr std::string_view kEvaluate = "autograd::engine::evaluate_function: ";
constexpr std::string_view kCompiled = "triton_";  // kernels of torch.compile, run by name
constexpr std::string_view kModule = "nn.Module: ";

std::optional<int64_t> step_number(std::string_view name) {
  if (!name.starts_with(kStep)) return std::nullopt;
  int64_t number = 0;
  const auto [end, error] =
      std::from_chars(name.data() + kStep.size(), name.data() + name.size(), number);
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

// "MulBackward0", "SwishImplementationBackward".
bool is_backward_name(std::string_view name) {
  while (!name.empty() && name.back() >= '0' && name.back() <= '9') name.remove_suffix(1);
  return name.ends_with("Backward") || name == "torch::autograd::AccumulateGrad";
}

class Converter {
 public:
  Converter(const TraceFile& file, const Calls& calls)
      : file_(file), calls_(calls), arguments_(file, &result_.table) {
    const bool has_device = std::ranges::any_of(file.kind, is_device_work);
    device_ = has_device ? -1 : 0;
  }

  FileEvents run(int64_t from, int64_t to) {
    EventTable& table = result_.table;
    table.source = file_.format;
    for (const FileThread& t : file_.threads)
      table.threads.push_back({t.pid, t.tid, copy(t.name != 0 ? t.name : t.tid_text)});
    event_of_.assign(file_.size(), kNone);
    stack_of_.assign(file_.size(), kNone);
    for (int32_t row : calls_.host)
      if (file_.start_ns[row] >= from && file_.start_ns[row] < to) add_host(row);
    // A table of kernels alone: each kernel is the operator that it computes.
    if (std::ranges::find(file_.kind, FileKind::kOperator) == file_.kind.end())
      for (int32_t row : by_start())
        if (file_.start_ns[row] >= from && file_.start_ns[row] < to) add_kernel_operator(row);
    add_kernels(from, to);
    add_waits(from, to);
    add_memory(from, to);
    for (LossKind kind : file_.losses.present())
      table.losses[std::string(loss_info(kind).text)] = file_.losses.count(kind);
    return std::move(result_);
  }

 private:
  StringId copy(StringId id) { return result_.table.strings.intern(file_.text(id)); }

  int32_t parent_event(int32_t row) const {
    for (row = calls_.parent[row]; row != kNone; row = calls_.parent[row])
      if (event_of_[row] != kNone) return event_of_[row];
    return kNone;
  }

  int32_t parent_stack(int32_t row) const {
    for (row = calls_.parent[row]; row != kNone; row = calls_.parent[row])
      if (stack_of_[row] != kNone) return stack_of_[row];
    return kNone;
  }

  void add_host(int32_t row) {
    const std::string_view name = file_.text(file_.name[row]);
    switch (file_.kind[row]) {
      case FileKind::kPython:
        if (name.starts_with(kModule))
          add_event(row, EventKind::kUserScope);
        else
          add_frame(row, name);
        return;
      case FileKind::kAnnotation:
        add_event(row, EventKind::kUserScope);
        return;
      case FileKind::kOperator:
        add_operator(row, name);
        return;
      default:
        return;
    }
  }

  // "torch/nn/modules/module.py(1743): _call_impl": the line where the function begins.
  void add_frame(int32_t row, std::string_view name) {
    auto [it, is_new] = frames_.try_emplace(file_.name[row], kNone);
    if (is_new) {
      const size_t open = name.rfind('('), close = name.find("): ", open == name.npos ? 0 : open);
      FrameRow frame;
      if (open != name.npos && close != name.npos) {
        std::from_chars(name.data() + open + 1, name.data() + close, frame.line);
        frame.file = result_.table.strings.intern(name.substr(0, open));
        frame.function = result_.table.strings.intern(name.substr(close + 3));
      } else {
        frame.function = result_.table.strings.intern(name);
      }
      it->second = static_cast<int32_t>(result_.table.frames.size());
      result_.table.frames.push_back(frame);
    }
    stack_of_[row] = stack_row(it->second, parent_stack(row));
  }

  int32_t stack_row(int32_t frame, int32_t parent) {
    const int64_t key = static_cast<int64_t>(frame) << 32 | static_cast<uint32_t>(parent);
    auto [it, is_new] = stacks_.try_emplace(key, static_cast<int32_t>(result_.table.stacks.size()));
    if (is_new) result_.table.stacks.push_back({frame, parent});
    return it->second;
  }

  EventRow& add_event(int32_t row, EventKind kind) {
    EventTable& table = result_.table;
    event_of_[row] = static_cast<int32_t>(table.events.size());
    result_.row_of.push_back(row);
    EventRow& event = table.events.emplace_back();
    event.name = copy(file_.name[row]);
    event.kind = kind;
    event.thread = file_.thread[row];
    event.start_ns = file_.start_ns[row];
    event.dur_ns = file_.dur_ns[row];
    event.stack = parent_stack(row);
    event.parent = parent_event(row);
    if (event.parent != kNone) event.flags = table.events[event.parent].flags & kGraphTask;
    return event;
  }

  void add_operator(int32_t row, std::string_view name) {
    const OperatorDetail* detail =
        file_.detail[row] == kNone ? nullptr : &file_.operators[file_.detail[row]];
    const int64_t sequence = detail == nullptr ? -1 : detail->sequence;
    const bool engine = name.starts_with(kEvaluate);
    EventKind kind = EventKind::kUserScope;
    if (!engine && is_backward_name(name))
      kind = EventKind::kAutogradNode;
    else if (!engine && (name.find("::") != name.npos || name.starts_with(kCompiled)))
      kind = EventKind::kOperator;
    else if (!engine && sequence >= 0)
      kind = EventKind::kFunction;
    EventRow& event = add_event(row, kind);
    if (engine || kind == EventKind::kAutogradNode) event.flags |= kGraphTask;
    (kind == EventKind::kOperator ? event.forward_sequence : event.sequence) = sequence;
    if (kind != EventKind::kOperator || detail == nullptr) return;
    event.inputs = arguments_.of(*detail, device_);
    if (detail->call_stack != 0 && event.stack == kNone) event.stack = stack_of_text(*detail);
  }

  // Kernels that say what they compute and on which shapes, in order of time.
  std::vector<int32_t> by_start() const {
    std::vector<int32_t> rows;
    for (size_t i = 0; i < file_.size(); ++i)
      if (is_device_work(file_.kind[i]) && file_.start_ns[i] != kNoTime &&
          file_.detail[i] != kNone && file_.devices[file_.detail[i]].shapes != kNone)
        rows.push_back(static_cast<int32_t>(i));
    std::ranges::stable_sort(rows, {}, [&](int32_t row) { return file_.start_ns[row]; });
    return rows;
  }

  void add_kernel_operator(int32_t row) {
    const DeviceShapes& shapes = file_.device_shapes[file_.devices[file_.detail[row]].shapes];
    const std::string_view type = file_.text(shapes.type);
    std::string name(operator_of_kernel_type(type));
    if (name.empty()) name = "ascend::" + std::string(type);
    EventRow& event = add_event(row, EventKind::kOperator);
    event.name = result_.table.strings.intern(name);
    OperatorDetail in, out;
    in.dims = shapes.dims;
    in.types = shapes.types;
    out.dims = shapes.output_dims;
    out.types = shapes.output_types;
    event.inputs = arguments_.of(in, kOtherDevice);
    event.outputs = arguments_.of(out, kOtherDevice);
    kernel_event_[row] = event_of_[row];
  }

  // "file(line): function;…", the innermost first.
  int32_t stack_of_text(const OperatorDetail& detail) {
    auto [it, is_new] = text_stacks_.try_emplace(detail.call_stack, kNone);
    if (!is_new) return it->second;
    std::vector<std::string_view> frames;
    std::string_view text = file_.text(detail.call_stack);
    while (!text.empty()) {
      const size_t end = std::min(text.find(';'), text.size());
      std::string_view frame = text.substr(0, end);
      while (!frame.empty() && static_cast<unsigned char>(frame.front()) <= ' ')
        frame.remove_prefix(1);
      if (!frame.empty()) frames.push_back(frame);
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    int32_t stack = kNone;
    for (auto frame = frames.rbegin(); frame != frames.rend(); ++frame)
      stack = stack_row(text_frame(*frame), stack);
    return it->second = stack;
  }

  int32_t text_frame(std::string_view text) {
    FrameRow frame;
    const size_t open = text.find('('), close = text.find("): ");
    if (open != text.npos && close != text.npos && open < close) {
      std::from_chars(text.data() + open + 1, text.data() + close, frame.line);
      frame.file = result_.table.strings.intern(text.substr(0, open));
      frame.function = result_.table.strings.intern(text.substr(close + 3));
    } else {
      frame.function = result_.table.strings.intern(text);
    }
    result_.table.frames.push_back(frame);
    return static_cast<int32_t>(result_.table.frames.size() - 1);
  }

  void add_kernels(int64_t from, int64_t to) {
    std::vector<KernelRow>& kernels = result_.table.kernels;
    for (size_t i = 0; i < file_.size(); ++i) {
      if (!is_device_work(file_.kind[i]) || file_.start_ns[i] == kNoTime) continue;
      const int32_t op = calls_.operator_of[i], launch = calls_.launch[i];
      KernelRow row;
      if (op != kNone) row.event = event_of_[op];
      if (const auto own = kernel_event_.find(static_cast<int32_t>(i)); own != kernel_event_.end())
        row.event = own->second;
      // Work belongs to the step that launched it.
      const int64_t when = op != kNone       ? file_.start_ns[op]
                           : launch != kNone ? file_.start_ns[launch]
                                             : file_.start_ns[i];
      if (when < from || when >= to) continue;
      row.name = copy(file_.name[i]);
      row.work = file_.kind[i] == FileKind::kKernel   ? DeviceWork::kKernel
                 : file_.kind[i] == FileKind::kMemcpy ? DeviceWork::kMemcpy
                                                      : DeviceWork::kMemset;
      if (launch != kNone) row.launch_ns = file_.start_ns[launch];
      if (launch != kNone) row.launch_dur_ns = file_.dur_ns[launch];
      row.start_ns = file_.start_ns[i];
      row.dur_ns = file_.dur_ns[i];
      if (const auto clipped = calls_.clipped_ns.find(static_cast<int32_t>(i));
          clipped != calls_.clipped_ns.end())
        row.dur_ns = clipped->second;
      if (file_.detail[i] != kNone) {
        const DeviceDetail& detail = file_.devices[file_.detail[i]];
        row.device = detail.device;
        row.stream = detail.stream;
        row.bytes = detail.bytes;
      }
      if (row.stream < 0) row.stream = file_.thread[i];
      kernels.push_back(row);
    }
    std::ranges::stable_sort(kernels, {}, &KernelRow::start_ns);
  }

  // Waiting calls are known by their names; a copy waits when its work ends inside of it.
  void add_waits(int64_t from, int64_t to) {
    for (size_t i = 0; i < file_.size(); ++i) {
      if (file_.kind[i] != FileKind::kRuntime || file_.dur_ns[i] < 0) continue;
      if (file_.start_ns[i] == kNoTime || file_.start_ns[i] < from || file_.start_ns[i] >= to)
        continue;
      const std::string_view name = file_.text(file_.name[i]);
      if (name.find("Synchronize") == name.npos) continue;
      WaitRow wait{file_.start_ns[i], file_.dur_ns[i], -1, -1};
      if (name.find("Stream") != name.npos && file_.detail[i] != kNone)
        wait.stream = file_.devices[file_.detail[i]].stream;
      result_.table.waits.push_back(wait);
    }
    for (size_t i = 0; i < file_.size(); ++i) {
      const int32_t launch = calls_.launch[i];
      if (launch == kNone || file_.kind[i] != FileKind::kMemcpy) continue;
      const int64_t end = file_.start_ns[i] + std::max<int64_t>(file_.dur_ns[i], 0);
      const int64_t call = file_.start_ns[launch];
      if (call < from || call >= to || end > call + file_.dur_ns[launch] + kMicrosecond) continue;
      result_.table.waits.push_back(
          {call, file_.dur_ns[launch], -1,
           file_.detail[i] == kNone ? -1 : file_.devices[file_.detail[i]].stream});
    }
    std::ranges::stable_sort(result_.table.waits, {}, &WaitRow::start_ns);
  }

  void add_memory(int64_t from, int64_t to) {
    for (size_t i = 0; i < file_.size(); ++i) {
      if (file_.kind[i] != FileKind::kMemory || file_.detail[i] == kNone) continue;
      if (file_.start_ns[i] < from || file_.start_ns[i] >= to) continue;
      const MemoryDetail& detail = file_.memory[file_.detail[i]];
      const int8_t device = detail.device_type == 0                              ? 0
                            : detail.device_type == 1 || detail.device_type == 6 ? 1
                                                                                 : 2;
      result_.table.memory.push_back(
          {file_.thread[i], file_.start_ns[i], file_.id[i], detail.bytes, device});
    }
    std::ranges::stable_sort(result_.table.memory, {}, &MemoryRow::time_ns);
  }

  const TraceFile& file_;
  const Calls& calls_;
  FileEvents result_;
  FileArguments arguments_;
  int8_t device_ = -1;
  std::vector<int32_t> event_of_, stack_of_;  // by file row
  std::unordered_map<StringId, int32_t> frames_, text_stacks_;
  std::unordered_map<int64_t, int32_t> stacks_;
  std::unordered_map<int32_t, int32_t> kernel_event_;  // kernels that are operators, by row
};

}  // namespace

std::vector<int64_t> steps_of(const TraceFile& file) {
  std::vector<int64_t> steps;
  for (size_t i = 0; i < file.size(); ++i)
    if (file.kind[i] == FileKind::kAnnotation)
      if (const auto number = step_number(file.text(file.name[i]))) steps.push_back(*number);
  std::ranges::sort(steps);
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  return steps;
}

Result<FileEvents> file_events(const TraceFile& file, const Calls& calls,
                               std::optional<int64_t> step) {
  constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  if (!step) return Converter(file, calls).run(kNoTime + 1, kAll);
  for (size_t i = 0; i < file.size(); ++i)
    if (file.kind[i] == FileKind::kAnnotation && step_number(file.text(file.name[i])) == step) {
      FileEvents events =
          Converter(file, calls)
              .run(file.start_ns[i], file.start_ns[i] + std::max<int64_t>(file.dur_ns[i], 0));
      events.whole = false;
      return events;
    }
  std::string known;
  for (int64_t number : steps_of(file)) known += fmt::format(" {}", number);
  return Error{known.empty()
                   ? fmt::format("{}: no step {}: the file has no ProfilerStep annotations",
                                 file.path, *step)
                   : fmt::format("{}: no step {}; it has the steps{}", file.path, *step, known)};
}

}  // namespace opfuse::trace
