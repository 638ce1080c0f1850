#pragma once
// The bytes at which JSON text can change its meaning, found 64 at a time: one bit a byte.
// Internal to trace/.

#include <cstddef>
#include <cstdint>

namespace opfuse::trace {

// quotes: '"' and '\\'. marks: those and the brackets { } [ ].
struct JsonMarks {
  uint64_t quotes = 0, marks = 0;
};

// Fills `out` for `blocks` times 64 bytes at `text`, at the widest vector level of this machine.
void find_marks(const char* text, size_t blocks, JsonMarks* out);

// The levels that this machine has, for tests: each must agree with the first.
using FindMarks = void (*)(const char*, size_t, JsonMarks*);
struct MarksLevel {
  const char* name;
  FindMarks find;
};
size_t marks_levels(const MarksLevel** levels);

}  // namespace opfuse::trace
