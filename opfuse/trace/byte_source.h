#pragma once
// Bytes of a trace file, in order: a plain file, a pipe, or a gzip stream that is inflated on the
// way (members one after another are one stream). Nothing is held but the blocks in flight.

#include <cstdint>
#include <memory>
#include <string>

#include "opfuse/base/result.h"
#include "opfuse/trace/losses.h"

namespace opfuse::trace {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Fills up to `size` bytes and returns how many; 0 at the end. Fewer than `size` does not mean
  // the end. What is damaged ends the stream and is noted.
  virtual size_t read(char* out, size_t size) = 0;
  const LossLog& losses() const { return losses_; }

 protected:
  LossLog losses_;
};

// "-" is the standard input. A file that begins as gzip is inflated, on a thread of its own when
// `threads` > 1.
Result<std::unique_ptr<ByteSource>> open_bytes(const std::string& path, int threads = 1);

std::unique_ptr<ByteSource> bytes_of(std::string text);  // for tests and small members
std::unique_ptr<ByteSource> inflate(std::unique_ptr<ByteSource> compressed);
std::unique_ptr<ByteSource> read_ahead(std::unique_ptr<ByteSource> source);

// Reads `size` bytes unless the end comes first.
size_t read_fully(ByteSource* source, char* out, size_t size);

}  // namespace opfuse::trace
