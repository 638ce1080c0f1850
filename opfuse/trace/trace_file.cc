#include "opfuse/trace/trace_file.h"

namespace opfuse::trace {
namespace {

template <class T>
size_t held(const std::vector<T>& column) {
  return column.capacity() * sizeof(T);
}

template <class T>
void move_behind(std::vector<T>* to, std::vector<T>* from) {
  to->insert(to->end(), from->begin(), from->end());
  from->clear();
}

// The same, each value through the table `renamed`.
template <class T, class Table>
void move_renamed(std::vector<T>* to, std::vector<T>* from, const Table& renamed) {
  const size_t before = to->size(), more = from->size();
  to->resize(before + more);
  T* out = to->data() + before;
  for (size_t i = 0; i < more; ++i) out[i] = renamed[(*from)[i]];
  from->clear();
}

}  // namespace

size_t TraceFile::column_bytes() const {
  return strings.bytes() + held(name) + held(kind) + held(category) + held(phase) + held(thread) +
         held(start_ns) + held(dur_ns) + held(id) + held(detail) + held(operators) + held(devices) +
         held(device_shapes) + held(memory) + held(python) + held(threads);
}

void TraceFile::swap_rows(TraceFile* other) {
  name.swap(other->name), kind.swap(other->kind), category.swap(other->category);
  phase.swap(other->phase), thread.swap(other->thread), start_ns.swap(other->start_ns);
  dur_ns.swap(other->dur_ns), id.swap(other->id), detail.swap(other->detail);
  operators.swap(other->operators), devices.swap(other->devices);
  device_shapes.swap(other->device_shapes), memory.swap(other->memory);
  python.swap(other->python), header.swap(other->header);
  std::swap(losses, other->losses);
}

FileJoiner::FileJoiner(TraceFile* file) : file_(*file) {
  for (size_t i = 0; i < file_.threads.size(); ++i)
    threads_.emplace(key_of(file_.threads[i]), static_cast<int32_t>(i));
}

FileJoiner::Key FileJoiner::key_of(const FileThread& thread) {
  return {thread.pid, thread.tid, thread.pid_text, thread.tid_text};
}

void FileJoiner::add_texts(const std::vector<std::string_view>& texts, RowsInFile* rows) {
  for (const std::string_view text : texts) rows->texts.push_back(file_.strings.intern(text));
}

void FileJoiner::add_thread(int32_t row, const FileThread& thread, RowsInFile* rows) {
  const std::vector<StringId>& texts = rows->texts;
  const FileThread renamed{thread.pid,
                           thread.tid,
                           texts[thread.pid_text],
                           texts[thread.tid_text],
                           texts[thread.process],
                           texts[thread.name]};
  if (static_cast<size_t>(row) == rows->threads.size()) {
    const auto [at, is_new] =
        threads_.emplace(key_of(renamed), static_cast<int32_t>(file_.threads.size()));
    if (is_new) file_.threads.push_back(renamed);
    rows->threads.push_back(at->second);
  }
  FileThread& own = file_.threads[rows->threads[row]];
  if (renamed.name != 0) own.name = renamed.name;
  if (renamed.process != 0) own.process = renamed.process;
}

void FileJoiner::add_categories(const std::vector<StringId>& categories, RowsInFile* rows) {
  constexpr size_t kMostCategories = 250;
  for (size_t i = rows->categories.size(); i < categories.size(); ++i) {
    const StringId id = rows->texts[categories[i]];
    size_t row = 0;
    while (row < file_.categories.size() && file_.categories[row] != id) ++row;
    if (row == file_.categories.size() && row < kMostCategories) file_.categories.push_back(id);
    rows->categories.push_back(static_cast<uint8_t>(row < file_.categories.size() ? row : 0));
  }
}

// Rows of the tables that `detail` refers to stand behind those that were there.
void FileJoiner::append_details(TraceFile* part, const RowsInFile& rows) {
  const auto operators = static_cast<int32_t>(file_.operators.size());
  const auto devices = static_cast<int32_t>(file_.devices.size());
  const auto memory = static_cast<int32_t>(file_.memory.size());
  const auto python = static_cast<int32_t>(file_.python.size());
  const auto shapes = static_cast<int32_t>(file_.device_shapes.size());
  const std::vector<StringId>& texts = rows.texts;
  for (size_t i = 0; i < part->size(); ++i) {
    // The id of an arrow that has text for one stands for the text.
    if (part->kind[i] == FileKind::kFlow && part->id[i] > kNoId &&
        part->id[i] <= kNoId + static_cast<int64_t>(texts.size()))
      part->id[i] = kNoId + 1 + static_cast<int64_t>(texts[part->id[i] - kNoId - 1]);
    int32_t& detail = part->detail[i];
    if (detail == kNone) continue;
    switch (part->kind[i]) {
      case FileKind::kMemory:
        detail += memory;
        break;
      case FileKind::kPython:
        detail += python;
        break;
      case FileKind::kOperator:
      case FileKind::kAnnotation:
        detail += operators;
        break;
      default:
        detail += devices;
    }
  }
  for (OperatorDetail& row : part->operators)
    for (StringId* id :
         {&row.dims, &row.strides, &row.types, &row.values, &row.call_stack, &row.module})
      *id = texts[*id];
  for (DeviceDetail& row : part->devices)
    if (row.shapes != kNone) row.shapes += shapes;
  for (DeviceShapes& row : part->device_shapes)
    for (StringId* id : {&row.type, &row.dims, &row.types, &row.output_dims, &row.output_types})
      *id = texts[*id];
}

void FileJoiner::append(TraceFile* part, const RowsInFile& rows) {
  append_details(part, rows);
  move_renamed(&file_.name, &part->name, rows.texts);
  move_renamed(&file_.thread, &part->thread, rows.threads);
  move_renamed(&file_.category, &part->category, rows.categories);
  move_behind(&file_.kind, &part->kind);
  move_behind(&file_.phase, &part->phase);
  move_behind(&file_.start_ns, &part->start_ns);
  move_behind(&file_.dur_ns, &part->dur_ns);
  move_behind(&file_.detail, &part->detail);
  move_behind(&file_.operators, &part->operators);
  move_behind(&file_.devices, &part->devices);
  move_behind(&file_.device_shapes, &part->device_shapes);
  move_behind(&file_.memory, &part->memory);
  move_behind(&file_.python, &part->python);
  move_behind(&file_.id, &part->id);
  for (auto& [key, value] : part->header) file_.header.try_emplace(key, std::move(value));
  file_.losses.merge(part->losses);
  file_.bytes += part->bytes;
  part->header.clear();
  part->losses = {};
}

void FileJoiner::append(TraceFile* part) {
  RowsInFile rows;
  std::vector<std::string_view> texts;
  for (StringId id = 0; id < part->strings.size(); ++id) texts.push_back(part->text(id));
  add_texts(texts, &rows);
  for (size_t i = 0; i < part->threads.size(); ++i)
    add_thread(static_cast<int32_t>(i), part->threads[i], &rows);
  add_categories(part->categories, &rows);
  append(part, rows);
}

}  // namespace opfuse::trace
