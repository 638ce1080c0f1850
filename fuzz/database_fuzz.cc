#include "fuzz/reader_fuzz.h"

// The first 16 bytes say that it is a database; without them almost no input would be one.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  opfuse::read_any(data, size, std::string("SQLite format 3\0", 16));
  return 0;
}
