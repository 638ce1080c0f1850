#pragma once
// What the events of a trace look like between their values. A profiler writes the events of one
// kind with the same members in the same order and the same spaces, so the text from one value to
// the next is compared with what was learned, 16 bytes at a time, and no key is looked for. The
// layouts are a tree: steps that follow one another, with a branch where events differ. What is not
// in the tree is read member by member and learned from. Internal to trace/.

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "opfuse/trace/event_table.h"

namespace opfuse::trace {

// What is done with a value.
enum class Member : uint8_t {
  kSkip,
  kEnd,  // of the event: no value follows
  kArguments,
  kPhase,
  kConstant,  // of the members that have few values and are not kept: "s", "bp"
  kName,
  kCategory,
  kStart,
  kDuration,
  kPid,
  kTid,
  kId,
  kMetadata,
  kAddress,
  kBytes,
  kCopied,
  kStream,
  kDevice,
  kMemoryDevice,
  kDeviceType,
  kPythonId,
  kPythonParent,
  kPythonModule,
  kDims,
  kTypes,
  kStrides,
  kValues,
  kCallStack,
  kModule,
  kExternal,
  kCorrelation,
  kForwardThread,
  kSequence,
  kRecordId,
};

Member member_of(std::string_view key);    // of an event
Member argument_of(std::string_view key);  // of its "args"

// A value of an event that was read member by member.
struct SeenMember {
  const char* begin = nullptr;
  const char* end = nullptr;
  Member member = Member::kSkip;
};

// What is fixed by the text of a step itself.
struct FixedMembers {
  char phase = 0;  // 0: not in this step
  bool has_category = false;
  StringId category = 0;
};

class EventLayouts {
 public:
  static constexpr size_t kLongest = 64;  // bytes of text before a value

  // The step behind `step` (0: the beginning of an event) whose text stands at `p`, or -1. 64 bytes
  // must be readable at `p`.
  int32_t next(int32_t step, const char* p) {
    for (int32_t at = steps_[step].child; at >= 0; at = steps_[at].sibling)
      if (matches(steps_[at], p)) return at;
    return -1;
  }
  size_t length(int32_t step) const { return steps_[step].length; }
  Member member(int32_t step) const { return steps_[step].member; }
  const FixedMembers& fixed(int32_t step) const { return steps_[step].fixed; }

  // False when events differ too much to be worth learning.
  bool learns() const { return steps_.size() < kMostSteps; }
  // Adds the layout of the event [begin, end) with these values in order. `category`: its id.
  void learn(const char* begin, const char* end, const std::vector<SeenMember>& seen,
             StringId category);

  EventLayouts() : steps_(1) {}

 private:
  static constexpr size_t kMostSteps = 2000;
  struct Step {
    std::array<char, kLongest> text{};
    std::array<char, kLongest> mask{};  // 0xff where `text` counts
    uint8_t length = 0, blocks = 0;     // of 16 bytes
    Member member = Member::kEnd;
    FixedMembers fixed;
    int32_t child = -1, sibling = -1;
  };

  static bool matches(const Step& step, const char* p) {
    using Block = unsigned char __attribute__((vector_size(16)));
    Block differ{};
    for (int i = 0; i < step.blocks; ++i) {
      Block have, text, mask;
      std::memcpy(&have, p + 16 * i, 16);
      std::memcpy(&text, step.text.data() + 16 * i, 16);
      std::memcpy(&mask, step.mask.data() + 16 * i, 16);
      differ |= (have ^ text) & mask;
    }
    uint64_t words[2];
    std::memcpy(words, &differ, sizeof(words));
    return (words[0] | words[1]) == 0;
  }
  int32_t child_for(int32_t step, std::string_view text, Member member, const FixedMembers& fixed);

  std::vector<Step> steps_;  // [0]: before the event
};

}  // namespace opfuse::trace
