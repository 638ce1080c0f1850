#include "opfuse/report/page.h"

#include "opfuse/base/check.h"
#include "opfuse/base/embedded.h"

namespace opfuse::report {
namespace {

std::string_view web_file(std::string_view name) {
  for (const EmbeddedFile& file : embedded_web())
    if (name == file.name) return file.text;
  OPFUSE_CHECK(false, "no embedded file " + std::string(name));
  return {};
}

}  // namespace

std::string html_escaped(std::string_view text) {
  std::string html;
  for (char c : text) {
    switch (c) {
      case '&':
        html += "&amp;";
        break;
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '"':
        html += "&quot;";
        break;
      default:
        html += c;
    }
  }
  return html;
}

// In JSON a '<' stands inside strings only; escaped, no text can end the script element.
std::string script_safe(std::string_view json) {
  std::string safe;
  safe.reserve(json.size());
  for (char c : json) {
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return safe;
}

std::string fill_page(std::string_view page_name,
                      const std::function<bool(std::string_view, std::string*)>& value_of) {
  std::string html;
  std::string_view page = web_file(page_name);
  while (true) {
    const size_t begin = page.find("{{");
    const size_t end = begin == page.npos ? page.npos : page.find("}}", begin);
    if (end == page.npos) break;
    html += page.substr(0, begin);
    const std::string_view name = page.substr(begin + 2, end - begin - 2);
    std::string value;
    if (!value_of(name, &value)) value = web_file(name);
    html += value;
    page.remove_prefix(end + 2);
  }
  return html + std::string(page);
}

}  // namespace opfuse::report
