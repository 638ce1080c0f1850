#include "opfuse/rewrite/compose.h"

#include <fmt/format.h>

#include <algorithm>

namespace opfuse::rewrite {
namespace {

// Line ends as Python counts them: "\n", "\r\n" and a lone "\r".
int64_t count_lines(std::string_view text) {
  int64_t count = 0;
  for (size_t i = 0; i < text.size(); i++)
    count += text[i] == '\n' || (text[i] == '\r' && (i + 1 == text.size() || text[i + 1] != '\n'));
  return count;
}

bool is_line_end(char c) { return c == '\n' || c == '\r'; }

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\f") == std::string_view::npos;
}

// Offset after the end of the line that `offset` lies on.
int64_t next_line(std::string_view text, int64_t offset) {
  const int64_t size = static_cast<int64_t>(text.size());
  while (offset < size && !is_line_end(text[offset])) offset++;
  if (offset < size && text.substr(offset, 2) == "\r\n") return offset + 2;
  return std::min(offset + 1, size);
}

std::string joined(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : ", ") + part;
  return out;
}

std::string newline_of(std::string_view text) {
  const size_t end = text.find_first_of("\r\n");
  if (end == text.npos || text[end] == '\n') return "\n";
  return end + 1 < text.size() && text[end + 1] == '\n' ? "\r\n" : "\r";
}

}  // namespace

Spelling spell(std::string_view python_target, const SiteFacts& facts) {
  std::string callee;
  size_t longest = 0;
  for (const std::string& alias : facts.module_aliases) {
    const size_t equal = alias.find('=');
    if (equal == alias.npos) continue;
    const std::string name = alias.substr(0, equal), object = alias.substr(equal + 1);
    const bool leads = python_target == object || python_target.starts_with(object + ".");
    if (!leads || object.size() < longest) continue;
    const std::string candidate = name + std::string(python_target.substr(object.size()));
    // Of two names for one module the shorter, so that the answer does not depend on their order.
    const bool better = object.size() > longest || candidate.size() < callee.size() ||
                        (candidate.size() == callee.size() && candidate < callee);
    if (better) callee = candidate, longest = object.size();
  }
  if (!callee.empty()) return {callee, ""};
  const std::string_view root = python_target.substr(0, python_target.find('.'));
  if (root == "opfuse") {
    const std::string module(python_target.substr(0, python_target.rfind('.')));
    const auto& globals = facts.module_globals;
    if (std::find(globals.begin(), globals.end(), "opfuse") == globals.end())
      return {std::string(python_target), fmt::format("import {}", module)};
    const std::string name = free_global_name("functional", facts);
    return {name + std::string(python_target.substr(module.size())),
            fmt::format("import {} as {}", module, name)};
  }
  if (root != "torch") return {std::string(python_target), fmt::format("import {}", root)};
  // A bare "import torch" might meet another global of that name.
  const std::string name = free_global_name("torch", facts);
  const auto& globals = facts.module_globals;
  if (std::find(globals.begin(), globals.end(), "torch") == globals.end())
    return {std::string(python_target), "import torch"};
  return {name + std::string(python_target.substr(5)), fmt::format("import torch as {}", name)};
}

std::string free_global_name(std::string_view rule, const SiteFacts& facts) {
  for (int i = 1;; i++) {
    const std::string name =
        i == 1 ? fmt::format("_opfuse_{}", rule) : fmt::format("_opfuse_{}_{}", rule, i);
    const auto& globals = facts.module_globals;
    if (facts.text.find(name) == facts.text.npos &&
        std::find(globals.begin(), globals.end(), name) == globals.end())
      return name;
  }
}

CallTexts call_texts(std::string_view source_callee, std::string_view memory_callee,
                     const std::vector<std::string>& arguments, std::string_view old_text) {
  const std::string list = joined(arguments);
  // Inside the parentheses a line end means nothing, wherever the call stands.
  const std::string padding(std::max<int64_t>(0, count_lines(old_text) - count_lines(list)), '\n');
  return {fmt::format("{}({})", source_callee, list),
          fmt::format("{}({}{})", memory_callee, list, padding)};
}

Result<SourceEdit> removal_edit(const SiteFacts& facts) {
  const std::string_view text = facts.text;
  const auto [first, last] = facts.first_statement;
  int64_t begin = first;
  while (begin > 0 && !is_line_end(text[begin - 1])) begin--;
  const int64_t end = next_line(text, last);
  const std::string_view before = text.substr(begin, first - begin);
  std::string_view after = text.substr(last, end - last);
  while (!after.empty() && is_line_end(after.back())) after.remove_suffix(1);
  const size_t comment = after.find('#');
  if (!is_blank(before) || !is_blank(after.substr(0, comment)) || end > facts.span.begin)
    return Error{"the statement before it shares its line with others"};
  SourceEdit edit;
  edit.file = facts.file;
  edit.sha256 = facts.sha256;
  edit.span = {begin, end};
  edit.old_text = text.substr(begin, end - begin);
  edit.memory_text = std::string(count_lines(edit.old_text), '\n');
  return edit;
}

Result<SourceEdit> import_edit(const SiteFacts& facts, std::string_view line) {
  if (facts.import_offset < 0)
    return Error{fmt::format("the module has no place for \"{}\"", line)};
  const std::string_view head = std::string_view(facts.text).substr(0, facts.import_offset);
  const std::string newline = newline_of(facts.text);
  const bool at_line_start = head.empty() || is_line_end(head.back()) || head == "\xEF\xBB\xBF";
  SourceEdit edit;
  edit.file = facts.file;
  edit.sha256 = facts.sha256;
  edit.span = {facts.import_offset, facts.import_offset};
  edit.source_text =
      at_line_start ? fmt::format("{}{}", line, newline) : fmt::format("{}{}", newline, line);
  return edit;
}

}  // namespace opfuse::rewrite
