#include "opfuse/trace/event_table.h"

namespace opfuse::trace {

StringPool::StringPool() { intern(""); }

StringId StringPool::intern(std::string_view text) {
  auto [it, is_new] = ids_.try_emplace(std::string(text), static_cast<StringId>(texts_.size()));
  if (is_new) texts_.emplace_back(text);
  return it->second;
}

}  // namespace opfuse::trace
