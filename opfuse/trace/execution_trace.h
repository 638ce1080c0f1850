#pragma once
// Reader of PyTorch execution traces (schemas 1.0.1 to 1.1.1, told apart by the fields that a node
// has, not by the version it claims). Such a trace holds tensor ids and no times: the result is an
// EventTable with values, whose start_ns is the number of the node.
//
// Ids of tensors and storages are pointers that the program reuses. A storage of a result is the
// argument's where the schema says that it is a view or written, or one that was made inside the
// operator; else it is a new one, whatever its number.

#include "opfuse/trace/byte_source.h"
#include "opfuse/trace/trace_file.h"

namespace opfuse::trace {

// Fills TraceFile::table and the losses; nodes that are cut or unreadable are counted and left out.
void read_execution_trace(ByteSource* source, TraceFile* file);

}  // namespace opfuse::trace
