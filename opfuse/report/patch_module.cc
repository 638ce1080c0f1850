#include "opfuse/report/patch_module.h"

#include <algorithm>
#include <cstdlib>

#include "opfuse/report/fields.h"

namespace opfuse::report {
namespace {

// The file is compiled anew with the edit, under its own name, so that tracebacks stay right.
constexpr std::string_view kModule =
    R"py("""The edit that opfuse measured in %MODULE%, for a package that is not edited in place.

Import this before anything of that package. A file other than the measured one is refused.
"""

import hashlib
import importlib.machinery
import sys

MODULE = %MODULE_TEXT%
SHA256 = %SHA256%
# (number of the first line, lines before, lines after)
EDITS = %EDITS%


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname):
        return self.source_to_code(_edited(self.get_data(self.path), self.path), self.path)


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin:
            spec.loader = _Loader(name, spec.origin)
        return spec


def _edited(source, path):
    if SHA256 and hashlib.sha256(source).hexdigest() != SHA256:
        raise ImportError(f"{path}: is not the file that opfuse measured; run opfuse tune again")
    lines = source.decode().split("\n")
    for first, before, after in reversed(EDITS):
        if lines[first - 1 : first - 1 + len(before)] != before:
            raise ImportError(f"{path}:{first}: expected {before}")
        lines[first - 1 : first - 1 + len(before)] = after
    return "\n".join(lines).encode()


if MODULE in sys.modules:
    raise ImportError(f"import this module before {MODULE}")
sys.meta_path.insert(0, _Finder)
)py";

// Hunks of a unified diff as [[first line, [before], [after]], …].
Json edits_of(std::string_view diff) {
  Json edits = Json::array();
  while (!diff.empty()) {
    const size_t end = std::min(diff.find('\n'), diff.size());
    const std::string line(diff.substr(0, end));
    diff.remove_prefix(std::min(end + 1, diff.size()));
    if (line.starts_with("@@ -")) {
      edits.push_back({std::atoi(line.c_str() + 4), Json::array(), Json::array()});
    } else if (!edits.empty() && !line.empty()) {
      const std::string text = line.substr(1);
      if (line[0] == ' ' || line[0] == '-') edits.back()[1].push_back(text);
      if (line[0] == ' ' || line[0] == '+') edits.back()[2].push_back(text);
    }
  }
  return edits;
}

void replace_all(std::string* text, std::string_view name, const std::string& value) {
  for (size_t at = 0; (at = text->find(name, at)) != std::string::npos; at += value.size())
    text->replace(at, name.size(), value);
}

// JSON without escapes above ASCII control characters is also a Python literal.
std::string literal(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::vector<PatchModule> patch_modules(const std::vector<Diff>& diffs) {
  std::vector<PatchModule> modules;
  for (const Diff& diff : diffs) {
    if (diff.package.empty() || diff.module.empty() || diff.diff.empty()) continue;
    std::string name = diff.module;
    std::replace(name.begin(), name.end(), '.', '_');
    std::string text(kModule);
    replace_all(&text, "%MODULE%", diff.module);
    replace_all(&text, "%MODULE_TEXT%", literal(diff.module));
    replace_all(&text, "%SHA256%", literal(diff.before_sha256));
    replace_all(&text, "%EDITS%", literal(edits_of(diff.diff)));
    modules.push_back({"opfuse_patch_" + name + ".py", std::move(text)});
  }
  return modules;
}

}  // namespace opfuse::report
