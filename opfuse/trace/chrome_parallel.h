#pragma once
// Several threads on one Chrome trace: the text is cut where an event seems to begin, the pieces
// are read apart and joined in order. A cut is right when the piece before it ended between two
// events; else the rest is read by one thread. Internal to trace/.

#include <functional>
#include <memory>
#include <string_view>

#include "opfuse/trace/chrome_reader.h"
#include "opfuse/trace/json_walker.h"

namespace opfuse::trace {

void read_chrome_parallel(ByteSource* source, const ChromeReadOptions& options, TraceFile* file);

// Of chrome_reader.cc.
JsonWalker::MakeReader chrome_events_of(TraceFile* file);
// Room for `expected` bytes of text, when `read` of them made what is there.
void reserve_columns(TraceFile* file, int64_t read, int64_t expected);

}  // namespace opfuse::trace
