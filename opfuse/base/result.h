#pragma once
// Result<T>: a value or an Error with one sentence that says where, what was expected and what was
// found. Used for bad input (files, flags, shapes); never for our own bugs (see check.h).

#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace opfuse {

struct Error {
  std::string message;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() { return std::get<0>(state_); }
  const T& value() const { return std::get<0>(state_); }
  const Error& error() const { return std::get<1>(state_); }
  T& operator*() { return value(); }
  const T& operator*() const { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Error> state_;
};

// The result of something that only succeeds or fails.
struct Unit {};
using Status = Result<Unit>;
inline Status ok_status() { return Unit{}; }

}  // namespace opfuse

#define OPFUSE_CONCAT_INNER(a, b) a##b
#define OPFUSE_CONCAT(a, b) OPFUSE_CONCAT_INNER(a, b)

// OPFUSE_TRY(auto x, f()): x = *f(), or return f()'s error from the enclosing function.
#define OPFUSE_TRY_INNER(tmp, declaration, expression) \
  auto tmp = (expression);                             \
  if (!tmp.ok()) return tmp.error();                   \
  declaration = std::move(tmp.value())
#define OPFUSE_TRY(declaration, expression) \
  OPFUSE_TRY_INNER(OPFUSE_CONCAT(opfuse_try_, __COUNTER__), declaration, expression)

// OPFUSE_TRY_STATUS(f()): return f()'s error from the enclosing function, if it has one.
#define OPFUSE_TRY_STATUS(expression)                                                         \
  do {                                                                                        \
    if (auto opfuse_status = (expression); !opfuse_status.ok()) return opfuse_status.error(); \
  } while (0)
