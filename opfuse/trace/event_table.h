#pragma once
// EventTable: every event of one recorded step or trace file, as columns. Filled by the recorder
// (opfuse/torch) and by the file readers alike; read by graph/ (to build the Graph), by the Chrome
// writer and by the report. Times are int64 nanoseconds from the digits of the source, never
// through a double. Everything a source does not say is kUnknown / -1 / empty, never a default.
// BORDER: trace -> graph.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "opfuse/base/dtype.h"

namespace opfuse::trace {

using StringId = uint32_t;  // index into StringPool; 0 is the empty string
constexpr int32_t kNone = -1;

// Each text once. Views from get() stay valid while the pool lives.
class StringPool {
 public:
  StringPool();
  StringPool(const StringPool& other);
  StringPool& operator=(const StringPool& other);
  StringPool(StringPool&&) noexcept = default;
  StringPool& operator=(StringPool&&) noexcept = default;

  StringId intern(std::string_view text);
  // The id of a text that is there already.
  bool find(std::string_view text, StringId* id) const;
  std::string_view get(StringId id) const { return texts_[id]; }
  size_t size() const { return texts_.size(); }
  size_t bytes() const;  // memory held

 private:
  // The tag is a part of the hash: most slots are told apart without a look at their text.
  struct Slot {
    uint32_t tag = 0;
    StringId id = ~StringId{0};  // none
    const char* text = nullptr;  // in blocks_, behind its length
  };

  static uint64_t hash_of(std::string_view text);
  size_t slot_of(std::string_view text, uint64_t hash) const;
  std::string_view keep(std::string_view text);
  static uint32_t length_of(const char* text);
  void grow();

