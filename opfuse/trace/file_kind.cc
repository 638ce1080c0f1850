#include "opfuse/trace/file_kind.h"

#include <utility>

namespace opfuse::trace {

// Names: libkineto's ActivityType.h, and what profilers before it wrote.
FileKind kind_of_category(std::string_view category) {
  static constexpr std::pair<std::string_view, FileKind> kKinds[] = {
      {"cpu_op", FileKind::kOperator},
      {"Operator", FileKind::kOperator},
      {"python_function", FileKind::kPython},
      {"user_annotation", FileKind::kAnnotation},
      {"kernel", FileKind::kKernel},
      {"Kernel", FileKind::kKernel},
      {"gpu_memcpy", FileKind::kMemcpy},
      {"Memcpy", FileKind::kMemcpy},
      {"gpu_memset", FileKind::kMemset},
      {"Memset", FileKind::kMemset},
      {"gpu_user_annotation", FileKind::kDeviceAnnotation},
      {"Runtime", FileKind::kRuntime},
      {"runtime", FileKind::kRuntime},
      {"enqueue", FileKind::kQueue},
      {"dequeue", FileKind::kQueue},
      {"Trace", FileKind::kSpan},
  };
  for (const auto& [name, kind] : kKinds)
    if (category == name) return kind;
  if (category.ends_with("_runtime") || category.ends_with("_driver")) return FileKind::kRuntime;
  return FileKind::kOther;
}

FileKind kind_of_process(std::string_view process) {
  if (process == "CPU functions" || process == "Python") return FileKind::kOperator;
  if (process == "CUDA functions" || process.starts_with("Ascend Hardware"))
    return FileKind::kKernel;
  if (process == "CANN" || process.starts_with("AscendCL")) return FileKind::kHost;
  return FileKind::kOther;
}

}  // namespace opfuse::trace
