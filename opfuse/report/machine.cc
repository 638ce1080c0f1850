#include "opfuse/report/machine.h"

#include <sched.h>
#include <sys/utsname.h>

#include <fstream>
#include <iterator>
#include <string>

namespace opfuse::report {
namespace {

std::string text_of(const char* path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The value after "name : " on a line of its own; "" when there is none.
std::string_view value_of(std::string_view line, std::string_view name) {
  if (!line.starts_with(name)) return "";
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return "";
  // "cpu" must not match "cpu MHz".
  if (line.substr(name.size(), colon - name.size()).find_first_not_of(" \t") != line.npos)
    return "";
  const size_t begin = line.find_first_not_of(" \t", colon + 1);
  return begin == std::string_view::npos ? "" : line.substr(begin);
}

std::string isa_of(std::string_view flags) {
  const std::string padded = " " + std::string(flags) + " ";
  const auto has = [&](const char* flag) {
    return padded.find(" " + std::string(flag) + " ") != std::string::npos;
  };
  if (has("avx512_bf16")) return "avx512bf16";
  if (has("avx512f") && has("avx512bw") && has("avx512vl")) return "avx512";
  if (has("avx2") && has("fma")) return "avx2";
  if (has("asimd")) return "neon";
  return "generic";
}

int64_t memory_limit() {
  int64_t bytes = 0;
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key; meminfo >> key;) {
    int64_t kib = 0;
    if (key == "MemTotal:" && meminfo >> kib) bytes = kib * 1024;
  }
  int64_t limit = 0;
  std::ifstream cgroup("/sys/fs/cgroup/memory.max");
  if (cgroup >> limit && limit > 0 && (bytes == 0 || limit < bytes)) bytes = limit;
  return bytes;
}

}  // namespace

void read_cpuinfo(std::string_view text, Machine* machine) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!value_of(line, "processor").empty()) ++machine->cores_total;
    if (machine->cpu.empty()) machine->cpu = value_of(line, "model name");
    for (const char* name : {"flags", "Features"})
      if (const auto flags = value_of(line, name); !flags.empty() && machine->isa.empty())
        machine->isa = isa_of(flags);
  }
}

Machine this_machine() {
  Machine machine;
  read_cpuinfo(text_of("/proc/cpuinfo"), &machine);
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) machine.cores = CPU_COUNT(&allowed);
  machine.memory_bytes = memory_limit();
  utsname names{};
  if (uname(&names) == 0)
    machine.system = std::string(names.sysname) + " " + names.release + " " + names.machine;
  if (machine.cpu.empty() && *names.machine) machine.cpu = names.machine;
  return machine;
}

}  // namespace opfuse::report
