#pragma once
// OPFUSE_CHECK(condition, "sentence"): our own invariants. A failure throws CheckFailed, which the
// torch boundary turns into a rollback and the command line into exit code 70; never used for
// input.

#include <stdexcept>
#include <string>

namespace opfuse {

class CheckFailed : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] inline void check_failed(const char* file, int line, const char* condition,
                                      const std::string& sentence) {
  throw CheckFailed(std::string(file) + ":" + std::to_string(line) + ": " + condition + ": " +
                    sentence);
}

}  // namespace opfuse

#define OPFUSE_CHECK(condition, sentence)                                               \
  do {                                                                                  \
    if (!(condition)) ::opfuse::check_failed(__FILE__, __LINE__, #condition, sentence); \
  } while (0)
