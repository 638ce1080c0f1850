#include "opfuse/report/pack.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace opfuse::report {
namespace {

using trace::EventRow;
using trace::EventTable;
using trace::kNone;

// Unsigned LEB128: seven bits a byte, least first.
class Column {
 public:
  void add(uint64_t value) {
    while (value >= 0x80) {
      bytes_ += static_cast<char>((value & 0x7f) | 0x80);
      value >>= 7;
    }
    bytes_ += static_cast<char>(value);
  }
  std::string text() const { return base64(bytes_); }

 private:
  std::string bytes_;
};

std::string tensor_text(const EventTable& table, int32_t tensor) {
  if (tensor == kNone) return "-";
  const auto& row = table.tensors[tensor];
  std::string text(dtype_name(row.dtype));
  if (!row.shape_known) return text + "[?]";
  text += '[';
  for (size_t i = 0; i < row.shape.size(); ++i)
    text += (i ? "," : "") + std::to_string(row.shape[i]);
  return text + "]";
}

std::string tensors_text(const EventTable& table, const std::vector<trace::ArgumentRow>& list) {
  constexpr size_t kShown = 8;  // of a foreach operator with hundreds
  std::string text;
  size_t count = 0;
  for (const auto& argument : list)
    for (int32_t tensor : argument.tensors) {
      if (++count <= kShown) text += (text.empty() ? "" : ", ") + tensor_text(table, tensor);
    }
  if (count > kShown) text += " and " + std::to_string(count - kShown) + " more";
  return text;
}

std::string shapes_text(const EventTable& table, const EventRow& event) {
  const std::string in = tensors_text(table, event.inputs);
  const std::string out = tensors_text(table, event.outputs);
  if (out.empty()) return in;
  return in + " \u2192 " + out;
}

int64_t last_end(const EventTable& table) {
  int64_t end = 0;
  for (const EventRow& event : table.events)
    end = std::max(end, event.start_ns + std::max<int64_t>(event.dur_ns, 0));
  return end;
}

// Rows in order of thread and start; of equal starts the longer one, the parent, first.
std::vector<int32_t> ordered_rows(const EventTable& table, const ChainMarks& marks, size_t limit) {
  std::vector<int32_t> rows(table.events.size());
  std::iota(rows.begin(), rows.end(), 0);
  if (rows.size() > limit) {
    const auto weight = [&](int32_t row) {
      return std::pair(marks.site_of[row] != kNone, table.events[row].dur_ns);
    };
    std::nth_element(rows.begin(), rows.begin() + static_cast<int64_t>(limit), rows.end(),
                     [&](int32_t a, int32_t b) { return weight(a) > weight(b); });
    rows.resize(limit);
  }
  std::sort(rows.begin(), rows.end(), [&](int32_t a, int32_t b) {
    const EventRow &x = table.events[a], &y = table.events[b];
    return std::tuple(x.thread, x.start_ns, -x.dur_ns, a) <
           std::tuple(y.thread, y.start_ns, -y.dur_ns, b);
  });
  return rows;
}

Json rows_json(const std::vector<int32_t>& rows, const std::vector<int32_t>& packed_row) {
  Json list = Json::array();
  for (int32_t row : rows)
    if (packed_row[row] != kNone) list.push_back(packed_row[row]);
  return list;
}

Json calls_json(const ChainMarks& marks, const std::vector<int32_t>& packed_row) {
  Json calls = Json::array();
  for (const ChainCall& call : marks.calls)
    calls.push_back({{"site", call.site},
                     {"forward", rows_json(call.forward, packed_row)},
                     {"backward", rows_json(call.backward, packed_row)}});
  return calls;
}

}  // namespace

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k)
      group = group << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k)
      text += i + k <= bytes.size() ? kDigits[group >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

TimelinePacker::TimelinePacker() { string_id(""); }

uint64_t TimelinePacker::string_id(std::string_view text) {
  if (const auto found = ids_.find(text); found != ids_.end()) return found->second;
  const uint64_t id = ids_.size();
  ids_.emplace(text, id);
  strings_.push_back(std::string(text));
  return id;
}

void TimelinePacker::add(const EventTable& table, const ChainMarks& marks, const std::string& title,
                         size_t max_events) {
  const std::vector<int32_t> rows = ordered_rows(table, marks, max_events);
  std::vector<int32_t> packed_row(table.events.size(), kNone);
  int64_t first = rows.empty() ? 0 : table.events[rows[0]].start_ns;
  for (int32_t row : rows) first = std::min(first, table.events[row].start_ns);
  const int64_t end = std::max(last_end(table), first);

  Column name, kind, start, dur, stack, shapes, link, chain;
  Json threads = Json::array();
  int64_t previous = first;
  for (size_t i = 0; i < rows.size(); ++i) {
    const EventRow& event = table.events[rows[i]];
    packed_row[rows[i]] = static_cast<int32_t>(i);
    if (i == 0 || event.thread != table.events[rows[i - 1]].thread) {
      const bool known = static_cast<size_t>(event.thread) < table.threads.size();
      const std::string thread =
          known ? std::string(table.strings.get(table.threads[event.thread].name)) : "";
      threads.push_back({{"name", thread}, {"first", i}});
      previous = first;
    }
    const bool unfinished = event.dur_ns < 0;
    name.add(string_id(std::string(table.name(event)) + (unfinished ? " (unfinished)" : "")));
    kind.add(static_cast<uint64_t>(event.kind));
    start.add(static_cast<uint64_t>(event.start_ns - previous));
    dur.add(static_cast<uint64_t>(unfinished ? end - event.start_ns : event.dur_ns));
    stack.add(static_cast<uint64_t>(event.stack + 1));
    shapes.add(string_id(shapes_text(table, event)));
    const bool is_forward = event.kind == trace::EventKind::kOperator;
    const int64_t sequence = is_forward ? event.forward_sequence : event.sequence;
    link.add(static_cast<uint64_t>(std::max<int64_t>(sequence, -1) + 1));
    chain.add(static_cast<uint64_t>(marks.site_of[rows[i]] + 1));
    previous = event.start_ns;
  }

  Json frames = Json::array(), stacks = Json::array();
  for (const auto& frame : table.frames)
    frames.push_back({string_id(table.strings.get(frame.file)), frame.line,
                      string_id(table.strings.get(frame.function))});
  for (const auto& row : table.stacks) stacks.push_back({row.frame, row.parent});
  steps_.push_back({{"title", title},
                    {"count", rows.size()},
                    {"left_out", table.events.size() - rows.size()},
                    {"duration", end - first},
                    {"threads", threads},
                    {"name", name.text()},
                    {"kind", kind.text()},
                    {"start", start.text()},
                    {"dur", dur.text()},
                    {"stack", stack.text()},
                    {"shapes", shapes.text()},
                    {"link", link.text()},
                    {"chain", chain.text()},
                    {"frames", frames},
                    {"stacks", stacks},
                    {"calls", calls_json(marks, packed_row)}});
}

Json TimelinePacker::take() {
  return {{"strings", std::move(strings_)}, {"steps", std::move(steps_)}};
}

}  // namespace opfuse::report
