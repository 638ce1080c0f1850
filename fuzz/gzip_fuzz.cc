// The bytes behind a gzip header.
#include "fuzz/reader_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace std::string_literals;
  opfuse::read_any(data, size, "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03"s);
  return 0;
}
