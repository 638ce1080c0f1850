#pragma once
// Text of the edit at one site: how a maintainer of that module would write the call, and the same
// call as it runs here, where no line may move. Internal to rewrite/.

#include <string>
#include <string_view>
#include <vector>

#include "opfuse/base/result.h"
#include "opfuse/match/match.h"
#include "opfuse/rewrite/facts.h"
#include "opfuse/rewrite/plan.h"

namespace opfuse::rewrite {

// "torch.nn.functional.silu" as this module can say it: "F.silu" where F is torch.nn.functional.
// When no global of the module leads there, `import_line` is what the diff must add.
struct Spelling {
  std::string callee, import_line;
};
Spelling spell(std::string_view python_target, const SiteFacts& facts);

// A name that neither the module's globals nor its text contain: "_opfuse_silu". Not
// "__opfuse_silu": inside a class such a name is mangled.
std::string free_global_name(std::string_view rule, const SiteFacts& facts);

struct CallTexts {
  std::string source, memory;
};
// The call with `arguments`; `memory` has as many lines as `old_text`.
CallTexts call_texts(std::string_view source_callee, std::string_view memory_callee,
                     const std::vector<std::string>& arguments, std::string_view old_text);

// The edit that removes the statements before the span: their whole lines in the diff, blank lines
// in memory. An error says why they cannot be removed.
Result<SourceEdit> removal_edit(const SiteFacts& facts);

// The edit that adds `line` after the module's imports; nothing in memory.
Result<SourceEdit> import_edit(const SiteFacts& facts, std::string_view line);

}  // namespace opfuse::rewrite
