// compare: two reports side by side.

#include <cstdio>

#include "opfuse/cli/finish.h"
#include "opfuse/cli/verb.h"
#include "opfuse/report/report.h"

namespace opfuse::cli {
namespace {

class Compare : public Verb {
 public:
  std::string name() const override { return "compare"; }
  std::string summary() const override { return "show two reports side by side"; }
  std::string usage() const override { return "compare BEFORE AFTER"; }
  std::string description() const override {
    return "BEFORE and AFTER are report directories or report.json files of two runs: outcome, "
           "sites,\n"
           "TIME, images/s, ratio with interval, machine and versions side by side, and what "
           "differs\n"
           "in the conditions, so that unlike runs are not taken for a change.\n"
           "\n"
           "  opfuse compare opfuse-report/main-20260301-1412 opfuse-report/latest";
  }
  int run(const std::vector<std::string>& words) override {
    if (words.size() != 2)
      return usage_error("compare: expected BEFORE and AFTER, found " +
                         std::to_string(words.size()) + " arguments");
    Result<report::Report> before = report::read_report(words[0]);
    if (!before.ok()) return damaged(before.error());
    Result<report::Report> after = report::read_report(words[1]);
    if (!after.ok()) return damaged(after.error());
    report::TerminalOptions terminal;
    terminal.color = use_color("auto");
    std::fputs(report::compare_text(*before, *after, terminal).c_str(), stdout);
    return 0;
  }

 private:
  static int damaged(const Error& error) {
    say("compare: " + error.message);
    return report::kExitDamagedInput;
  }
};

}  // namespace

std::unique_ptr<Verb> make_compare() { return std::make_unique<Compare>(); }

}  // namespace opfuse::cli
