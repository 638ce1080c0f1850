#include "opfuse/trace/chrome_event.h"

#include <algorithm>

#include "opfuse/trace/json_digits.h"

namespace opfuse::trace {
namespace {

bool is_space(char c) { return static_cast<unsigned char>(c) <= ' '; }

bool is_list(Member member) {
  return member == Member::kValues || member == Member::kDims || member == Member::kTypes ||
         member == Member::kStrides;
}

}  // namespace

// Behind the window's text stand quotes, so this ends there.
const char* skip_space(const char* p) {
  while (load8(p) == 0x2020202020202020ull) p += 8;
  while (is_space(*p)) ++p;
  return p;
}

bool is_event_key(std::string_view key) {
  for (std::string_view known :
       {"ph", "name", "cat", "ts", "pid", "tid", "dur", "args", "id", "s", "bp", "cname"})
    if (key == known) return true;
  return false;
}

bool ChromeEvents::key(const char** at, std::string_view* name) {
  const char* begin = *at + 1;
  const char* p = window_.next_quote(begin);
  while (p < window_.end() && *p == '\\') p = window_.next_quote(p + 2);
  if (p + 1 >= window_.end()) return stop(Scan::kMore);
  *name = {begin, static_cast<size_t>(p - begin)};
  ++p;
  if (*p != ':') p = skip_space(p);
  if (p >= window_.end()) return stop(Scan::kMore);
  if (*p != ':') return stop(Scan::kBad);
  p = skip_space(p + 1);
  if (p >= window_.end()) return stop(Scan::kMore);
  *at = p;
  return true;
}

bool ChromeEvents::object(const char** at, Member (*find)(std::string_view)) {
  const char* p = skip_space(*at + 1);
  while (true) {
    if (*p == ',') p = skip_space(p + 1);
    if (p >= window_.end()) return stop(Scan::kMore);
    if (*p == '}') break;
    if (*p != '"') return stop(Scan::kBad);
    std::string_view name;
    if (!key(&p, &name)) return false;
    Member member = find(name);
    if (member == Member::kArguments && *p == '{') {
      if (!object(&p, argument_of)) return false;
    } else {
      if (member == Member::kArguments) member = Member::kSkip;
      const char* const first = p;
      if (!value(&p, member)) return false;
      seen_.push_back({first, p, member});
    }
    if (*p == ',') {
      p = skip_space(p + 1);
      continue;
    }
    p = skip_space(p);
    if (p < window_.end() && *p == '"') note(LossKind::kCommaMissing, p);
  }
  *at = p + 1;
  return true;
}

bool ChromeEvents::value(const char** at, Member member) {
  Fields& f = fields_;
  switch (member) {
    case Member::kPhase:
      return phase(at);
    case Member::kStart:
      return time(at, &f.start_ns, false);
    case Member::kDuration:
      return time(at, &f.dur_ns, true);
    case Member::kId:
      return number_or_text(at, &f.id, &f.id_text);
    case Member::kCategory:
      return string(at, &f.category);
    case Member::kPid:
      return number_or_text(at, &f.pid, &f.pid_text);
    case Member::kTid:
      return number_or_text(at, &f.tid, &f.tid_text);
    case Member::kName:
      return string(at, &f.name);
    case Member::kMetadata:
      return string(at, &f.metadata);
    case Member::kAddress:
      return integer(at, &f.address);
    case Member::kBytes:
      return integer(at, &f.memory.bytes);
    case Member::kCopied:
      return integer(at, &f.device.bytes);
    case Member::kStream:
      return small(at, &f.device.stream);
    case Member::kDevice:
      return small(at, &f.device.device);
    case Member::kMemoryDevice:
      return small(at, &f.memory.device);
    case Member::kDeviceType:
      return small(at, &f.memory.device_type);
    case Member::kPythonId:
      return integer(at, &f.python_id);
    case Member::kPythonParent:
      return integer(at, &f.python.parent);
    case Member::kPythonModule:
      return integer(at, &f.python.module);
    case Member::kDims:
      return raw(at, &f.op.dims);
    case Member::kTypes:
      return raw(at, &f.op.types);
    case Member::kStrides:
      return raw(at, &f.op.strides);
    case Member::kValues:
      return raw(at, &f.op.values);
    case Member::kCallStack:
      return string(at, &f.op.call_stack);
    case Member::kModule:
      return string(at, &f.op.module);
    case Member::kExternal:
      return integer(at, &f.external);
    case Member::kCorrelation:
      return integer(at, &f.correlation);
    case Member::kForwardThread:
      return integer(at, &f.op.forward_thread);
    case Member::kSequence:
      return integer(at, &f.op.sequence);
    case Member::kRecordId:
      return integer(at, &f.op.record_id);
    default:
      return skip(at);
  }
}

void ChromeEvents::keep_lists() {
  constexpr size_t kMostBytes = 8 << 20;
  StringId* const fields[] = {&fields_.op.values, &fields_.op.dims, &fields_.op.types,
                              &fields_.op.strides};
  constexpr Member kOrder[] = {Member::kValues, Member::kDims, Member::kTypes, Member::kStrides};
  const char* const first = lists_.front().begin;
  const std::string_view span(first, static_cast<size_t>(lists_.back().end - first));
  if (spans_.bytes() > kMostBytes) {
    spans_ = StringPool();
    lists_of_span_.clear();
  }
  const StringId known = spans_.intern(span);
  if (known >= lists_of_span_.size()) {
    lists_of_span_.resize(known + 1);
    for (const SeenMember& list : lists_) {
      const auto at = std::ranges::find(kOrder, list.member) - std::begin(kOrder);
      lists_of_span_[known].ids[at] =
          file_.strings.intern({list.begin, static_cast<size_t>(list.end - list.begin)});
    }
  }
  for (size_t i = 0; i < 4; ++i) *fields[i] = lists_of_span_[known].ids[i];
}

// An event that looks like one before: false where it does not, and nothing is said of it.
bool ChromeEvents::scan_known(const char** at) {
  const char* p = *at;
  int32_t step = 0;
  while (true) {
    step = layouts_.next(step, p);
    if (step < 0) return false;
    p += layouts_.length(step);
    const FixedMembers& fixed = layouts_.fixed(step);
    if (fixed.phase != 0) fields_.phase = fixed.phase;
    if (fixed.has_category) fields_.category = fixed.category;
    const Member member = layouts_.member(step);
    if (member == Member::kEnd) break;
    if (*p == '[' && is_list(member)) {
      const char* const first = p;
      if (!skip_list(&p)) return false;
      lists_.push_back({first, p, member});
    } else if (!value(&p, member)) {
      return false;
    }
  }
  if (p > window_.end()) return false;
  if (!lists_.empty()) keep_lists();
  *at = p;
  return true;
}

void ChromeEvents::begin() {
  fields_ = Fields{};
  scan_ = Scan::kDone;
  pending_.clear();
  lists_.clear();
}

Scan ChromeEvents::scan(const char** at) {
  event_ = *at;
  begin();
  if (!scan_known(at)) {
    begin();
    seen_.clear();
    *at = event_;
    if (!object(at, member_of)) return scan_;
    if (layouts_.learns() && pending_.empty()) layouts_.learn(event_, *at, seen_, fields_.category);
  }
  for (const auto& [kind, where] : pending_)
    file_.losses.add(kind, window_.offset_of(where), {where, 60});
  keep();
  return Scan::kDone;
}

bool ChromeEvents::looks_like_event(const char* at) const {
  if (*at != '{') return false;
  const char* before = at;
  while (before > window_.begin() && is_space(before[-1])) --before;
  if (before > window_.begin() && before[-1] == ':') return false;
  const char* p = skip_space(at + 1);
  if (p >= window_.end() || *p != '"') return false;
  const char* close = window_.next_quote(p + 1);
  return close < window_.end() && *close == '"' &&
         is_event_key({p + 1, static_cast<size_t>(close - p - 1)});
}

}  // namespace opfuse::trace
