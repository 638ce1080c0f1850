// Operator <- PYTORCH_API; kernel <- TASK with COMPUTE_TASK_INFO, or COMMUNICATION_OP; joined by
// connection: PYTORCH_API.connectionId is a row of CONNECTION_IDS, which holds those of TASK. Names
// and shapes are rows of STRING_IDS. torch_npu writes times of PYTORCH_API as text.

#include "opfuse/trace/ascend_database.h"

#include <memory>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>

#include "opfuse/trace/json_text.h"

#if OPFUSE_SQLITE
#include <sqlite3.h>
#endif

namespace opfuse::trace {

bool is_database(std::string_view head) { return head.starts_with("SQLite format 3"); }

#if OPFUSE_SQLITE

namespace {

struct CloseDatabase {
  void operator()(sqlite3* database) const { sqlite3_close(database); }
};
struct CloseStatement {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Database = std::unique_ptr<sqlite3, CloseDatabase>;

class Reader {
 public:
  Reader(sqlite3* database, TraceFile* file) : database_(database), file_(*file) {}

  Status run() {
    if (!has_table("PYTORCH_API") && !has_table("TASK") && !has_table("COMMUNICATION_OP"))
      return Error{file_.path + ": a database without the tables of Ascend's profilers"};
    read_texts();
    read_connections();
    read_kinds();
    read_stacks();
    read_operators();
    read_tasks();
    read_communication();
    read_steps();
    return ok_status();
  }

 private:
  using Statement = std::unique_ptr<sqlite3_stmt, CloseStatement>;

  bool has_table(const std::string& name) {
    bool found = false;
    each("SELECT 1 FROM sqlite_master WHERE type IN ('table','view') AND name = '" + name + "'",
         [&](sqlite3_stmt*) { found = true; });
    return found;
  }

  bool has_column(const std::string& table, const std::string& column) {
    bool found = false;
    each("SELECT 1 FROM pragma_table_info('" + table + "') WHERE name = '" + column + "'",
         [&](sqlite3_stmt*) { found = true; });
    return found;
  }

  // A column by name, or NULL where the table lacks it.
  std::string column(const std::string& table, const std::string& name) {
    return has_column(table, name) ? table + "." + name : "NULL";
  }

  template <class Use>
  void each(const std::string& query, Use&& use) {
    sqlite3_stmt* raw = nullptr;
    if (sqlite3_prepare_v2(database_, query.c_str(), -1, &raw, nullptr) != SQLITE_OK)
      return damaged();
    const Statement statement(raw);
    int code = SQLITE_DONE;
    while ((code = sqlite3_step(raw)) == SQLITE_ROW) use(raw);
    if (code != SQLITE_DONE) damaged();
  }

  void damaged() { file_.losses.add(LossKind::kDatabaseDamaged, -1, sqlite3_errmsg(database_)); }

  static int64_t number(sqlite3_stmt* row, int at, int64_t missing) {
    if (sqlite3_column_type(row, at) == SQLITE_NULL) return missing;
    return sqlite3_column_int64(row, at);
  }
  static std::string_view text(sqlite3_stmt* row, int at) {
    const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(row, at));
    return bytes == nullptr
               ? std::string_view{}
               : std::string_view(bytes, static_cast<size_t>(sqlite3_column_bytes(row, at)));
  }
  StringId intern(std::string_view value) {
    if (check_text(value).valid_utf8) return file_.strings.intern(value);
    file_.losses.add(LossKind::kNotUtf8);
    return file_.strings.intern(replace_invalid_utf8(value));
  }
  // A cell that is a row of STRING_IDS, or the text itself.
  StringId named(sqlite3_stmt* row, int at) {
    if (sqlite3_column_type(row, at) == SQLITE_TEXT) return intern(text(row, at));
    const auto it = texts_.find(number(row, at, -1));
    return it == texts_.end() ? 0 : it->second;
  }
  StringId known(sqlite3_stmt* row, int at) {
    const StringId id = named(row, at);
    return file_.text(id) == "N/A" ? 0 : id;
  }

  void read_texts() {
    if (!has_table("STRING_IDS")) return;
    each("SELECT id, value FROM STRING_IDS",
         [&](sqlite3_stmt* row) { texts_[number(row, 0, -1)] = intern(text(row, 1)); });
  }

  void read_connections() {
    if (!has_table("CONNECTION_IDS")) return;
    each("SELECT id, connectionId FROM CONNECTION_IDS", [&](sqlite3_stmt* row) {
      group_of_connection_.emplace(number(row, 1, -1), number(row, 0, -1));
    });
  }

