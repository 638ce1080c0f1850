#pragma once
// What the recorder's callbacks and its control share: the running recording and its lock.

#include <ATen/record_function.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "opfuse/torch/python_frames.h"
#include "opfuse/torch/recorder.h"
#include "opfuse/torch/recorder_identity.h"
#include "opfuse/torch/recorder_rows.h"
#include "opfuse/torch/recorder_values.h"

namespace opfuse::torch_bridge {

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct OperatorKey {
  const char *name, *overload;
  bool operator==(const OperatorKey&) const = default;
};
struct OperatorKeyHash {
  size_t operator()(const OperatorKey& key) const {
    return std::hash<const void*>()(key.name) * 31 + std::hash<const void*>()(key.overload);
  }
};

struct Recording {
  Recording(const RecorderOptions& options, IdentityTable* identities, uint64_t number)
      : options(options),
        number(number),
        record(std::make_unique<Record>()),
        rows(record.get(), &log, identities, number),
        values(record.get(), &log, &rows, options.values, options.max_snapshot_bytes) {}

  RecorderOptions options;
  uint64_t number;
  std::unique_ptr<Record> record;
  EventLog log;
  RowBuilder rows;
  ValueCapture values;
  std::unordered_map<OperatorKey, std::unique_ptr<OperatorInfo>, OperatorKeyHash> operators;
  std::shared_ptr<CodeTable> codes;
  bool communication = false;  // operators whose writes may arrive later have been seen
  int64_t start_ns = 0;
};

// Everything below is guarded by `mutex`, which is never held while waiting for the GIL.
struct Recorder {
  std::mutex mutex;
  std::unique_ptr<Recording> recording;
  IdentityTable identities;
  at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
  bool fork_handlers = false;
};

Recorder& recorder();

// Number of the running recording, 0 when there is none.
extern std::atomic<uint64_t> running_recording;

// RecordFunction callbacks. They never throw: torch would swallow the event with the exception.
std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function);
void on_end(const at::RecordFunction& function, at::ObserverContext* observer);

}  // namespace opfuse::torch_bridge
