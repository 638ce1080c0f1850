#pragma once
// Masks secrets in command lines, environments and free text before anything is written: values of
// names such as TOKEN or --api-key, user:password in URLs, and the well-known shapes of keys.

#include <string>
#include <string_view>
#include <vector>

namespace opfuse::report {

inline constexpr std::string_view kMask = "***";

std::vector<std::string> mask_command(const std::vector<std::string>& arguments);
// The value of an environment variable, masked when its name or its shape says so.
std::string mask_variable(std::string_view name, std::string_view value);
std::string mask_text(std::string_view text);

}  // namespace opfuse::report