  void read_kinds() {
    if (!has_table("ENUM_API_TYPE")) return;
    each("SELECT id, name FROM ENUM_API_TYPE", [&](sqlite3_stmt* row) {
      const std::string_view name = text(row, 1);
      kinds_[number(row, 0, -1)] = name == "op"      ? FileKind::kOperator
                                   : name == "queue" ? FileKind::kQueue
                                                     : FileKind::kAnnotation;
    });
  }

  // Frames of one chain, the innermost first.
  void read_stacks() {
    if (!has_table("PYTORCH_CALLCHAINS")) return;
    std::unordered_map<int64_t, std::string> chains;
    each("SELECT id, stack FROM PYTORCH_CALLCHAINS ORDER BY id, stackDepth",
         [&](sqlite3_stmt* row) {
           std::string& chain = chains[number(row, 0, -1)];
           chain += (chain.empty() ? "" : ";\r\n") + std::string(file_.text(named(row, 1)));
         });
    for (const auto& [id, chain] : chains) stacks_[id] = intern(chain);
  }

  void read_operators() {
    if (!has_table("PYTORCH_API")) return;
    const auto at = [&](const char* name) { return column("PYTORCH_API", name); };
    each(fmt::format("SELECT CAST(startNs AS INTEGER), CAST(endNs AS INTEGER), globalTid, {}, name,"
                     " {}, {}, {}, {}, {}, {} FROM PYTORCH_API ORDER BY 1",
                     at("connectionId"), at("sequenceNumber"), at("fwdThreadId"), at("inputDtypes"),
                     at("inputShapes"), at("callchainId"), at("type")),
         [&](sqlite3_stmt* row) {
           const auto kind = kinds_.find(number(row, 10, -1));
           const FileKind of_row = kind == kinds_.end() ? FileKind::kOperator : kind->second;
           const int64_t connection = number(row, 3, kNoId);
           const size_t made = add(row, named(row, 4), of_row, thread(number(row, 2, 0)));
           file_.id[made] = connection;
           if (of_row == FileKind::kQueue) {
             file_.detail[made] = static_cast<int32_t>(file_.devices.size());
             file_.devices.emplace_back();
             return;
           }
           file_.detail[made] = static_cast<int32_t>(file_.operators.size());
           OperatorDetail& detail = file_.operators.emplace_back();
           detail.external = connection;
           detail.sequence = number(row, 5, -1);
           detail.forward_thread = number(row, 6, 0);
           detail.types = known(row, 7);
           detail.dims = known(row, 8);
           const auto stack = stacks_.find(number(row, 9, -1));
           if (stack != stacks_.end()) detail.call_stack = stack->second;
         });
  }

  void read_tasks() {
    if (!has_table("TASK") || !has_table("COMPUTE_TASK_INFO")) return;
    const auto info = [&](const char* name) { return column("COMPUTE_TASK_INFO", name); };
    const auto task = [&](const char* name) { return column("TASK", name); };
    each(
        fmt::format("SELECT CAST(TASK.startNs AS INTEGER), CAST(TASK.endNs AS INTEGER), {}, {}, {},"
                    " COMPUTE_TASK_INFO.name, {}, {}, {}, {}, {} FROM COMPUTE_TASK_INFO JOIN TASK "
                    "ON TASK.globalTaskId = COMPUTE_TASK_INFO.globalTaskId ORDER BY 1",
                    task("connectionId"), task("streamId"), task("deviceId"), info("opType"),
                    info("inputShapes"), info("inputDataTypes"), info("outputShapes"),
                    info("outputDataTypes")),
        [&](sqlite3_stmt* row) {
          const size_t made = add_device(row, named(row, 5));
          file_.devices[file_.detail[made]].shapes =
              static_cast<int32_t>(file_.device_shapes.size());
          file_.device_shapes.push_back(
              {known(row, 6), known(row, 7), known(row, 8), known(row, 9), known(row, 10)});
        });
  }

  void read_communication() {
    if (!has_table("COMMUNICATION_OP")) return;
    const auto at = [&](const char* name) { return column("COMMUNICATION_OP", name); };
    each(fmt::format("SELECT CAST(startNs AS INTEGER), CAST(endNs AS INTEGER), {}, NULL, {}, opName"
                     " FROM COMMUNICATION_OP ORDER BY 1",
                     at("connectionId"), at("deviceId")),
         [&](sqlite3_stmt* row) { add_device(row, named(row, 5)); });
  }

