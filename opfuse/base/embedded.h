// Files of the source tree that the binaries carry, put in at build time (cmake/OpfuseEmbed.cmake).
// The text lives as long as the program; each span is sorted by name. A set may be empty.
#pragma once

#include <span>
#include <string_view>

namespace opfuse {

struct EmbeddedFile {
  const char* name;
  std::string_view text;
};

// rulebook/*.rule and opfuse/ops/*/*.rule, named by their path in the source tree.
std::span<const EmbeddedFile> embedded_rules();

// opfuse/ops/*/*.json, named by file name: what each fused operator is, its cases.
std::span<const EmbeddedFile> embedded_operators();

// opfuse/graph/schemas/*.schemas, named by file name.
std::span<const EmbeddedFile> embedded_schemas();

// opfuse/report/web/*, named by file name: page.html, timeline.js, style.css.
std::span<const EmbeddedFile> embedded_web();

}  // namespace opfuse
