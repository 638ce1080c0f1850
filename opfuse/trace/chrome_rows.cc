// What was read of an event, into the columns.

#include "opfuse/trace/chrome_event.h"
#include "opfuse/trace/file_kind.h"

namespace opfuse::trace {
namespace {

constexpr size_t kMostCategories = 250;

bool is_flow(char phase) { return phase == 's' || phase == 't' || phase == 'f'; }

}  // namespace

StringId ChromeEvents::intern(const Text& value) {
  std::string_view text = value.view();
  StringId id = 0;
  std::string owned;
  if (value.escaped) {
    DecodedString decoded = decode_string(text);
    if (decoded.illegal_escape) note(LossKind::kEscapeIllegal, value.begin);
    owned = std::move(decoded.text);
    text = owned;
  }
  if (file_.strings.find(text, &id)) return id;
  const CheckedText checked = check_text(text);
  if (checked.control_bytes && !value.escaped) note(LossKind::kControlBytes, value.begin);
  if (checked.valid_utf8) return file_.strings.intern(text);
  note(LossKind::kNotUtf8, value.begin);
  return file_.strings.intern(replace_invalid_utf8(text));
}

// Kept until the event is whole: one that the window cuts is scanned again.
void ChromeEvents::note(LossKind kind, const char* at) { pending_.emplace_back(kind, at); }

void ChromeEvents::note_scalar(Scalar kind, const char* at) {
  if (kind == Scalar::kNotFinite) note(LossKind::kNumberNotFinite, at);
  if (kind == Scalar::kTooLarge) note(LossKind::kNumberTooLarge, at);
  if (kind == Scalar::kWord) note(LossKind::kWordBare, at);
}

uint8_t ChromeEvents::category_row(StringId id) {
  if (id == last_category_ && !kinds_.empty()) return last_category_row_;
  size_t row = 0;
  while (row < file_.categories.size() && file_.categories[row] != id) ++row;
  if (row == file_.categories.size()) {
    if (row == kMostCategories) {
      file_.losses.add(LossKind::kCategoriesMany, window_.offset_of(event_));
      row = 0;
    } else {
      file_.categories.push_back(id);
    }
  }
  while (kinds_.size() < file_.categories.size())
    kinds_.push_back(kind_of_category(file_.text(file_.categories[kinds_.size()])));
  last_category_ = id;
  last_category_row_ = static_cast<uint8_t>(row);
  return last_category_row_;
}

int32_t ChromeEvents::thread_row() {
  const Fields& f = fields_;
  const auto is = [&](int32_t row) {
    const FileThread& t = file_.threads[row];
    return t.tid == f.tid && t.pid == f.pid && t.tid_text == f.tid_text && t.pid_text == f.pid_text;
  };
  if (last_thread_ != kNone && is(last_thread_)) return last_thread_;
  const auto slot = static_cast<size_t>(f.tid * 31 + f.pid) % recent_threads_.size();
  if (recent_threads_[slot] != kNone && is(recent_threads_[slot]))
    return last_thread_ = recent_threads_[slot];
  const auto [first, last] = threads_.equal_range(f.tid);
  for (auto it = first; it != last; ++it)
    if (is(it->second)) return last_thread_ = recent_threads_[slot] = it->second;
  last_thread_ = static_cast<int32_t>(file_.threads.size());
  file_.threads.push_back({f.pid, f.tid, f.pid_text, f.tid_text, 0, 0});
  threads_.emplace(f.tid, last_thread_);
  recent_threads_[slot] = last_thread_;
  return last_thread_;
}

FileKind ChromeEvents::kind_of(uint8_t category) const {
  const Fields& f = fields_;
  if (is_flow(f.phase)) return FileKind::kFlow;
  if (f.phase == 'i' || f.phase == 'I')
    return f.address != kNoId && file_.text(f.name) == "[memory]" ? FileKind::kMemory
                                                                  : FileKind::kOther;
  if (f.phase != 'X' && f.phase != 'B') return FileKind::kOther;
  return kinds_[category];
}

std::pair<int64_t, int32_t> ChromeEvents::keep_detail(FileKind kind) {
  Fields& f = fields_;
  const auto row = [](auto* table, auto&& detail) {
    table->push_back(detail);
    return static_cast<int32_t>(table->size() - 1);
  };
  switch (kind) {
    case FileKind::kOperator:
    case FileKind::kAnnotation:
      f.op.external = f.external;
      return {f.external, row(&file_.operators, f.op)};
    case FileKind::kPython:
      return {f.python_id, row(&file_.python, f.python)};
    case FileKind::kMemory:
      return {f.address, row(&file_.memory, f.memory)};
    case FileKind::kFlow:
      return {f.id_text == 0 ? f.id : kNoId + 1 + static_cast<int64_t>(f.id_text), kNone};
    case FileKind::kRuntime:
    case FileKind::kKernel:
    case FileKind::kMemcpy:
    case FileKind::kMemset:
    case FileKind::kHost:
    case FileKind::kQueue:
      f.device.external = f.external;
      return {f.correlation, row(&file_.devices, f.device)};
    default:
      return {f.correlation != kNoId ? f.correlation : f.id, kNone};
  }
}

void ChromeEvents::keep_metadata(int32_t thread) {
  const std::string_view name = file_.text(fields_.name);
  if (name == "thread_name") file_.threads[thread].name = fields_.metadata;
  if (name != "process_name") return;
  FileThread& own = file_.threads[thread];
  for (FileThread& t : file_.threads)
    if (t.pid == own.pid && t.pid_text == own.pid_text) t.process = fields_.metadata;
}

void ChromeEvents::keep() {
  const Fields& f = fields_;
  const int32_t thread = thread_row();
  const uint8_t category = category_row(f.category);
  if (f.phase == 'M') keep_metadata(thread);
  const FileKind kind = kind_of(category);
  const auto [id, detail] = keep_detail(kind);
  if (f.start_ns == kNoTime && f.phase != 'M')
    file_.losses.add(LossKind::kEventWithoutTime, window_.offset_of(event_), {event_, 60});
  if (f.phase == 0) file_.losses.add(LossKind::kPhaseUnknown, window_.offset_of(event_));
  file_.name.push_back(f.name);
  file_.kind.push_back(kind);
  file_.category.push_back(category);
  file_.phase.push_back(f.phase);
  file_.thread.push_back(thread);
  file_.start_ns.push_back(f.start_ns);
  file_.dur_ns.push_back(f.dur_ns);
  file_.id.push_back(id);
  file_.detail.push_back(detail);
}

}  // namespace opfuse::trace
