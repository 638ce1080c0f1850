#pragma once
// An EventTable as a file (.ofr): "opfuse.r", version, length, payload of varints, CRC-32. Written
// and read by the same build or a later one; a file of another version, cut or damaged gives an
// error that names the byte.

#include <string>
#include <string_view>

#include "opfuse/base/result.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::trace {

Status write_record(const EventTable& table, const std::string& path);
Result<EventTable> read_record(const std::string& path);

// The same in memory. `where` begins error messages.
std::string encode_record(const EventTable& table);
Result<EventTable> decode_record(std::string_view bytes, const std::string& where);

}  // namespace opfuse::trace
