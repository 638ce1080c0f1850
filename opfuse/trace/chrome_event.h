#pragma once
// One event of a Chrome trace: from its brace to the closing one, into a row of the TraceFile.
// Internal to trace/.

#include <array>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "opfuse/trace/event_layouts.h"
#include "opfuse/trace/json_text.h"
#include "opfuse/trace/json_walker.h"
#include "opfuse/trace/trace_file.h"

namespace opfuse::trace {

const char* skip_space(const char* p);
bool is_event_key(std::string_view key);

class ChromeEvents : public ObjectReader {
 public:
  ChromeEvents(const JsonWindow* window, TraceFile* file) : window_(*window), file_(*file) {
    recent_threads_.fill(kNone);
  }

  Scan scan(const char** at) override;
  bool looks_like_event(const char* at) const override;

 private:
  struct Text {
    const char* begin = nullptr;
    const char* end = nullptr;
    bool escaped = false;
    std::string_view view() const { return {begin, static_cast<size_t>(end - begin)}; }
  };
  struct Fields {
    char phase = 0;
    StringId name = 0;
    StringId category = 0;
    int64_t start_ns = kNoTime, dur_ns = -1;
    int64_t pid = 0, tid = 0, id = kNoId;
    StringId pid_text = 0, tid_text = 0, id_text = 0;
    int64_t external = kNoId, correlation = kNoId, address = kNoId, python_id = kNoId;
    StringId metadata = 0;  // args.name
    OperatorDetail op;
    DeviceDetail device;
    MemoryDetail memory;
    PythonDetail python;
  };

  void begin();
  bool scan_known(const char** at);
  bool value(const char** at, Member member);

  // Values, from *at to behind them: false when the text ends or is no value (scan_ says which).
  bool text(const char** at, Text* value);
  bool skip(const char** at);
  bool skip_nested(const char** at);
  bool scalar(const char** at, std::string_view* value);
  bool integer(const char** at, int64_t* value);
  bool small(const char** at, int32_t* value);
  bool time(const char** at, int64_t* ns, bool is_duration);
  bool string(const char** at, StringId* id);
  bool raw(const char** at, StringId* id);  // lists as they are, strings decoded
  bool number_or_text(const char** at, int64_t* number, StringId* text);
  bool phase(const char** at);
  bool key(const char** at, std::string_view* name);
  bool object(const char** at, Member (*find)(std::string_view));
  bool skip_list(const char** at);
  void keep_lists();
  bool stray_quote(Text* value);

  StringId intern(const Text& value);
  void note(LossKind kind, const char* at);
  void note_scalar(Scalar kind, const char* at);
  void keep();
  void keep_metadata(int32_t thread);
  FileKind kind_of(uint8_t category) const;
  std::pair<int64_t, int32_t> keep_detail(FileKind kind);  // the row's id and detail
  uint8_t category_row(StringId id);
  int32_t thread_row();
  bool stop(Scan why) {
    scan_ = why;
    return false;
  }

  const JsonWindow& window_;
  TraceFile& file_;
  Fields fields_;
  Scan scan_ = Scan::kDone;
  const char* event_ = nullptr;
  std::vector<std::pair<LossKind, const char*>> pending_;
  EventLayouts layouts_;
  // Lists of arguments come back together: one look-up finds the ids of all of an event's.
  struct Lists {
    StringId ids[4] = {};
  };
  std::vector<SeenMember> lists_;  // of the event that is read
  StringPool spans_;               // from the first list to the end of the last
  std::vector<Lists> lists_of_span_;
  std::vector<SeenMember> seen_;  // of the event that is read member by member
  std::vector<FileKind> kinds_;   // by category
  StringId last_category_ = 0;
  uint8_t last_category_row_ = 0;
  int32_t last_thread_ = kNone;
  std::array<int32_t, 64> recent_threads_;             // rows by pid and tid
  std::unordered_multimap<int64_t, int32_t> threads_;  // rows by tid
};

}  // namespace opfuse::trace
