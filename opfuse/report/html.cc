#include "opfuse/report/html.h"

#include "opfuse/base/check.h"
#include "opfuse/base/embedded.h"
#include "opfuse/report/pack.h"

namespace opfuse::report {
namespace {

std::string escaped(std::string_view text) {
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

std::string_view web_file(std::string_view name) {
  for (const EmbeddedFile& file : embedded_web())
    if (name == file.name) return file.text;
  OPFUSE_CHECK(false, "no embedded file " + std::string(name));
  return {};
}

std::string timeline_json(const Report& report, const StepRecords& records) {
  TimelinePacker packer;
  if (records.before)
    packer.add(*records.before, mark_chains(*records.before, report, Side::kBefore),
               records.after ? "before" : "recorded");
  if (records.after)
    packer.add(*records.after, mark_chains(*records.after, report, Side::kAfter), "after");
  return packer.take().dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string value_of(std::string_view name, const Report& report, const StepRecords& records) {
  if (name == "title") return escaped(verdict_sentence(report));
  if (name == "text") return escaped(terminal_text(report));
  if (name == "report") return script_safe(report_to_json(report));
  if (name == "timeline") return script_safe(timeline_json(report, records));
  return std::string(web_file(name));
}

}  // namespace

// page.html holds {{name}} for a value of the report or for another file of web/.
std::string render_html(const Report& report, const StepRecords& records) {
  std::string html;
  std::string_view page = web_file("page.html");
  while (true) {
    const size_t begin = page.find("{{");
    const size_t end = begin == page.npos ? page.npos : page.find("}}", begin);
    if (end == page.npos) break;
    html += page.substr(0, begin);
    html += value_of(page.substr(begin + 2, end - begin - 2), report, records);
    page.remove_prefix(end + 2);
  }
  return html + std::string(page);
}

}  // namespace opfuse::report