  void read_steps() {
    if (!has_table("STEP_TIME")) return;
    each("SELECT CAST(startNs AS INTEGER), CAST(endNs AS INTEGER), id FROM STEP_TIME ORDER BY 1",
         [&](sqlite3_stmt* row) {
           const StringId name = intern(fmt::format("ProfilerStep#{}", number(row, 2, 0)));
           add(row, name, FileKind::kAnnotation, thread(0));
         });
  }

  size_t add_device(sqlite3_stmt* row, StringId name) {
    const int64_t stream = number(row, 3, -1);
    const size_t made = add(row, name, FileKind::kKernel, thread(stream));
    const auto group = group_of_connection_.find(number(row, 2, -1));
    DeviceDetail detail;
    detail.stream = static_cast<int32_t>(stream);
    detail.device = static_cast<int32_t>(number(row, 4, -1));
    detail.external = group == group_of_connection_.end() ? number(row, 2, kNoId) : group->second;
    file_.detail[made] = static_cast<int32_t>(file_.devices.size());
    file_.devices.push_back(detail);
    return made;
  }

  // Columns 0 and 1 are start and end.
  size_t add(sqlite3_stmt* row, StringId name, FileKind kind, int32_t thread) {
    int64_t start = number(row, 0, kNoTime);
    const int64_t end = number(row, 1, kNoTime);
    if (start <= 0 || start > kMostTimeNs) {
      start = kNoTime;
      file_.losses.add(LossKind::kEventWithoutTime);
    }
    const bool timed = start != kNoTime && end >= start && end <= kMostTimeNs;
    if (start != kNoTime && !timed) file_.losses.add(LossKind::kDurationNegative);
    file_.name.push_back(name);
    file_.kind.push_back(kind);
    file_.category.push_back(0);
    file_.phase.push_back('X');
    file_.thread.push_back(thread);
    file_.start_ns.push_back(start);
    file_.dur_ns.push_back(timed ? end - start : -1);
    file_.id.push_back(kNoId);
    file_.detail.push_back(kNone);
    return file_.name.size() - 1;
  }

  // A global id holds the process above the thread.
  int32_t thread(int64_t global) {
    const auto [it, is_new] =
        threads_.try_emplace(global, static_cast<int32_t>(file_.threads.size()));
    if (is_new) {
      FileThread& made = file_.threads.emplace_back();
      made.pid = global >> 32;
      made.tid = global & 0xffffffff;
    }
    return it->second;
  }

  sqlite3* database_;
  TraceFile& file_;
  std::unordered_map<int64_t, StringId> texts_, stacks_;
  std::unordered_map<int64_t, int64_t> group_of_connection_;
  std::unordered_map<int64_t, FileKind> kinds_;
  std::unordered_map<int64_t, int32_t> threads_;
};

Result<Database> open(const std::string& path, std::string* bytes) {
  sqlite3* raw = nullptr;
  const bool on_disk = !path.empty();
  const int code = sqlite3_open_v2(on_disk ? path.c_str() : ":memory:", &raw,
                                   on_disk ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE, nullptr);
  Database database(raw);
  if (code != SQLITE_OK)
    return Error{std::string("not a database that SQLite opens: ") + sqlite3_errmsg(raw)};
  if (!on_disk) {
    const auto size = static_cast<sqlite3_int64>(bytes->size());
    if (sqlite3_deserialize(raw, "main", reinterpret_cast<unsigned char*>(bytes->data()), size,
                            size, SQLITE_DESERIALIZE_READONLY) != SQLITE_OK)
      return Error{std::string("not a database that SQLite reads: ") + sqlite3_errmsg(raw)};
  }
  // A file of strangers: no code of its schema runs.
  sqlite3_db_config(raw, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_db_config(raw, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  return database;
}

}  // namespace

Status read_ascend_database(const std::string& path, ByteSource* source, TraceFile* file) {
  std::string bytes;
  if (path.empty()) {
    std::string block(256 << 10, '\0');
    while (const size_t got = source->read(block.data(), block.size())) bytes.append(block, 0, got);
    file->losses.merge(source->losses());
    file->bytes = static_cast<int64_t>(bytes.size());
  }
  Result<Database> database = open(path, &bytes);
  if (!database.ok()) return Error{file->path + ": " + database.error().message};
  file->categories.push_back(file->strings.intern(""));
  return Reader(database->get(), file).run();
}

#else

Status read_ascend_database(const std::string&, ByteSource*, TraceFile* file) {
  return Error{file->path + ": a database; this build has no SQLite (libsqlite3-dev) to read it"};
}

#endif

}  // namespace opfuse::trace
