// Text of opfuse_patch.py. It needs nothing of ours where it is imported.

#include <fmt/format.h>

#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "opfuse/rewrite/plan.h"

namespace opfuse::rewrite {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kHead =
    R"("""Written by opfuse: import this once, before the model runs, to use the fused operators.

    import opfuse_patch

It makes the measured edit in memory and leaves the installed files as they are. When an installed
file is not the one the edit was made for, the import fails and nothing is changed.
"""

import hashlib
import importlib
import importlib.metadata
import inspect

# One entry per file. Spans are byte offsets; the new text keeps the number of lines.
FILES = [
)";

constexpr std::string_view kBody = R"(]


def _resolve(dotted):
    parts = dotted.split(".")
    for n in range(len(parts) - 1, 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:n]))
        except ModuleNotFoundError:
            continue
        for part in parts[n:]:
            found = getattr(found, part)
        return found
    raise ImportError(f"opfuse_patch: expected {dotted}, found no such module")


def _function(module, qualname):
    found = module
    for part in qualname.split("."):
        found = inspect.getattr_static(found, part, None)
    found = getattr(found, "__func__", found)
    if not inspect.isfunction(found):
        raise ImportError(f"opfuse_patch: expected a function {qualname} in {module.__name__}")
    return found


def _codes(code, parts):
    for inner in code.co_consts:
        if inspect.iscode(inner) and inner.co_name == parts[0]:
            yield from [inner] if len(parts) == 1 else _codes(inner, parts[1:])


def _new_code(whole, function):
    found = [
        code
        for code in _codes(whole, function.__qualname__.split("."))
        if code.co_firstlineno == function.__code__.co_firstlineno
        and code.co_freevars == function.__code__.co_freevars
    ]
    if len(found) != 1:
        raise ImportError(f"opfuse_patch: expected one {function.__qualname__}, found {len(found)}")
    return found[0]


def _prepare(entry):
    if entry["version"]:
        version = importlib.metadata.version(entry["package"])
        if version != entry["version"]:
            raise ImportError(
                f"opfuse_patch: expected {entry['package']} {entry['version']}, found {version}"
            )
    module = importlib.import_module(entry["module"])
    with open(module.__file__, "rb") as file:
        text = file.read()
    found = hashlib.sha256(text).hexdigest()
    if found != entry["sha256"]:
        raise ImportError(
            f"opfuse_patch: expected {module.__file__} with sha256 {entry['sha256']}, found {found}"
        )
    for begin, end, new in sorted(entry["edits"], reverse=True):
        text = text[:begin] + new.encode() + text[end:]
    whole = compile(text, module.__file__, "exec", dont_inherit=True)
    functions = [_function(module, qualname) for qualname in entry["functions"]]
    names = {name: _resolve(target) for name, target in entry["globals"].items()}
    return module, names, [(function, _new_code(whole, function)) for function in functions]


def apply():
    """Checks every file first, then exchanges the code of all functions."""
    for module, names, functions in [_prepare(entry) for entry in FILES]:
        vars(module).update(names)
        for function, code in functions:
            function.__code__ = code


apply()
)";

// A JSON string of UTF-8 is a Python string too.
std::string python_string(std::string_view text) {
  return Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

struct PatchedFile {
  std::string package, version, module, sha256;
  std::set<std::tuple<int64_t, int64_t, std::string>> edits;
  std::set<std::string> functions;
  std::map<std::string, std::string> globals;
};

std::string entry_text(const PatchedFile& file) {
  std::string out = "    {\n";
  const auto field = [&](std::string_view name, std::string_view value) {
    out += fmt::format("        \"{}\": {},\n", name, value);
  };
  field("package", python_string(file.package));
  field("version", python_string(file.version));
  field("module", python_string(file.module));
  field("sha256", python_string(file.sha256));
  std::string edits, functions, globals;
  for (const auto& [begin, end, text] : file.edits)
    edits +=
        fmt::format("{}({}, {}, {})", edits.empty() ? "" : ", ", begin, end, python_string(text));
  for (const std::string& name : file.functions)
    functions += fmt::format("{}{}", functions.empty() ? "" : ", ", python_string(name));
  for (const auto& [name, target] : file.globals)
    globals += fmt::format("{}{}: {}", globals.empty() ? "" : ", ", python_string(name),
                           python_string(target));
  field("edits", "[" + edits + "]");
  field("functions", "[" + functions + "]");
  field("globals", "{" + globals + "}");
  return out + "    },\n";
}

}  // namespace

std::string patch_module(const Plan& plan) {
  std::map<std::string, PatchedFile> files;
  for (const Replacement& one : plan.replacements) {
    if (one.package.empty() || one.edits.empty()) continue;
    PatchedFile& file = files[one.file];
    file.package = one.package;
    file.version = one.package_version;
    file.module = one.module;
    file.sha256 = one.edits.front().sha256;
    for (const SourceEdit& edit : one.edits)
      if (edit.span.begin < edit.span.end)
        file.edits.emplace(edit.span.begin, edit.span.end, edit.memory_text);
    file.functions.insert(one.qualname);
    file.globals[one.global_name] = one.python_target;
  }
  if (files.empty()) return "";
  std::string out(kHead);
  for (const auto& [path, file] : files) out += entry_text(file);
  return out + std::string(kBody);
}

}  // namespace opfuse::rewrite
