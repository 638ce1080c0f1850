#include "opfuse/torch/python_frames.h"

#include <dlfcn.h>

namespace opfuse::torch_bridge {
namespace {

constexpr int kMaxFrames = 64;

// Public functions of CPython; PyGILState_STATE is an int-sized enum.
struct PythonApi {
  int (*is_initialized)() = nullptr;
  int (*gil_ensure)() = nullptr;
  void (*gil_release)(int) = nullptr;
  void* (*this_thread_state)() = nullptr;
  void* (*current_frame)() = nullptr;    // borrowed
  void* (*frame_back)(void*) = nullptr;  // new reference
  void* (*frame_code)(void*) = nullptr;  // new reference
  int (*frame_lasti)(void*) = nullptr;
  void (*decref)(void*) = nullptr;
  bool complete = true;

  PythonApi() {
    load(&is_initialized, "Py_IsInitialized");
    load(&gil_ensure, "PyGILState_Ensure");
    load(&gil_release, "PyGILState_Release");
    load(&this_thread_state, "PyGILState_GetThisThreadState");
    load(&current_frame, "PyEval_GetFrame");
    load(&frame_back, "PyFrame_GetBack");
    load(&frame_code, "PyFrame_GetCode");
    load(&frame_lasti, "PyFrame_GetLasti");
    load(&decref, "Py_DecRef");
  }

 private:
  template <class Function>
  void load(Function* function, const char* name) {
    *function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
    if (*function == nullptr) complete = false;
  }
};

const PythonApi& python() {
  static const PythonApi api;
  return api;
}

}  // namespace

CodeTable::~CodeTable() {
  const PythonApi& api = python();
  // After finalisation the objects are gone with the interpreter.
  if (pointers_.empty() || !api.complete || !api.is_initialized()) return;
  int state = api.gil_ensure();
  for (void* code : pointers_) api.decref(code);
  api.gil_release(state);
}

const void* CodeTable::pointer(int32_t code) const {
  std::lock_guard lock(mutex_);
  return code >= 0 && static_cast<size_t>(code) < pointers_.size() ? pointers_[code] : nullptr;
}

size_t CodeTable::size() const {
  std::lock_guard lock(mutex_);
  return pointers_.size();
}

int32_t CodeTable::adopt(void* code) {
  int32_t id;
  {
    std::lock_guard lock(mutex_);
    auto [it, is_new] = ids_.try_emplace(code, static_cast<int32_t>(pointers_.size()));
    if (is_new) {
      pointers_.push_back(code);
      return it->second;
    }
    id = it->second;
  }
  python().decref(code);
  return id;
}

std::shared_ptr<CodeTable> shared_code_table() {
  static std::mutex mutex;
  static std::weak_ptr<CodeTable> shared;
  std::lock_guard lock(mutex);
  std::shared_ptr<CodeTable> table = shared.lock();
  if (!table) shared = table = std::make_shared<CodeTable>();
  return table;
}

bool python_frames_available() { return python().complete && python().is_initialized(); }

bool gather_python_frames(CodeTable* codes, std::vector<FrameSite>* frames) {
  const PythonApi& api = python();
  if (!python_frames_available() || api.this_thread_state() == nullptr) return false;
  int state = api.gil_ensure();
  void* frame = api.current_frame();
  bool owned = false;
  for (int depth = 0; frame != nullptr && depth < kMaxFrames; ++depth) {
    frames->push_back({codes->adopt(api.frame_code(frame)), api.frame_lasti(frame)});
    void* back = api.frame_back(frame);
    if (owned) api.decref(frame);
    frame = back;
    owned = true;
  }
  if (frame != nullptr && owned) api.decref(frame);
  api.gil_release(state);
  return true;
}

}  // namespace opfuse::torch_bridge
