// The stream of the stand-in device: tasks run one after the other on a thread of their own.
#pragma once

#include <functional>
#include <string>

namespace standin {

/// Runs `task` after those before it; returns at once. `name` is the kernel's, for `set_duration`.
void enqueue(const std::string& name, std::function<void()> task);

/// Waits until all tasks have run. Throws the first exception that one of them threw since the last
/// call.
void synchronize();

/// Kernels of this name take at least so many seconds of device time.
void set_duration(const std::string& name, double seconds);

/// Launching a kernel of this name takes the program at least so many seconds.
void set_launch_time(const std::string& name, double seconds);

/// How often `synchronize` was called, by whomever.
long synchronizations();

/// How many kernels of this name were queued.
long launches(const std::string& name);

}  // namespace standin
