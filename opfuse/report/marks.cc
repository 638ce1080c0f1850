#include "opfuse/report/marks.h"

#include <algorithm>
#include <unordered_map>

#include "opfuse/graph/schema.h"

namespace opfuse::report {
namespace {

using trace::EventKind;
using trace::EventRow;
using trace::EventTable;
using trace::kNone;

// "efficientnet_pytorch.utils.SwishImplementation" names the event "SwishImplementation".
bool names_class(std::string_view qualified, std::string_view name) {
  if (name.empty() || !qualified.ends_with(name)) return false;
  return qualified.size() == name.size() || qualified[qualified.size() - name.size() - 1] == '.';
}

// "aten.silu" names every overload, "aten.mul.Tensor" that one.
bool names_operator(const std::string& wanted, std::string_view event_name) {
  const std::string dotted = graph::dotted_name(event_name);
  return dotted == wanted || (dotted.starts_with(wanted) && dotted[wanted.size()] == '.');
}

class Marker {
 public:
  Marker(const EventTable& table, const Report& report, Side side)
      : table_(table), report_(report), side_(side) {
    marks_.site_of.assign(table.events.size(), kNone);
  }

  ChainMarks run() {
    mark_forward();
    mark_backward();
    return std::move(marks_);
  }

 private:
  bool has_frame(const EventRow& event, const std::string& file, int line) const {
    if (event.stack == kNone) return false;
    for (int32_t at = event.stack; at != kNone; at = table_.stacks[at].parent)
      if (is_at(table_.stacks[at].frame, file, line)) return true;
    return false;
  }

  bool is_at(int32_t frame, const std::string& file, int line) const {
    if (frame == kNone) return false;
    const auto& row = table_.frames[frame];
    return row.line == line && table_.strings.get(row.file) == file;
  }

  // Index of the chain's operator that the event is, or kNone.
  int32_t operator_of(const Site& site, const EventRow& event) const {
    if (event.stack == kNone) return kNone;
    const int32_t frame = table_.stacks[event.stack].frame;
    for (size_t i = 0; i < site.operators.size(); ++i) {
      const ChainOperator& op = site.operators[i];
      if (!names_operator(op.op, table_.name(event)) || !is_at(frame, site.chain_file, op.line))
        continue;
      const int column = table_.frames[frame].column;
      if (op.column < 0 || column < 0 || op.column == column) return static_cast<int32_t>(i);
    }
    return kNone;
  }

  void mark_forward() {
    for (size_t row = 0; row < table_.events.size(); ++row) {
      const EventRow& event = table_.events[row];
      if (event.parent != kNone) marks_.site_of[row] = marks_.site_of[event.parent];
      if (marks_.site_of[row] != kNone) continue;
      for (const Site& site : report_.sites)
        if (starts_call(site, event, static_cast<int32_t>(row))) {
          marks_.site_of[row] = site.id;
          break;
        }
    }
  }

  bool starts_call(const Site& site, const EventRow& event, int32_t row) {
    if (side_ == Side::kAfter) {
      if (site.refusal || event.kind != EventKind::kOperator ||
          !names_operator(site.target, table_.name(event)) ||
          !has_frame(event, site.file, site.line))
        return false;
      marks_.calls.push_back({site.id, {row}, {}});
      return true;
    }
    if (event.kind == EventKind::kFunction) {
      if (!names_class(site.function_class, table_.name(event))) return false;
      if (event.stack != kNone && !has_frame(event, site.file, site.line)) return false;
      marks_.calls.push_back({site.id, {row}, {}});
      return true;
    }
    if (event.kind != EventKind::kOperator) return false;
    const int32_t index = operator_of(site, event);
    if (index == kNone) return false;
    add_to_call(site, index, row);
    return true;
  }

  // A call is complete with the chain's last operator; the next one starts another.
  void add_to_call(const Site& site, int32_t index, int32_t row) {
    int32_t& open = open_call_[site.id];
    if (open == 0 || index == 0 || marks_.calls[open - 1].forward.size() >= site.operators.size()) {
      marks_.calls.push_back({site.id, {}, {}});
      open = static_cast<int32_t>(marks_.calls.size());
    }
    marks_.calls[open - 1].forward.push_back(row);
  }

  void mark_backward() {
    std::unordered_map<int64_t, size_t> call_of;  // sequence number of a backward node
    for (size_t i = 0; i < marks_.calls.size(); ++i)
      for (int32_t row : marks_.calls[i].forward) {
        const EventRow& event = table_.events[row];
        const int64_t sequence =
            event.forward_sequence >= 0 ? event.forward_sequence : event.sequence;
        if (sequence >= 0) call_of[sequence] = i;
      }
    for (size_t row = 0; row < table_.events.size(); ++row) {
      const EventRow& event = table_.events[row];
      if (marks_.site_of[row] != kNone) continue;
      if (event.parent != kNone) marks_.site_of[row] = marks_.site_of[event.parent];
      if (event.kind != EventKind::kAutogradNode || event.sequence < 0) continue;
      const auto found = call_of.find(event.sequence);
      if (found == call_of.end()) continue;
      ChainCall& call = marks_.calls[found->second];
      marks_.site_of[row] = call.site;
      call.backward.push_back(static_cast<int32_t>(row));
    }
  }

  const EventTable& table_;
  const Report& report_;
  const Side side_;
  ChainMarks marks_;
  std::unordered_map<int, int32_t> open_call_;  // site -> index into calls + 1
};

}  // namespace

ChainMarks mark_chains(const trace::EventTable& table, const Report& report, Side side) {
  return Marker(table, report, side).run();
}

}  // namespace opfuse::report
