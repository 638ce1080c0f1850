#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "opfuse/rewrite/plan.h"

namespace opfuse::rewrite {
namespace {

// Two sites may need the same edit (one import line, one shared span): it is made once.
std::vector<SourceEdit> edits_of(const Plan& plan, std::string_view file) {
  std::vector<SourceEdit> edits;
  const auto key = [](const SourceEdit& e) {
    return std::tie(e.span.begin, e.span.end, e.source_text, e.memory_text, e.old_text);
  };
  for (const Replacement& replacement : plan.replacements)
    for (const SourceEdit& edit : replacement.edits)
      if (edit.file == file) edits.push_back(edit);
  std::stable_sort(edits.begin(), edits.end(),
                   [&](const SourceEdit& a, const SourceEdit& b) { return key(a) < key(b); });
  edits.erase(
      std::unique(edits.begin(), edits.end(),
                  [&](const SourceEdit& a, const SourceEdit& b) { return key(a) == key(b); }),
      edits.end());
  return edits;
}

std::string quoted_start(std::string_view text) {
  return fmt::format("\"{}\"{}", text.substr(0, 60), text.size() > 60 ? "…" : "");
}

}  // namespace

Result<std::string> apply_edits(std::string_view text, const Plan& plan, std::string_view file,
                                bool memory) {
  std::string out;
  size_t at = 0;
  for (const SourceEdit& edit : edits_of(plan, file)) {
    const auto [begin, end] = edit.span;
    const std::string where = fmt::format("{}: bytes {}-{}", file, begin, end);
    if (begin < 0 || end < begin || end > static_cast<int64_t>(text.size()))
      return Error{
          fmt::format("{}: expected a span inside the file, found {} bytes", where, text.size())};
    if (begin < static_cast<int64_t>(at))
      return Error{fmt::format("{}: expected edits that do not overlap, found one that ends at {}",
                               where, at)};
    const std::string_view old = text.substr(begin, end - begin);
    if (old != edit.old_text)
      return Error{fmt::format("{}: expected {}, found {}", where, quoted_start(edit.old_text),
                               quoted_start(old))};
    out.append(text.substr(at, begin - at));
    out.append(memory ? edit.memory_text : edit.source_text);
    at = end;
  }
  out.append(text.substr(at));
  return out;
}

}  // namespace opfuse::rewrite
