#pragma once
// One gzip member at a time: ISA-L where the build found it (three times zlib's speed), else zlib.
// Internal to trace/.

#include <cstddef>
#include <memory>

namespace opfuse::trace {

class Inflater {
 public:
  enum class State { kMore, kMemberEnd, kDamaged };

  Inflater();
  ~Inflater();
  // Takes up to `*taken` bytes of `in` and makes up to `*made` bytes of `out`; both are set to what
  // was done. kMore with nothing done asks for more of either.
  State run(const char* in, size_t* taken, char* out, size_t* made);
  void reset();  // for the next member

  static const char* library();  // "ISA-L" or "zlib"

 private:
  struct Stream;
  std::unique_ptr<Stream> stream_;
};

}  // namespace opfuse::trace
