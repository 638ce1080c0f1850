#include "opfuse/trace/inflater.h"

#include <cstdint>

#include "opfuse/base/check.h"

#if OPFUSE_ISAL
#include <isa-l/igzip_lib.h>
#else
#include <zlib.h>
#endif

namespace opfuse::trace {

#if OPFUSE_ISAL

struct Inflater::Stream {
  inflate_state state;
};

Inflater::Inflater() : stream_(std::make_unique<Stream>()) { reset(); }
Inflater::~Inflater() = default;

void Inflater::reset() {
  isal_inflate_init(&stream_->state);
  stream_->state.crc_flag = ISAL_GZIP;
}

Inflater::State Inflater::run(const char* in, size_t* taken, char* out, size_t* made) {
  inflate_state& s = stream_->state;
  s.next_in = reinterpret_cast<uint8_t*>(const_cast<char*>(in));
  s.avail_in = static_cast<uint32_t>(*taken);
  s.next_out = reinterpret_cast<uint8_t*>(out);
  s.avail_out = static_cast<uint32_t>(*made);
  const int code = isal_inflate(&s);
  *taken -= s.avail_in;
  *made -= s.avail_out;
  if (code < 0) return State::kDamaged;
  return s.block_state == ISAL_BLOCK_FINISH ? State::kMemberEnd : State::kMore;
}

const char* Inflater::library() { return "ISA-L"; }

#else

struct Inflater::Stream {
  z_stream state{};
};

Inflater::Inflater() : stream_(std::make_unique<Stream>()) {
  constexpr int kGzipWindow = 15 + 16;
  OPFUSE_CHECK(inflateInit2(&stream_->state, kGzipWindow) == Z_OK, "zlib does not start");
}
Inflater::~Inflater() { inflateEnd(&stream_->state); }

void Inflater::reset() { inflateReset(&stream_->state); }

Inflater::State Inflater::run(const char* in, size_t* taken, char* out, size_t* made) {
  z_stream& s = stream_->state;
  s.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in));
  s.avail_in = static_cast<uInt>(*taken);
  s.next_out = reinterpret_cast<Bytef*>(out);
  s.avail_out = static_cast<uInt>(*made);
  const int code = inflate(&s, Z_NO_FLUSH);
  *taken -= s.avail_in;
  *made -= s.avail_out;
  if (code == Z_STREAM_END) return State::kMemberEnd;
  return code == Z_OK || code == Z_BUF_ERROR ? State::kMore : State::kDamaged;
}

const char* Inflater::library() { return "zlib"; }

#endif

}  // namespace opfuse::trace
