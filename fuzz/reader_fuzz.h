#pragma once
// What every fuzz target of a reader does with what was read: nothing may crash, hang or read out
// of bounds, whatever the bytes.

#include <cstddef>
#include <cstdint>
#include <string>

#include "opfuse/base/check.h"
#include "opfuse/graph/build.h"
#include "opfuse/graph/infer.h"
#include "opfuse/trace/file_events.h"
#include "opfuse/trace/file_text.h"
#include "opfuse/trace/read.h"

namespace opfuse {

inline void read_any(const uint8_t* data, size_t size, std::string prefix = {}) {
  std::string text = std::move(prefix);
  text.append(reinterpret_cast<const char*>(data), size);
  auto file = trace::read_trace_text(text, "fuzz");
  if (!file.ok()) return;
  if (file->table) {
    (void)graph::build_graph(*file->table, graph::SchemaTable::builtin());
    return;
  }
  (void)trace::print_events(*file);
  const trace::Calls calls = trace::find_calls(*file, &file->losses);
  auto events = trace::file_events(*file, calls);
  OPFUSE_CHECK(events.ok(), "the whole file has events");
  (void)graph::infer_graph(events->table, graph::SchemaTable::builtin());
}

}  // namespace opfuse
