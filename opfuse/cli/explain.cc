// explain: which rule, which operators, which near miss, and why.

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "opfuse/cli/verb.h"
#include "opfuse/graph/schema.h"
#include "opfuse/match/rule.h"
#include "opfuse/match/words.h"
#include "opfuse/report/report.h"

namespace opfuse::cli {
namespace {

std::string base_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

// FILE:LINE names a place when FILE is the end of its path.
bool names_place(const std::string& what, const std::string& file, int line) {
  const size_t colon = what.rfind(':');
  if (colon == std::string::npos || line < 0) return false;
  const std::string wanted = what.substr(0, colon);
  if (what.substr(colon + 1) != std::to_string(line)) return false;
  return file == wanted || (file.size() > wanted.size() && file.ends_with("/" + wanted));
}

class Explain : public Verb {
 public:
  std::string name() const override { return "explain"; }
  std::string summary() const override {
    return "why a rule, a site or a line did or did not match";
  }
  std::string usage() const override {
    return "explain RULE|SITE|FILE:LINE [--report REPORT] [--rules FILE]";
  }
  std::string description() const override {
    return "RULE prints the rule and what became of it in the last report; SITE (a number) or\n"
           "FILE:LINE prints what stands there: the operators, the verdict, and for a place that "
           "was\n"
           "not replaced the reason; FILE:LINE also a chain there that no rule knows.\n"
           "\n"
           "  opfuse explain silu\n"
           "  opfuse explain model.py:112";
  }
  std::vector<Flag> flags() override {
    return {{"--report", "REPORT", "report directory or report.json (default opfuse-report/latest)",
             &report_},
            {"--rules", "FILE", "more rules (docs/rulebook.md)", &rules_}};
  }

  int run(const std::vector<std::string>& words) override {
    if (words.size() != 1)
      return usage_error(
          "explain: expected one RULE, SITE or FILE:LINE, as in `opfuse explain silu`");
    const std::string& what = words[0];
    Result<match::Rulebook> rulebook = match::load_rulebook(rules_, graph::SchemaTable::builtin());
    if (!rulebook.ok()) return usage_error("explain: " + rulebook.error().message);
    const match::Rule* rule = rulebook->find(what);
    if (rule)
      for (const std::string& line : match::describe_rule(*rule)) std::printf("%s\n", line.c_str());
    Result<report::Report> report = report::read_report(report_);
    if (!report.ok()) {
      if (rule) return 0;
      say("explain: '" + what + "' is no rule, and there is no report: " + report.error().message);
      return 2;
    }
    const int printed = print_places(*report, what, rule != nullptr);
    if (printed == 0 && rule) std::printf("In the last report nothing came near this rule.\n");
    if (printed > 0 || rule) return 0;
    say("explain: the report knows no rule, site or place '" + what + "'; it has " +
        places(*report));
    return 2;
  }

 private:
  static int print_places(const report::Report& report, const std::string& what, bool is_rule) {
    int printed = 0;
    for (const auto& site : report.sites) {
      if (!(is_rule && site.rule == what) && what != std::to_string(site.id) &&
          !stands_at(site, what))
        continue;
      print_site(site);
      ++printed;
    }
    for (const auto& miss : report.near_misses) {
      if (!(is_rule && miss.rule == what) && !names_place(what, miss.file, miss.line)) continue;
      print_miss(miss);
      ++printed;
    }
    for (const auto& candidate : report.candidates) {
      if (!names_place(what, candidate.file, candidate.line)) continue;
      std::printf("no rule knows: %s\n", report::candidate_sentence(candidate).c_str());
      ++printed;
    }
    return printed;
  }

  // The edit, the chain or one of its operators.
  static bool stands_at(const report::Site& site, const std::string& what) {
    return names_place(what, site.file, site.line) ||
           names_place(what, site.chain_file, site.chain_line) ||
           std::any_of(site.operators.begin(), site.operators.end(),
                       [&](const auto& op) { return names_place(what, site.chain_file, op.line); });
  }

  static void print_site(const report::Site& site) {
    std::printf("site %d: %s at %s:%d, %d calls: %s becomes %s\n", site.id, site.rule.c_str(),
                base_name(site.file).c_str(), site.line, site.calls, site.now.c_str(),
                site.becomes.c_str());
    for (const auto& op : site.operators)
      std::printf("  %-24s %s:%d:%d\n", op.op.c_str(), base_name(site.chain_file).c_str(), op.line,
                  op.column);
    if (site.refusal)
      std::printf(
          "  not replaced%s: %s\n",
          site.refusal->row > 0
              ? (" (row " + std::to_string(site.refusal->row) + " of docs/legality.md)").c_str()
              : "",
          site.refusal->reason.c_str());
    else if (site.kept)
      std::printf("  %s\n", *site.kept ? "proved the same function, measured faster, kept"
                                       : "proved the same function, not kept");
  }

  static void print_miss(const report::NearMiss& miss) {
    std::printf(
        "near miss of %s at %s:%d, %d calls%s: %s\n", miss.rule.c_str(),
        base_name(miss.file).c_str(), miss.line, miss.calls,
        miss.row > 0 ? (" (row " + std::to_string(miss.row) + " of docs/legality.md)").c_str() : "",
        miss.reason.c_str());
    for (const auto& op : miss.operators) std::printf("  %s\n", op.c_str());
  }

  static std::string places(const report::Report& report) {
    std::string text;
    for (const auto& site : report.sites)
      text += (text.empty() ? "" : ", ") + base_name(site.file) + ":" + std::to_string(site.line);
    for (const auto& miss : report.near_misses)
      text += (text.empty() ? "" : ", ") + base_name(miss.file) + ":" + std::to_string(miss.line);
    return text.empty() ? "no site and no near miss" : text;
  }

  std::string report_ = "opfuse-report/latest";
  std::vector<std::string> rules_;
};

}  // namespace

std::unique_ptr<Verb> make_explain() { return std::make_unique<Explain>(); }

}  // namespace opfuse::cli
