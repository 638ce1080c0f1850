#pragma once
// Pages of report/web: the template's {{name}} filled in. Internal to report/.

#include <functional>
#include <string>
#include <string_view>

namespace opfuse::report {

std::string html_escaped(std::string_view text);
std::string script_safe(std::string_view json);  // no text in it can end a script element

// {{name}} is a value of `value_of`, which answers false for names it does not know, or else
// another file of web/.
std::string fill_page(std::string_view page_name,
                      const std::function<bool(std::string_view, std::string*)>& value_of);

}  // namespace opfuse::report
