#include "opfuse/trace/file_text.h"

#include <fmt/format.h>

namespace opfuse::trace {
namespace {

std::string id_or_text(const TraceFile& file, int64_t number, StringId text) {
  return text != 0 ? std::string(file.text(text)) : std::to_string(number);
}

}  // namespace

std::string_view file_kind_name(FileKind kind) {
  static constexpr std::string_view kNames[] = {
      "other",  "operator",          "annotation", "python", "runtime", "kernel", "memcpy",
      "memset", "device-annotation", "memory",     "flow",   "queue",   "host",   "span"};
  return kNames[static_cast<size_t>(kind)];
}

std::string print_events(const TraceFile& file) {
  std::string text;
  for (size_t i = 0; i < file.size(); ++i) {
    const FileThread& thread = file.threads[file.thread[i]];
    text += fmt::format("{} {} {}", file.phase[i] == 0 ? '?' : file.phase[i],
                        file_kind_name(file.kind[i]), file.text(file.name[i]));
    if (file.start_ns[i] != kNoTime) text += fmt::format(" [{}", file.start_ns[i]);
    if (file.start_ns[i] != kNoTime && file.dur_ns[i] >= 0)
      text += fmt::format(", +{}", file.dur_ns[i]);
    if (file.start_ns[i] != kNoTime) text += ']';
    text += fmt::format(" {}/{}", id_or_text(file, thread.pid, thread.pid_text),
                        id_or_text(file, thread.tid, thread.tid_text));
    if (file.id[i] != kNoId) text += fmt::format(" id={}", file.id[i]);
    text += '\n';
  }
  return text;
}

std::string print_losses(const LossLog& losses) {
  std::string text;
  for (LossKind kind : losses.present()) {
    const LossCount& entry = losses.of(kind);
    text += fmt::format("{} {}", loss_info(kind).name, entry.count);
    if (entry.first_offset >= 0) text += fmt::format(" @ {}", entry.first_offset);
    text += '\n';
  }
  return text;
}

}  // namespace opfuse::trace
