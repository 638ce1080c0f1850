#include <glob.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstdlib>
#include <filesystem>

#include "opfuse/cli/launch.h"

namespace opfuse::cli {
namespace fs = std::filesystem;
namespace {

constexpr const char* kShim = "opfuse/_shim/sitecustomize.py";
constexpr const char* kLibrary = "libopfuse_torch.so";

fs::path own_directory() {
  std::array<char, PATH_MAX> buffer{};
  const ssize_t n = readlink("/proc/self/exe", buffer.data(), buffer.size() - 1);
  return n > 0 ? fs::path(std::string(buffer.data(), static_cast<size_t>(n))).parent_path()
               : fs::current_path();
}

std::string first_match(const std::string& pattern) {
  glob_t found{};
  std::string path;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0 && found.gl_pathc > 0)
    path = found.gl_pathv[0];
  globfree(&found);
  return path;
}

// A source tree (…/python beside …/build/x/bin/opfuse) or an environment (bin/, lib/python3.x).
std::string python_directory(const fs::path& bin) {
  if (const char* given = std::getenv("OPFUSE_PYTHON_DIR")) return given;
  std::error_code ignored;
  fs::path up = bin;
  for (int level = 0; level < 5 && up.has_parent_path(); ++level, up = up.parent_path())
    if (fs::exists(up / "python" / kShim, ignored)) return (up / "python").string();
  const std::string shim = first_match(
      (bin.parent_path() / "lib" / "python3*" / "site-packages").string() + "/" + kShim);
  return shim.empty() ? "" : shim.substr(0, shim.size() - std::string(kShim).size() - 1);
}

std::string library_path(const fs::path& bin, const std::string& python_dir) {
  if (const char* given = std::getenv("OPFUSE_LIBRARY")) return given;
  std::error_code ignored;
  for (const fs::path& folder :
       {fs::path(python_dir) / "opfuse", bin, bin.parent_path() / "lib", bin.parent_path()})
    if (fs::exists(folder / kLibrary, ignored)) return (folder / kLibrary).string();
  return "";
}

// What a variable of the environment says must be there.
Status check_given(const char* variable, const std::string& inside, const char* what) {
  const char* given = std::getenv(variable);
  std::error_code ignored;
  if (!given) return ok_status();
  const fs::path place = inside.empty() ? fs::path(given) : fs::path(given) / inside;
  if (fs::exists(place, ignored)) return ok_status();
  return Error{"installation: expected " + std::string(what) + " in " + variable + "=" + given +
               ", found no " + (inside.empty() ? "such file" : inside + " there") +
               "; correct the variable or leave it out"};
}

}  // namespace

Result<Installation> find_installation() {
  OPFUSE_TRY_STATUS(check_given("OPFUSE_PYTHON_DIR", kShim, "opfuse's Python part"));
  OPFUSE_TRY_STATUS(check_given("OPFUSE_LIBRARY", "", "libopfuse_torch.so"));
  const fs::path bin = own_directory();
  Installation installation;
  installation.python_dir = python_directory(bin);
  if (installation.python_dir.empty())
    return Error{"installation: expected opfuse's Python part near " + bin.string() +
                 " or in OPFUSE_PYTHON_DIR, found none; `make build` or reinstall the package"};
  installation.library = library_path(bin, installation.python_dir);
  if (installation.library.empty())
    return Error{
        "installation: expected libopfuse_torch.so near " + bin.string() +
        " or in OPFUSE_LIBRARY, found none; `make build` builds it against the installed torch"};
  return installation;
}

Result<int64_t> parse_bytes(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const std::string unit = end ? end : "";
  double scale = 1;
  if (unit == "K" || unit == "k")
    scale = 1024.0;
  else if (unit == "M")
    scale = 1024.0 * 1024;
  else if (unit == "G")
    scale = 1024.0 * 1024 * 1024;
  else if (!unit.empty())
    scale = 0;
  if (end == text.c_str() || scale == 0 || number < 0)
    return Error{"--verify-memory: expected a size such as 500M or 2G, found '" + text + "'"};
  return static_cast<int64_t>(number * scale);
}

}  // namespace opfuse::cli
