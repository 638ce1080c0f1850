#pragma once
// Test data: run directories as the processes leave them, and records of a step shaped like
// EfficientNet-B0's. The numbers are made up. Defined in sample_run_test.cc.

#include <string>

#include "opfuse/report/fields.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::report {

// A folder under the test's temporary directory that is removed with the object.
class SampleRun {
 public:
  SampleRun();
  ~SampleRun();
  SampleRun(const SampleRun&) = delete;
  SampleRun& operator=(const SampleRun&) = delete;

  const std::string& path() const { return path_; }
  std::string source_path() const { return path_ + "/efficientnet_pytorch/utils.py"; }

  Json config() const;
  // A process in which 49 calls of Swish were replaced; `outcome` and result are of a tuned run.
  Json tuned_process() const;
  // The same run with another end; without the fields that such a run does not have.
  Json process(const std::string& outcome) const;

  void write_config(const Json& config) const;
  void write_process(int pid, const Json& process) const;
  void write(const std::string& name, const std::string& text) const;

 private:
  std::string path_;
};

// `replaced`: with F.silu in place of SwishImplementation. `extra` operators are added to reach a
// size; `file` is what the frames name.
trace::EventTable sample_step(const std::string& file, bool replaced, int extra = 0);

}  // namespace opfuse::report
