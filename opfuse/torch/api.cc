#include "opfuse/torch/api.h"

#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <string>

#include "opfuse/torch/session.h"

namespace opfuse::torch_bridge {
namespace {

// Never destroyed: threads of the process may still hold recorded tensors when it exits.
Session& session() {
  static Session* const only = new Session;
  return *only;
}

std::mutex& session_mutex() {
  static std::mutex* const only = new std::mutex;
  return *only;
}

// OPFUSE_FAULT=<method>:alloc makes that method fail as if memory had run out: a test of the claim
// that a failure of ours leaves the user's run unharmed.
void fail_when_asked(const std::string& method) {
  const char* fault = std::getenv("OPFUSE_FAULT");
  if (fault && method + ":alloc" == fault) throw std::bad_alloc();
}

Json answer_to(const char* method, const char* request_json) {
  const Json request = Json::parse(request_json ? request_json : "{}", nullptr, false);
  if (!request.is_object()) return {{"error", std::string(method) + ": expected a JSON object"}};
  fail_when_asked(method);
  const std::lock_guard<std::mutex> lock(session_mutex());
  Result<Json> answer = session().call(method, request);
  return answer.ok() ? std::move(answer.value()) : Json{{"error", answer.error().message}};
}

char* copied(const std::string& text) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy) std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

std::string answer_text(const char* method, const char* request_json) {
  try {
    return answer_to(method, request_json).dump(-1, ' ', false, Json::error_handler_t::replace);
  } catch (const std::bad_alloc&) {
    return R"({"error":"out of memory"})";
  } catch (const std::exception& error) {
    return Json{{"error", std::string(method) + ": " + error.what()}}.dump(
        -1, ' ', false, Json::error_handler_t::replace);
  }
}

}  // namespace
}  // namespace opfuse::torch_bridge

char* opfuse_call(const char* method, const char* request_json) {
  try {
    return opfuse::torch_bridge::copied(opfuse::torch_bridge::answer_text(method, request_json));
  } catch (...) {
    return nullptr;
  }
}

void opfuse_free(char* answer) { std::free(answer); }