  std::vector<std::string_view> texts_;  // into blocks_
  std::vector<Slot> slots_;              // open addressing
  std::vector<std::unique_ptr<char[]>> blocks_;
  size_t block_used_ = 0, block_size_ = 0, block_bytes_ = 0;
};

enum class EventKind : uint8_t {
  kOperator,  // dispatcher call, name "aten::mul.Tensor" (overload after the dot, none when empty)
  kAutogradNode,  // evaluation of a backward node, name "SwishImplementationBackward",
                  // "MulBackward0"
  kFunction,      // forward of a Python autograd.Function, name is the class name
  kUserScope,     // record_function("…"), Optimizer.step#SGD.step
  kKernel,        // device work
  kOther,
};

// Flags of one event, as they were when it started.
enum EventFlag : uint16_t {
  kGradMode = 1 << 0,
  kInferenceMode = 1 << 1,
  kAutocast = 1 << 2,    // autocast enabled for the device of the first input
  kGraphTask = 1 << 3,   // an autograd graph task is running on this thread (backward pass)
  kPythonMode = 1 << 4,  // a dispatch or function mode (or functorch level) is active
  kSavedTensorHooks = 1 << 5,
  kCheckpointRecompute = 1 << 6,
  kCreateGraph = 1 << 7,  // grad mode is on inside the graph task
  kUnfinished = 1 << 8,   // the event had not ended when the record stopped
  kComposite = 1 << 9,    // CompositeImplicit without a kernel of its own: descended into
  kRandom = 1 << 10,      // tagged nondeterministic_seeded
  kOpaqueArguments =
      1 << 11,  // wrapper tensors (functorch, sparse, subclass) that could not be described
};

enum TensorFlag : uint16_t {
  kRequiresGrad = 1 << 0,
  kLeaf = 1 << 1,
  kWrappedNumber = 1 << 2,  // a Python scalar; its value is in `number`
  kIsParameter = 1 << 3,
  kHasHooks = 1 << 4,  // tensor hooks, retain_grad or post-accumulate hooks
  kInference = 1 << 5,
  kConjOrNeg = 1 << 6,
  kSubclass = 1 << 7,  // Python dispatch key
  kExported = 1 << 8,  // storage known to be shared with numpy / DLPack
};

// One description of a tensor as an argument or a result. Equal rows are interned.
struct TensorRow {
  int32_t tensor = kNone;   // identity of the TensorImpl within the session
  int32_t storage = kNone;  // row of `storages`; kNone when it has none
  int64_t offset = 0;       // elements
  DType dtype = DType::kUnknown;
  int8_t device = -1;  // 0 cpu, 1 cuda, 2 other (see device_name); -1 unknown
  uint16_t flags = 0;
  bool shape_known = false;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // elements; empty with rank > 0 means unknown
  int64_t torch_version = -1;    // torch's own _version
  double number = 0;             // value of a wrapped number
};

// A storage; the id of the same live storage is equal in all records of one session.
struct StorageRow {
  int64_t session_id = -1;
  int64_t bytes = -1;
  bool external = false;  // first seen as an input: existed before the step
  StringId label = 0;     // "param:model.fc.weight", "buffer:…", "state:…", "" when not known
};

enum class ArgumentKind : uint8_t {
  kUnknown,
  kNone,
  kTensor,
  kTensorList,
  kOptionalTensorList,
  kBool,
  kInt,
  kDouble,
  kComplex,
  kString,
  kIntList,
  kDoubleList,
  kBoolList,
  kDevice,
  kGenerator,
  kOpaque,
};

// Non-tensor values live in `ints`, `doubles` or `text`; tensors are indices into
// EventTable::tensors (kNone: undefined tensor).
struct ArgumentRow {
  ArgumentKind kind = ArgumentKind::kUnknown;
  std::vector<int32_t> tensors;
  std::vector<int64_t> ints;    // kBool, kInt: one element; kIntList, kBoolList
  std::vector<double> doubles;  // kDouble: one; kDoubleList; kComplex: two
  StringId text = 0;            // kString, kDevice; kOpaque: the type's name, empty where the file
                                // says only that it is no tensor, number or list
};

// Source position of a frame. Lines are 1-based, columns are 0-based UTF-8 byte offsets as Python's
// co_positions() gives them; -1 when unknown.
struct FrameRow {
  StringId file = 0;
  StringId function = 0;  // qualified name
  int32_t line = -1, column = -1, end_line = -1, end_column = -1;
  int32_t code = kNone;  // recorder's id of the code object
};

// A call stack as a tree: the innermost frame and the rest.
struct StackRow {
  int32_t frame = kNone;
  int32_t parent = kNone;  // row of `stacks`, the calling frame
};

struct ThreadRow {
  int64_t pid = 0, tid = 0;
  StringId name = 0;
};

struct EventRow {
  StringId name = 0;
  EventKind kind = EventKind::kOther;
  uint16_t flags = 0;
  int32_t thread = 0;
  int32_t parent = kNone;  // enclosing event on the same thread
  int64_t start_ns = 0;
  int64_t dur_ns = -1;  // -1: unknown or unfinished
  int64_t sequence =
      -1;  // autograd sequence number: of the node (backward) or made by it (forward)
  int64_t forward_sequence =
      -1;  // kOperator: sequence_nr of the first output's grad_fn after the call
  int32_t stack = kNone;
  std::vector<ArgumentRow> inputs;  // in schema order
  std::vector<ArgumentRow> outputs;
};

// What was lost or looked odd, counted by name ("events dropped: cap", "tensor without storage").
using Losses = std::map<std::string, int64_t>;

// A storage whose bytes an event, or something outside the recorded operators, changed.
struct StorageWrite {
  int32_t event = kNone;
  int32_t storage = kNone;
};

enum class DeviceWork : uint8_t { kKernel, kMemcpy, kMemset };

// Work of a device, from trace files.
struct KernelRow {
  int32_t event = kNone;  // the operator that launched it; kNone: not in the file
  StringId name = 0;
  DeviceWork work = DeviceWork::kKernel;
  int32_t device = -1, stream = -1;
  int64_t launch_ns = -1, launch_dur_ns = -1;  // the host's call; -1 when not in the file
  int64_t start_ns = 0, dur_ns = -1;
  int64_t bytes = -1;  // moved, of copies
};

// A call of the host that waits for the device (cudaStreamSynchronize, a blocking copy), from trace
// files.
struct WaitRow {
  int64_t start_ns = 0, dur_ns = 0;
  int32_t device = -1, stream = -1;  // -1: for all of them
};

// A block of memory made (bytes > 0) or given back (bytes < 0), from trace files.
struct MemoryRow {
  int32_t thread = 0;
  int64_t time_ns = 0, address = 0, bytes = 0;
  int8_t device = -1;  // as TensorRow
};

struct EventTable {
  StringPool strings;
  std::vector<EventRow> events;  // in order of start on each thread; parents before children
  std::vector<TensorRow> tensors;
  std::vector<StorageRow> storages;
  std::vector<FrameRow> frames;
  std::vector<StackRow> stacks;
  std::vector<ThreadRow> threads;
  std::vector<StorageWrite>
      outside_writes;  // by numpy, communication, …: found just before `event`
  std::vector<StorageWrite> undeclared_writes;  // by `event`, although its schema does not say so
  std::vector<KernelRow> kernels;               // in order of start; a recorded step has none
  std::vector<WaitRow> waits;                   // in order of start
  std::vector<MemoryRow> memory;                // in order of time
  Losses losses;
  std::string source;  // "recorder", or the format of the file read
  int64_t wall_start_unix_ns = 0;

  std::string_view name(const EventRow& event) const { return strings.get(event.name); }
};

}  // namespace opfuse::trace
