// What the report says in words: the verdict in one sentence and the next steps, for each outcome.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "opfuse/report/format.h"

namespace opfuse::report {
namespace {

struct OutcomeRow {
  Outcome outcome;
  const char* name;
  int code;
};

constexpr std::array<OutcomeRow, 12> kOutcomes = {{
    {Outcome::kRunning, "running", 7},
    {Outcome::kTuned, "tuned", 0},
    {Outcome::kNothingFound, "nothing_found", 3},
    {Outcome::kNotFaster, "not_faster", 4},
    {Outcome::kRefused, "refused", 5},
    {Outcome::kUndecided, "undecided", 7},
    {Outcome::kFailed, "failed", 70},
    {Outcome::kRecorded, "recorded", 0},
    {Outcome::kPlanApplied, "plan_applied", 0},
    {Outcome::kDryRun, "dry_run", 0},
    {Outcome::kEndedEarly, "ended_early", 7},
    {Outcome::kNotArmed, "not_armed", 7},
}};

const OutcomeRow& row_of(Outcome outcome) { return kOutcomes[static_cast<size_t>(outcome)]; }

// A sentence of the process, ready to stand inside another one.
std::string clause(std::string text) {
  while (text.ends_with('.') || text.ends_with(' ')) text.pop_back();
  return text;
}

std::vector<const Site*> sites_that(const Report& report, bool (*wanted)(const Site&)) {
  std::vector<const Site*> list;
  for (const Site& site : report.sites)
    if (wanted(site)) list.push_back(&site);
  return list;
}

int total_calls(const std::vector<const Site*>& sites) {
  int calls = 0;
  for (const Site* site : sites) calls += site->calls;
  return calls;
}

// "x*sigmoid(x) at utils.py:80 (49 calls a step)", or how many there are.
std::string chains_text(const std::vector<const Site*>& sites) {
  if (sites.empty()) return "no chain";
  if (sites.size() > 1)
    return fmt::format("{} chains ({} a step)", sites.size(), plural(total_calls(sites), "call"));
  const Site& site = *sites[0];
  return fmt::format("{} at {}:{} ({} a step)", site.now, file_name(site.file), site.line,
                     plural(site.calls, "call"));
}

// "one edit replaces x*sigmoid(x), 49 calls a step, by F.silu(x)"
std::string edit_text(const std::vector<const Site*>& sites) {
  if (sites.size() == 1)
    return fmt::format("one edit at {}:{} replaces {}, {} a step, by {}", file_name(sites[0]->file),
                       sites[0]->line, sites[0]->now, plural(sites[0]->calls, "call"),
                       sites[0]->becomes);
  return fmt::format("{} edits replace {} a step by fused operators", sites.size(),
                     plural(total_calls(sites), "call"));
}

bool is_planned(const Site& site) { return !site.refusal; }
bool is_kept(const Site& site) { return !site.refusal && site.kept.value_or(true); }
bool is_refused(const Site& site) { return site.refusal.has_value(); }

// Every reason that is on record, each once.
std::vector<std::string> refusals(const Report& report) {
  std::vector<std::string> all;
  const auto add = [&all](const std::string& reason) {
    const std::string text = clause(reason);
    if (!text.empty() && std::find(all.begin(), all.end(), text) == all.end()) all.push_back(text);
  };
  for (const Site& site : report.sites)
    if (site.refusal) add(site.refusal->reason);
  if (!all.empty()) return all;
  for (const auto& verdict : report.verdict.sites)
    if (!verdict.accepted) add(verdict.reason);
  if (!all.empty()) return all;
  const auto& validation = report.verdict.validation;
  if (validation.attempts > 0 && !validation.accepted) add(validation.reason);
  return all;
}

std::string refused_sentence(const Report& report) {
  auto sites = sites_that(report, is_refused);
  if (sites.empty()) sites = sites_that(report, is_planned);
  const std::vector<std::string> reasons = refusals(report);
  const std::string why = reasons.empty() ? clause(report.reason) : reasons[0];
  if (sites.empty()) return fmt::format("Nothing was replaced: {}.", why);
  const std::string others =
      reasons.size() > 1
          ? fmt::format(" (and {} below)",
                        plural(static_cast<int64_t>(reasons.size()) - 1, "other reason"))
          : "";
  return fmt::format("Found, but left alone: {}{}{}{}.", chains_text(sites),
                     why.empty() ? "" : ", because ", why, others);
}

std::string measured_text(const Report& report) {
  const auto ratio = headline_ratio(report);
  return ratio ? format_interval(*ratio) : std::string("no complete pair");
}

std::string ended_sentence(const Report& report) {
  const std::string status =
      report.run.exit_status ? fmt::format(" with status {}", *report.run.exit_status) : "";
  const std::string& phase = report.run.last_phase;
  const std::string when =
      phase.empty() || phase == "armed" || phase == "finished" || phase == "off"
          ? "before its first step was recorded"
          : "while opfuse was " + phase;
  return fmt::format("No verdict: the script ended{} {}, after {}.", status, when,
                     plural(static_cast<int64_t>(report.steps.size()), "step"));
}

// "the lever memory (CPU memory of tensors is kept and reused)", "the levers memory, graph and
// layout"; "" when none is kept.
std::string kept_levers(const Report& report) {
  std::vector<std::string> names;
  std::string what;
  for (const Lever& lever : report.levers) {
    if (!lever.kept) continue;
    names.push_back(lever.name);
    what = lever.what;
  }
  if (names.empty()) return "";
  if (names.size() == 1) return fmt::format("the lever {} ({})", names[0], what);
  const std::string last = names.back();
  names.pop_back();
  return fmt::format("the levers {} and {}", fmt::join(names, ", "), last);
}

bool edits_graph(const Report& report) {
  return std::any_of(report.levers.begin(), report.levers.end(),
                     [](const Lever& lever) { return lever.kept && lever.name == "graph"; });
}

std::string tuned_sentence(const Report& report) {
  const std::string what = is_inference(report) ? "Inference" : "Training";
  const std::string levers = kept_levers(report);
  const auto total = total_ratio(report);
  const std::string times = total ? format_ratio(total->ratio) : "?";
  if (report.speed.outcome != "tuned" && !levers.empty())
    return fmt::format("{} is {} as fast with {}; no {}.", what, times, levers,
                       edits_graph(report) ? "source was edited" : "operator was replaced");
  const auto ratio = headline_ratio(report);
  const std::string edit =
      fmt::format("{} is {} as fast: {}", what, ratio ? format_ratio(ratio->ratio) : "?",
                  edit_text(sites_that(report, is_kept)));
  return levers.empty() ? edit + "." : fmt::format("{}; {} with {}.", edit, times, levers);
}

std::string nothing_sentence(const Report& report) {
  if (report.step.operators == 0)
    return report.levers.empty() ? "Nothing to replace: the step ran no operator."
                                 : "No lever is kept; operators were not looked for.";
  return fmt::format(
      "Nothing to replace: no chain of the rulebook is among the {} of the step{}.",
      plural(report.step.operators, "operator"),
      report.near_misses.empty()
          ? ""
          : fmt::format("; {} came near",
                        plural(static_cast<int64_t>(report.near_misses.size()), "place")));
}

std::string recorded_sentence(const Report& report) {
  return fmt::format("One step is recorded: {}{}.", plural(report.step.operators, "operator"),
                     report.step.root.empty() ? "" : " of " + report.step.root);
}

}  // namespace

std::string_view outcome_name(Outcome outcome) { return row_of(outcome).name; }

std::optional<Outcome> outcome_from_name(std::string_view name) {
  for (const OutcomeRow& row : kOutcomes)
    if (name == row.name) return row.outcome;
  return std::nullopt;
}

int exit_code(Outcome outcome) { return row_of(outcome).code; }

std::optional<verify::RatioInterval> ratio_of(const Speed& speed) {
  for (const auto& interval : {speed.headline_wall, speed.choosing})
    if (interval.pairs > 0 && interval.ratio > 0) return interval;
  return std::nullopt;
}

std::optional<verify::RatioInterval> headline_ratio(const Report& report) {
  return ratio_of(report.speed);
}

std::optional<verify::RatioInterval> total_ratio(const Report& report) {
  if (const auto all = ratio_of(report.together)) return all;
  for (const Lever& lever : report.levers)
    if (lever.kept && report.speed.outcome != "tuned") return ratio_of(lever.speed);
  return headline_ratio(report);
}

std::optional<int64_t> break_even_steps(const Versus& versus) {
  const double won = versus.speed.old_step_s - versus.speed.new_step_s;
  if (won <= 0 || versus.first_step_s <= 0) return std::nullopt;
  return static_cast<int64_t>(std::ceil(versus.first_step_s / won));
}

std::string versus_sentence(const Report& report) {
  const Versus& versus = report.versus;
  const std::string name = fmt::format("{} ({})", versus.name, versus.backend);
  const auto ratio = ratio_of(versus.speed);
  if (!ratio)
    return fmt::format("{}: not measured{}", name,
                       versus.reason.empty() ? ": its run ended before there was a result"
                                             : fmt::format(": {}", versus.reason));
  std::string text = fmt::format("{}: {} of the original step, {} to its first step", name,
                                 format_interval(*ratio), format_seconds(versus.first_step_s));
  if (const auto steps = break_even_steps(versus))
    text += fmt::format(", won back after {}", plural(*steps, "step"));
  const auto ours = total_ratio(report);
  if (report.outcome != Outcome::kTuned || !ours)
    return text + (ratio->low > 1 ? "; it is faster than the code as it is" : "");
  if (ratio->low > ours->high) return text + "; it is faster than what opfuse keeps";
  if (ratio->high < ours->low) return text + "; what opfuse keeps is faster";
  return text + "; not told apart from what opfuse keeps";
}

std::string verdict_sentence(const Report& report) {
  const auto planned = sites_that(report, is_planned);
  switch (report.outcome) {
    case Outcome::kTuned:
      return tuned_sentence(report);
    case Outcome::kNothingFound:
      return nothing_sentence(report);
    case Outcome::kNotFaster:
      return fmt::format(
          "No gain: with {} replaced, the measured ratio is {}; the original code "
          "runs on.",
          chains_text(planned), measured_text(report));
    case Outcome::kRefused:
      return refused_sentence(report);
    case Outcome::kUndecided:
      return fmt::format("Undecided: after {} the ratio is {}; the original code runs on.",
                         plural(report.speed.counted_steps, "counted step"), measured_text(report));
    case Outcome::kFailed:
      return fmt::format(
          "opfuse failed and took itself out of the way{}{}; the script went on "
          "with its original code.",
          report.reason.empty() ? "" : ": ", clause(report.reason));
    case Outcome::kRecorded:
      return recorded_sentence(report);
    case Outcome::kPlanApplied:
      return fmt::format("The plan runs: {}; nothing was measured.", edit_text(planned));
    case Outcome::kDryRun:
      return fmt::format("Dry run: {} can be replaced; nothing was switched or measured.",
                         chains_text(planned));
    case Outcome::kEndedEarly:
      return ended_sentence(report);
    case Outcome::kNotArmed:
      return "No verdict: no process of this command loaded torch where opfuse could see it.";
    case Outcome::kRunning:
      break;
  }
  return fmt::format("No verdict yet: opfuse is {}.",
                     report.run.last_phase.empty() ? "starting" : report.run.last_phase);
}

namespace {

std::string directory_of(const Report& report) {
  return report.run.report_dir.empty() ? "opfuse-report/latest" : report.run.report_dir;
}

// Typed into a notebook, where no command starts it again.
bool in_notebook(const Report& report) {
  return report.run.command == std::vector<std::string>{"notebook"};
}

std::string tune_for(const Report& report, int steps) {
  if (in_notebook(report)) return fmt::format("with opfuse.tune(budget={}):", steps);
  return fmt::format("opfuse tune --budget {} -- {}", steps, shell_quoted(report.run.command));
}

void add_edit_steps(const Report& report, std::vector<std::string>* steps) {
  for (const Lever& lever : report.levers)
    if (lever.kept)
      steps->push_back(fmt::format("Keep the lever {}: `{}` {}.", lever.name,
                                   fmt::join(lever.lines, "; "),
                                   lever.where.empty() ? "at the top of the script" : lever.where));
  if (std::none_of(report.sites.begin(), report.sites.end(), is_kept)) return;
  const std::string dir = shell_quoted({directory_of(report)});
  const bool in_package = std::any_of(report.diffs.begin(), report.diffs.end(),
                                      [](const Diff& diff) { return !diff.package.empty(); });
  const bool in_project = std::any_of(report.diffs.begin(), report.diffs.end(),
                                      [](const Diff& diff) { return diff.package.empty(); });
  if (in_notebook(report))
    steps->push_back("Keep the edit: change the cells as " + dir + "/changes.diff says.");
  else if (in_project)
    steps->push_back("Keep the edit: `opfuse apply " + dir + "`, then commit it.");
  const bool own = std::any_of(report.sites.begin(), report.sites.end(), [](const Site& site) {
    return is_kept(site) && site.target.starts_with("opfuse.");
  });
  if (own)
    steps->push_back(
        "The edited code imports opfuse.functional: install opfuse where it runs, or leave these "
        "chains out by --exclude RULE.");
  for (const PatchModule& module : report.patch_modules)
    steps->push_back("The code belongs to an installed package: copy " + module.name +
                     " beside the script and import it first.");
  if (in_package && report.patch_modules.empty())
    steps->push_back(
        "The code belongs to an installed package: make the change in its source, or "
        "use the plan below.");
  if (!in_notebook(report))
    steps->push_back("Use the plan from the first step on, without measuring: `opfuse run --plan " +
                     dir + "/plan.json -- " + shell_quoted(report.run.command) + "`.");
}

void add_refusal_steps(const Report& report, std::vector<std::string>* steps) {
  for (const Site& site : report.sites)
    if (site.refusal)
      steps->push_back(
          fmt::format("Why, in full: `opfuse explain {}:{}`.", file_name(site.file), site.line));
  if (!report.sites.empty())
    steps->push_back(
        "If you change that code, run opfuse again: nothing else stands in the way of "
        "finding the chain.");
}

void add_near_miss_steps(const Report& report, std::vector<std::string>* steps) {
  if (report.near_misses.empty()) {
    steps->push_back(
        "Nothing to do: the code already uses fused operators, or its formulas are "
        "not in the rulebook.");
    return;
  }
  const NearMiss& miss = report.near_misses.front();
  steps->push_back(fmt::format(
      "See why {} almost matched: `opfuse explain {}`.", miss.rule,
      miss.file.empty() ? miss.rule : fmt::format("{}:{}", file_name(miss.file), miss.line)));
}

}  // namespace

std::vector<std::string> next_steps(const Report& report) {
  std::vector<std::string> steps;
  const std::string dir = shell_quoted({directory_of(report)});
  const std::string command = shell_quoted(report.run.command);
  const bool elsewhere = std::any_of(report.diffs.begin(), report.diffs.end(),
                                     [](const Diff& diff) { return !diff.verified; });
  if (elsewhere)
    steps.push_back(
        "The edit calls operators of a device that is not here: it is not verified on this "
        "machine, "
        "where torch's own operator was checked in its place. Try it on the device.");
  switch (report.outcome) {
    case Outcome::kTuned:
    case Outcome::kPlanApplied:
      add_edit_steps(report, &steps);
      break;
    case Outcome::kNothingFound:
      add_near_miss_steps(report, &steps);
      break;
    case Outcome::kNotFaster:
      steps.push_back(
          "Nothing to do: here the fused operator does not pay. Another device, batch "
          "size or thread count may differ.");
      break;
    case Outcome::kRefused:
      add_refusal_steps(report, &steps);
      break;
    case Outcome::kUndecided:
      steps.push_back(fmt::format(
          "Measure longer: `{}`, with at least that many steps, on a machine with nothing else to "
          "do.",
          tune_for(report, std::max(256, 4 * report.speed.counted_steps))));
      break;
    case Outcome::kFailed:
      steps.push_back("Check the installation: `opfuse doctor`.");
      steps.push_back("What the processes wrote lies in " + dir + "/state.");
      break;
    case Outcome::kRecorded:
      steps.push_back("Look at " + dir +
                      "/trace.json in chrome://tracing or ui.perfetto.dev, or at "
                      "the timeline of report.html.");
      steps.push_back("Find and replace chains: `opfuse tune -- " + command + "`.");
      break;
    case Outcome::kDryRun:
      steps.push_back("Replace and measure: `opfuse tune -- " + command + "`.");
      break;
    case Outcome::kEndedEarly:
      steps.push_back(report.run.exit_status.value_or(0) == 0
                          ? "Give the script more steps: finding and proving takes about 5, "
                            "measuring up to 64 (`--budget`)."
                          : "The script's own message says why it ended; it runs the same without "
                            "opfuse (OPFUSE_DISABLE=1).");
      break;
    case Outcome::kNotArmed:
      steps.push_back(
          "opfuse sees Python through PYTHONPATH: `python -E`, `python -I` and a cleared "
          "environment hide it.");
      steps.push_back("Check interpreter and torch: `opfuse doctor`.");
      break;
    case Outcome::kRunning:
      steps.push_back("Wait: the report is made again at each event.");
      break;
  }
  return steps;
}

}  // namespace opfuse::report
