#pragma once
// Versions of packages and ranges of them, as rules and packages write them: "2.13.0+cpu",
// ">=2.1, <3". Compared by their numbers alone, from the left; a missing number is 0.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace opfuse::match {

struct VersionBound {
  std::string sign;  // ">=", ">", "<=", "<", "=="
  std::vector<int> version;
};

// Nothing when the text is no list of such bounds.
std::optional<std::vector<VersionBound>> parse_versions(std::string_view range);

// False too where `version` does not begin with a number. A suffix ("+cpu", ".post2", "rc1") is
// passed over. An empty range holds everything.
bool version_in(std::string_view version, std::string_view range);

}  // namespace opfuse::match
