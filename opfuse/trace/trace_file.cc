#include "opfuse/trace/trace_file.h"

#include <unordered_map>

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

class Joiner {
 public:
  Joiner(TraceFile* file, TraceFile* part) : file_(*file), part_(*part) {}

  void run() {
    const auto operators = static_cast<int32_t>(file_.operators.size());
    const auto devices = static_cast<int32_t>(file_.devices.size());
    const auto memory = static_cast<int32_t>(file_.memory.size());
    const auto python = static_cast<int32_t>(file_.python.size());
    for (DeviceDetail& row : part_.devices)
      if (row.shapes != kNone) row.shapes += static_cast<int32_t>(file_.device_shapes.size());
    const std::vector<int32_t> threads = join_threads();
    const std::vector<uint8_t> categories = join_categories();
    for (size_t i = 0; i < part_.size(); ++i) {
      part_.category[i] = categories[part_.category[i]];
      part_.thread[i] = threads[part_.thread[i]];
      if (part_.detail[i] == kNone) continue;
      switch (part_.kind[i]) {
        case FileKind::kMemory:
          part_.detail[i] += memory;
          break;
        case FileKind::kPython:
          part_.detail[i] += python;
          break;
        case FileKind::kOperator:
        case FileKind::kAnnotation:
          part_.detail[i] += operators;
          break;
        default:
          part_.detail[i] += devices;
      }
    }
    move_rows();
  }

 private:
  std::vector<int32_t> join_threads() {
    std::vector<int32_t> rows;
    for (const FileThread& thread : part_.threads) {
      size_t row = 0;
      while (row < file_.threads.size() && !same(file_.threads[row], thread)) ++row;
      if (row == file_.threads.size()) file_.threads.push_back(thread);
      if (thread.name != 0) file_.threads[row].name = thread.name;
      if (thread.process != 0) file_.threads[row].process = thread.process;
      rows.push_back(static_cast<int32_t>(row));
    }
    return rows;
  }

  static bool same(const FileThread& a, const FileThread& b) {
    return a.pid == b.pid && a.tid == b.tid && a.pid_text == b.pid_text && a.tid_text == b.tid_text;
  }

  std::vector<uint8_t> join_categories() {
    std::vector<uint8_t> rows;
    for (StringId id : part_.categories) {
      size_t row = 0;
      while (row < file_.categories.size() && file_.categories[row] != id) ++row;
      if (row == file_.categories.size() && row < 250) file_.categories.push_back(id);
      rows.push_back(static_cast<uint8_t>(row < file_.categories.size() ? row : 0));
    }
    return rows;
  }

  void move_rows() {
    move_behind(&file_.name, &part_.name);
    move_behind(&file_.kind, &part_.kind);
    move_behind(&file_.category, &part_.category);
    move_behind(&file_.phase, &part_.phase);
    move_behind(&file_.thread, &part_.thread);
    move_behind(&file_.start_ns, &part_.start_ns);
    move_behind(&file_.dur_ns, &part_.dur_ns);
    move_behind(&file_.id, &part_.id);
    move_behind(&file_.detail, &part_.detail);
    move_behind(&file_.operators, &part_.operators);
    move_behind(&file_.devices, &part_.devices);
    move_behind(&file_.device_shapes, &part_.device_shapes);
    move_behind(&file_.memory, &part_.memory);
    move_behind(&file_.python, &part_.python);
    for (auto& [key, value] : part_.header) file_.header.try_emplace(key, std::move(value));
    file_.losses.merge(part_.losses);
    file_.bytes += part_.bytes;
    part_.threads.clear();
    part_.categories.clear();
    part_.header.clear();
    part_.losses = {};
  }

  TraceFile &file_, &part_;
};

}  // namespace

size_t TraceFile::column_bytes() const {
  return strings.bytes() + held(name) + held(kind) + held(category) + held(phase) + held(thread) +
         held(start_ns) + held(dur_ns) + held(id) + held(detail) + held(operators) + held(devices) +
         held(device_shapes) + held(memory) + held(python) + held(threads);
}

void rename_texts(const std::vector<StringId>& ids, TraceFile* part) {
  const auto rename = [&](StringId* id) { *id = ids[*id]; };
  for (StringId& id : part->name) rename(&id);
  for (StringId& id : part->categories) rename(&id);
  for (FileThread& t : part->threads)
    for (StringId* id : {&t.pid_text, &t.tid_text, &t.process, &t.name}) rename(id);
  for (OperatorDetail& row : part->operators)
    for (StringId* id :
         {&row.dims, &row.strides, &row.types, &row.values, &row.call_stack, &row.module})
      rename(id);
  for (DeviceShapes& row : part->device_shapes)
    for (StringId* id : {&row.type, &row.dims, &row.types, &row.output_dims, &row.output_types})
      rename(id);
}

void append(TraceFile* file, TraceFile* part) { Joiner(file, part).run(); }

}  // namespace opfuse::trace
