#include "queue.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace standin {
namespace {

struct Task {
  std::string name;
  std::function<void()> run;
};

class Queue {
 public:
  void put(Task task) {
    const auto end = std::chrono::steady_clock::now() + seconds_of(launch_times_, task.name);
    drop_done();
    add(std::move(task));
    std::this_thread::sleep_until(end);
  }

  void wait() {
    {
      std::unique_lock lock(mutex_);
      ++synchronizations_;
      changed_.wait(lock, [this] { return tasks_.empty() && !busy_; });
    }
    drop_done();
    std::lock_guard lock(mutex_);
    if (std::exception_ptr failure = std::exchange(failure_, nullptr)) {
      std::rethrow_exception(failure);
    }
  }

  void set_duration(const std::string& name, double seconds) {
    std::lock_guard lock(mutex_);
    durations_[name] = seconds;
  }

  void set_launch_time(const std::string& name, double seconds) {
    std::lock_guard lock(mutex_);
    launch_times_[name] = seconds;
  }

  long synchronizations() {
    std::lock_guard lock(mutex_);
    return synchronizations_;
  }

  long launches(const std::string& name) {
    std::lock_guard lock(mutex_);
    const auto found = launches_.find(name);
    return found == launches_.end() ? 0 : found->second;
  }

 private:
  using Seconds = std::chrono::duration<double>;
  using Times = std::map<std::string, double>;

  Seconds seconds_of(const Times& times, const std::string& name) {
    std::lock_guard lock(mutex_);
    const auto found = times.find(name);
    return Seconds(found == times.end() ? 0 : found->second);
  }

  void add(Task task) {
    std::lock_guard lock(mutex_);
    if (!started_) {
      std::thread([this] { work(); }).detach();
      started_ = true;
    }
    ++launches_[task.name];
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !tasks_.empty(); });
      Task task = std::move(tasks_.front());
      tasks_.pop_front();
      busy_ = true;
      lock.unlock();
      run(task, seconds_of(durations_, task.name));
      lock.lock();
      busy_ = false;
      done_.push_back(std::move(task));
      changed_.notify_all();
    }
  }

  void run(Task& task, Seconds at_least) {
    const auto end = std::chrono::steady_clock::now() + at_least;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::DisableRecordFunctionGuard unseen;  // a device's kernels are not the host's operators
    try {
      task.run();
    } catch (...) {
      std::lock_guard lock(mutex_);
      if (!failure_) {
        failure_ = std::current_exception();
      }
    }
    std::this_thread::sleep_until(end);
  }

  // Tensors end on the threads of the program, as on a device: one with a Python object wants the
  // GIL.
  void drop_done() {
    std::deque<Task> done;
    {
      std::lock_guard lock(mutex_);
      done.swap(done_);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::deque<Task> done_;
  Times durations_;
  Times launch_times_;
  std::map<std::string, long> launches_;
  std::exception_ptr failure_;
  long synchronizations_ = 0;
  bool started_ = false;
  bool busy_ = false;
};

Queue& queue() {
  static Queue* const queue = new Queue;  // its thread may outlive the destructors of statics
  return *queue;
}

}  // namespace

void enqueue(const std::string& name, std::function<void()> task) {
  queue().put({name, std::move(task)});
}
void synchronize() { queue().wait(); }
void set_duration(const std::string& name, double seconds) { queue().set_duration(name, seconds); }
void set_launch_time(const std::string& name, double seconds) {
  queue().set_launch_time(name, seconds);
}
long synchronizations() { return queue().synchronizations(); }
long launches(const std::string& name) { return queue().launches(name); }

}  // namespace standin

extern "C" {

/// 0, or -1 when a kernel failed: its message is then in standin_error().
int standin_synchronize();
const char* standin_error();
void standin_set_duration(const char* name, double seconds) {
  standin::set_duration(name, seconds);
}
void standin_set_launch_time(const char* name, double seconds) {
  standin::set_launch_time(name, seconds);
}
long standin_synchronizations() { return standin::synchronizations(); }
long standin_launches(const char* name) { return standin::launches(name); }

static thread_local std::string error;

int standin_synchronize() {
  try {
    standin::synchronize();
    return 0;
  } catch (const std::exception& failure) {
    error = failure.what();
    return -1;
  }
}
const char* standin_error() { return error.c_str(); }
}
