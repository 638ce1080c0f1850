#pragma once
// Recorder: RecordFunction callbacks that fill a Record. Nothing is registered when not recording.
// Identity is kept with weak references for the whole session, so that a storage that lives on has
// the same session id in every record.

#include <cstdint>
#include <memory>

#include "opfuse/base/result.h"
#include "opfuse/torch/record.h"

namespace opfuse::torch_bridge {

struct RecorderOptions {
  bool values = false;  // snapshots, hashes, pokes, generator states
  bool python_frames = true;
  int64_t max_events = 2'000'000;
  int64_t max_snapshot_bytes =
      -1;  // -1: no limit; else recording of values stops, `declined` says so
};

// One recording at a time per process.
Status start_recording(const RecorderOptions& options);
Result<std::unique_ptr<Record>> stop_recording();
// Drops what was recorded so far (error paths); safe when not recording.
void abandon_recording();
bool is_recording();

// Records torch.ones(3).sigmoid() and checks what came out. Run before arming.
Status self_check();

}  // namespace opfuse::torch_bridge
