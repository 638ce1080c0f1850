#include "opfuse/trace/event_layouts.h"

#include <algorithm>

namespace opfuse::trace {
namespace {

struct Key {
  std::string_view name;
  Member member;
};

constexpr Key kMembers[] = {
    {"ph", Member::kPhase},     {"ts", Member::kStart},     {"id", Member::kId},
    {"cat", Member::kCategory}, {"dur", Member::kDuration}, {"pid", Member::kPid},
    {"tid", Member::kTid},      {"name", Member::kName},    {"args", Member::kArguments},
    {"s", Member::kConstant},   {"bp", Member::kConstant},  {"cname", Member::kConstant},
};

constexpr Key kArguments[] = {
    {"name", Member::kMetadata},
    {"Addr", Member::kAddress},
    {"Bytes", Member::kBytes},
    {"bytes", Member::kCopied},
    {"stream", Member::kStream},
    {"Stream Id", Member::kStream},
    {"device", Member::kDevice},
    {"Device Id", Member::kMemoryDevice},
    {"Device Type", Member::kDeviceType},
    {"Python id", Member::kPythonId},
    {"Python parent id", Member::kPythonParent},
    {"Python module id", Member::kPythonModule},
    {"Input Dims", Member::kDims},
    {"Input type", Member::kTypes},
    {"Input Strides", Member::kStrides},
    {"Concrete Inputs", Member::kValues},
    {"Call stack", Member::kCallStack},
    {"Module Hierarchy", Member::kModule},
    {"External id", Member::kExternal},
    {"external id", Member::kExternal},
    {"correlation", Member::kCorrelation},
    {"connection_id", Member::kCorrelation},
    {"Fwd thread id", Member::kForwardThread},
    {"Sequence number", Member::kSequence},
    {"Record function id", Member::kRecordId},
};

Member find(std::span<const Key> keys, std::string_view name) {
  for (const Key& key : keys)
    if (key.name == name) return key.member;
  return Member::kSkip;
}

bool is_fixed(Member member) {
  return member == Member::kPhase || member == Member::kConstant || member == Member::kCategory;
}

}  // namespace

Member member_of(std::string_view key) { return find(kMembers, key); }
Member argument_of(std::string_view key) { return find(kArguments, key); }

int32_t EventLayouts::child_for(int32_t step, std::string_view text, Member member,
                                const FixedMembers& fixed) {
  int32_t* link = &steps_[step].child;
  while (*link >= 0) {
    const Step& at = steps_[*link];
    if (at.member == member && std::string_view(at.text.data(), at.length) == text) return *link;
    link = &steps_[*link].sibling;
  }
  const auto made = static_cast<int32_t>(steps_.size());
  *link = made;
  Step& next = steps_.emplace_back();
  std::ranges::copy(text, next.text.begin());
  std::fill_n(next.mask.begin(), text.size(), '\xff');
  next.length = static_cast<uint8_t>(text.size());
  next.blocks = static_cast<uint8_t>((text.size() + 15) / 16);
  next.member = member;
  next.fixed = fixed;
  return made;
}

void EventLayouts::learn(const char* begin, const char* end, const std::vector<SeenMember>& seen,
                         StringId category) {
  // A text that is too long ends what can be learned of this event, before anything is added.
  const auto walk = [&](auto&& use) {
    const char* from = begin;
    FixedMembers fixed;
    for (const SeenMember& value : seen) {
      if (is_fixed(value.member)) {
        if (value.member == Member::kPhase && value.end - value.begin == 3)
          fixed.phase = value.begin[1];
        if (value.member == Member::kCategory) fixed = {fixed.phase, true, category};
        continue;
      }
      if (!use(from, value.begin, value.member, fixed)) return false;
      from = value.end;
      fixed = {};
    }
    return use(from, end, Member::kEnd, fixed);
  };
  const bool fits = walk([](const char* from, const char* to, Member, const FixedMembers&) {
    return to - from <= static_cast<ptrdiff_t>(kLongest);
  });
  if (!fits) return;
  int32_t step = 0;
  walk([&](const char* from, const char* to, Member member, const FixedMembers& fixed) {
    step = child_for(step, {from, static_cast<size_t>(to - from)}, member, fixed);
    return true;
  });
}

}  // namespace opfuse::trace
