#pragma once
// A caching CPU allocator for the time of a replay: fresh pages cost two to three times the work of
// a pointwise operator. ReplayMemory installs it in its constructor, puts the old one back in its
// destructor; tensors alive across either switch stay valid, as each carries its deleter.

#include <c10/core/Allocator.h>

#include <cstdint>

namespace opfuse::torch_bridge {

class ReplayMemory {
 public:
  // Blocks handed out to the constructing thread beyond `max_bytes` (-1: no limit) throw
  // c10::OutOfMemoryError there; other threads are never limited.
  explicit ReplayMemory(int64_t max_bytes);
  ~ReplayMemory();
  ReplayMemory(const ReplayMemory&) = delete;
  ReplayMemory& operator=(const ReplayMemory&) = delete;

  int64_t peak_bytes() const;

 private:
  c10::Allocator* previous_ = nullptr;
};

// Gives cached blocks back to the system.
void trim_replay_memory();

}  // namespace opfuse::torch_bridge
