#pragma once
// What a reader of trace files lost, repaired or found odd: counted by name, with the place of the
// first one. The table below is the whole list; a reader names what happened and goes on.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace opfuse::trace {

// kNote: the file is as its writer meant it. kRepair: not what the format allows, and read all the
// same. kLoss: something in the file is missing from what was read. Repairs and losses make the
// input damaged (exit code 6).
enum class Severity : uint8_t { kNote, kRepair, kLoss };

// name in code, severity, text
#define OPFUSE_LOSSES(X)                                                                         \
  X(EventCut, Loss, "events cut off at the end of the file")                                     \
  X(EventUnreadable, Loss, "events that could not be read, skipped to the next")                 \
  X(EventTooLong, Loss, "events longer than 64 MiB, skipped")                                    \
  X(EventWithoutTime, Loss, "events without a usable time stamp, left out")                      \
  X(DurationNegative, Loss, "negative durations, left out of sums")                              \
  X(DurationUnreadable, Loss, "durations that are no number, left out of sums")                  \
  X(TimeZero, Loss,                                                                              \
    "events stamped 0 with duration 0, left out; times cover the rest of the run only")          \
  X(StreamDamaged, Loss,                                                                         \
    "damaged compressed streams, as when several ranks write one file; what inflated before is " \
    "used")                                                                                      \
  X(StreamCut, Loss, "compressed streams that end too early")                                    \
  X(StreamTail, Loss, "bytes behind a compressed stream that are no further stream")             \
  X(DatabaseDamaged, Loss, "queries that the database could not answer to the end")              \
  X(ArchiveCut, Loss, "archives that end inside a member")                                       \
  X(SliceMissing, Loss, "slice files missing in a numbered series")                              \
  X(RowUnreadable, Loss, "table rows with an unexpected number of cells, skipped")               \
  X(UnpairedBegin, Loss, "begin events without an end")                                          \
  X(UnpairedEnd, Loss, "end events without a begin")                                             \
  X(FileEmpty, Loss, "files without any event")                                                  \
  X(FileEndMissing, Repair, "files without their closing brackets")                              \
  X(CommaMissing, Repair, "missing commas between events or members")                            \
  X(StrayText, Repair, "stray text between events, such as a bracket in the middle")             \
  X(NotUtf8, Repair, "names with bytes that are not UTF-8, shown as U+FFFD")                     \
  X(ControlBytes, Repair, "names with raw control bytes")                                        \
  X(EscapeIllegal, Repair, "names with an illegal escape, read as a literal backslash")          \
  X(QuoteInString, Repair, "names with an unescaped quote")                                      \
  X(NumberNotFinite, Repair, "values inf or nan, left out of sums")                              \
  X(WordBare, Repair, "values that are bare words, such as N/A")                                 \
  X(NumberTooLarge, Repair, "numbers beyond 64 bits, read as unknown")                           \
  X(ParentMissing, Repair, "parent ids that no node has")                                        \
  X(EventDuplicated, Repair, "events that are in the file twice, used once")                     \
  X(CrossingSlices, Note, "events that end after their parent, clipped for sums")                \
  X(KernelOverlap, Note,                                                                         \
    "kernels whose stream's next one begins before their end: timed up to it")                   \
  X(CorrelationShared, Note,                                                                     \
    "device events whose correlation launches of several processes have, joined in one of them") \
  X(CorrelationZero, Note, "device events with correlation 0, not linked")                       \
  X(KernelOrphan, Note, "kernels without a launch in the file (begun before the window)")        \
  X(BackwardUnpaired, Note, "backward nodes whose forward operator is not in the file")          \
  X(FlowUnpaired, Note, "flow arrows with one end only")                                         \
  X(PhaseUnknown, Note, "events of phases that are not read")                                    \
  X(WindowEndFar, Note, "window ends far behind the last event, ignored")                        \
  X(CategoriesMany, Note, "categories beyond the first 250, kept without a name")                \
  X(TimesInOrder, Note, "tables without start times: one row behind the other, as in the file")  \
  X(WholeMicroseconds, Note, "files whose times are whole microseconds: times are +-1 us")

enum class LossKind : uint8_t {
#define OPFUSE_LOSS_ENUM(name, severity, text) k##name,
  OPFUSE_LOSSES(OPFUSE_LOSS_ENUM)
#undef OPFUSE_LOSS_ENUM
      kCount
};

struct LossInfo {
  std::string_view name, text;
  Severity severity;
};
const LossInfo& loss_info(LossKind kind);

struct LossCount {
  int64_t count = 0;
  int64_t first_offset = -1;  // byte in the uncompressed file; -1: no place
  std::string excerpt;        // of the first one, at most 60 bytes, printable
};

class LossLog {
 public:
  void add(LossKind kind, int64_t offset = -1, std::string_view excerpt = {}, int64_t count = 1);
  void merge(const LossLog& other);
  const LossCount& of(LossKind kind) const { return counts_[static_cast<size_t>(kind)]; }
  int64_t count(LossKind kind) const { return of(kind).count; }
  bool damaged() const;                   // any repair or loss
  std::vector<LossKind> present() const;  // losses first

 private:
  std::array<LossCount, static_cast<size_t>(LossKind::kCount)> counts_;
};

}  // namespace opfuse::trace
