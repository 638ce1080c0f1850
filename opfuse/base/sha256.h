#pragma once
// SHA-256 (FIPS 180-4) of a text as 64 hex digits: pins a source file to a plan.

#include <string>
#include <string_view>

namespace opfuse {

std::string sha256_hex(std::string_view bytes);

}  // namespace opfuse
