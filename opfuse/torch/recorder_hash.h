#pragma once
// 64-bit hash of a block of memory at memory bandwidth: eight 64-bit lanes, AVX2 where the machine
// has it, the same value either way. For equality of bytes within one process, not for files.

#include <cstddef>
#include <cstdint>

namespace opfuse::torch_bridge {

uint64_t hash_bytes(const void* data, size_t bytes);
// The portable path, for tests.
uint64_t hash_bytes_portable(const void* data, size_t bytes);

}  // namespace opfuse::torch_bridge
