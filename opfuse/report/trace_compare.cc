#include "opfuse/report/trace_compare.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "opfuse/report/format.h"
#include "opfuse/report/secrets.h"

namespace opfuse::report {
namespace {

// More insertions and deletions than this are no longer aligned: the memory is its square.
constexpr int kMostEdits = 3000;

struct Step {
  bool removed = false;
  size_t at = 0;  // row in before (removed) or after
};

// Shortest edit script (Myers 1986, greedy); false beyond kMostEdits.
class Differ {
 public:
  Differ(const std::vector<int>& a, const std::vector<int>& b) : a_(a), b_(b) {}

  bool run(std::vector<Step>* steps) {
    const int n = static_cast<int>(a_.size()), m = static_cast<int>(b_.size());
    const int most = std::min(n + m, kMostEdits);
    std::vector<int> v(2 * most + 3, 0);
    const auto at = [&](int k) -> int& { return v[k + most + 1]; };
    for (int d = 0; d <= most; ++d) {
      for (int k = -d; k <= d; k += 2) {
        int x = k == -d || (k != d && at(k - 1) < at(k + 1)) ? at(k + 1) : at(k - 1) + 1;
        while (x < n && x - k < m && a_[x] == b_[x - k]) ++x;
        at(k) = x;
        if (x >= n && x - k >= m) {
          history_.emplace_back(v.begin() + (most + 1 - d), v.begin() + (most + 2 + d));
          trace_back(d, k, steps);
          return true;
        }
      }
      history_.emplace_back(v.begin() + (most + 1 - d), v.begin() + (most + 2 + d));
    }
    return false;
  }

 private:
  // history_[d][k + d]: how far diagonal k came with d edits.
  void trace_back(int d, int k, std::vector<Step>* steps) const {
    for (; d > 0; --d) {
      const std::vector<int>& last = history_[d - 1];
      const auto reach = [&](int diagonal) {
        return std::abs(diagonal) > d - 1 ? -1 : last[diagonal + d - 1];
      };
      const bool down = k == -d || (k != d && reach(k - 1) < reach(k + 1));
      const int before = down ? k + 1 : k - 1;
      const int x = reach(before);
      if (down)
        steps->push_back({false, static_cast<size_t>(x - before)});
      else
        steps->push_back({true, static_cast<size_t>(x)});
      k = before;
    }
    std::ranges::reverse(*steps);
  }

  const std::vector<int>&a_, &b_;
  std::vector<std::vector<int>> history_;
};

class Comparer {
 public:
  Comparer(const TraceSide& before, const TraceSide& after) : before_(before), after_(after) {}

  TraceComparison run() {
    align();
    result_.operators = changes(names(before_, false), names(after_, false));
    result_.modules = changes(names(before_, true), names(after_, true));
    result_.chains = changes(chains(before_), chains(after_));
    result_.step_before_s = median_step(*before_.file);
    result_.step_after_s = median_step(*after_.file);
    return std::move(result_);
  }

 private:
  using Totals = std::map<std::string, std::pair<int64_t, int64_t>>;  // calls, nanoseconds

  static const graph::Graph& graph(const TraceSide& side) { return side.inferred->graph; }

  void align() {
    std::map<std::string, int> numbers;
    const auto sequence = [&](const TraceSide& side) {
      std::vector<int> list;
      // Forward and backward are never taken for one another.
      for (const graph::Node& node : graph(side).nodes) {
        const bool backward = node.region.flags & trace::kGraphTask;
        const std::string key = node.op + (backward ? " backward" : "");
        list.push_back(numbers.try_emplace(key, static_cast<int>(numbers.size())).first->second);
      }
      return list;
    };
    const std::vector<int> a = sequence(before_), b = sequence(after_);
    std::vector<Step> steps;
    result_.aligned = Differ(a, b).run(&steps);
    if (!result_.aligned) return;
    const auto removed = std::ranges::count_if(steps, [](const Step& s) { return s.removed; });
    result_.same = static_cast<int64_t>(a.size()) - removed;
    group(steps);
  }

  // Neighbouring steps are one exchange; equal exchanges are counted.
  void group(const std::vector<Step>& steps) {
    std::map<std::pair<std::vector<std::string>, std::vector<std::string>>, TraceEdit> edits;
    size_t a = 0, b = 0;  // the next row of each side that is not passed yet
    TraceEdit edit;
    const auto flush = [&] {
      if (edit.removed.empty() && edit.added.empty()) return;
      TraceEdit& into = edits[{edit.removed, edit.added}];
      into.removed = edit.removed;
      into.added = edit.added;
      ++into.places;
      into.removed_ns += edit.removed_ns;
      into.added_ns += edit.added_ns;
      edit = {};
    };
    for (const Step& step : steps) {
      const bool touches = step.removed ? step.at == a : step.at == b;
      if (!touches) {
        flush();
        const size_t same = step.removed ? step.at - a : step.at - b;
        a += same;
        b += same;
      }
      const graph::Node& node = graph(step.removed ? before_ : after_).nodes[step.at];
      (step.removed ? edit.removed : edit.added).push_back(node.op);
      (step.removed ? edit.removed_ns : edit.added_ns) += std::max<int64_t>(node.dur_ns, 0);
      ++(step.removed ? a : b);
    }
    flush();
    for (auto& [key, entry] : edits) result_.edits.push_back(std::move(entry));
    std::ranges::stable_sort(result_.edits, [](const TraceEdit& x, const TraceEdit& y) {
      return std::pair(std::abs(x.removed_ns - x.added_ns), x.places) >
             std::pair(std::abs(y.removed_ns - y.added_ns), y.places);
    });
  }

  static Totals names(const TraceSide& side, bool by_module) {
    Totals totals;
    for (const graph::Node& node : graph(side).nodes) {
      const std::string name = by_module ? module_of(graph(side), node) : node.op;
      if (name.empty()) continue;
      ++totals[name].first;
      totals[name].second += std::max<int64_t>(node.dur_ns, 0);
    }
    return totals;
  }

  static Totals chains(const TraceSide& side) {
    Totals totals;
    for (const TraceFinding& finding : side.report->findings) {
      totals[finding.rule].first += finding.calls;
      totals[finding.rule].second += finding.price.now_ns + finding.backward_price.now_ns;
    }
    return totals;
  }

  static std::string module_of(const graph::Graph& g, const graph::Node& node) {
    for (int32_t scope = node.scope; scope != graph::kNone; scope = g.scopes[scope].parent) {
      std::string name = g.scopes[scope].name;
      if (!name.starts_with("nn.Module: ")) continue;
      name = name.substr(11);
      const size_t end = name.find_last_not_of("0123456789");
      if (end != std::string::npos && name[end] == '_') name.resize(end);
      return name;
    }
    return "";
  }

  static std::vector<TraceChange> changes(const Totals& before, const Totals& after) {
    std::map<std::string, TraceChange> all;
    for (const auto& [name, total] : before)
      std::tie(all[name].calls_before, all[name].ns_before) = total;
    for (const auto& [name, total] : after)
      std::tie(all[name].calls_after, all[name].ns_after) = total;
    std::vector<TraceChange> list;
    for (auto& [name, change] : all) {
      change.name = name;
      if (change.calls_before != change.calls_after || change.ns_before != change.ns_after)
        list.push_back(change);
    }
    std::ranges::stable_sort(list, [](const TraceChange& x, const TraceChange& y) {
      return std::abs(x.ns_after - x.ns_before) > std::abs(y.ns_after - y.ns_before);
    });
    return list;
  }

  static double median_step(const trace::TraceFile& file) {
    std::vector<int64_t> steps;
    for (size_t i = 0; i < file.name.size(); ++i)
      if (file.kind[i] == trace::FileKind::kAnnotation && file.dur_ns[i] > 0 &&
          file.text(file.name[i]).starts_with("ProfilerStep#"))
        steps.push_back(file.dur_ns[i]);
    if (steps.empty()) return 0;
    std::ranges::sort(steps);
    return static_cast<double>(steps[steps.size() / 2]) * 1e-9;
  }

  const TraceSide &before_, &after_;
  TraceComparison result_;
};

std::string time_text(int64_t ns) { return format_seconds(static_cast<double>(ns) * 1e-9); }

std::string changes_text(const char* title, const std::vector<TraceChange>& changes, size_t top) {
  if (changes.empty()) return "";
  std::string text = fmt::format("\n  {:<40} {:>17} {:>23}\n", title, "calls", "time");
  for (size_t i = 0; i < changes.size() && i < top; ++i) {
    const TraceChange& c = changes[i];
    text += fmt::format("  {:<40} {:>8} {:>8} {:>11} {:>11}{}\n", c.name.substr(0, 40),
                        format_count(c.calls_before), format_count(c.calls_after),
                        time_text(c.ns_before), time_text(c.ns_after),
                        c.calls_before == 0  ? "  new"
                        : c.calls_after == 0 ? "  gone"
                                             : "");
  }
  if (changes.size() > top) text += fmt::format("  and {} more (--top)\n", changes.size() - top);
  return text;
}

std::string line(const char* name, const std::string& before, const std::string& after,
                 double ratio) {
  return fmt::format("  {:<18} {:>14} {:>14}{}\n", name, before, after,
                     ratio > 0 ? "  " + format_ratio(ratio) : "");
}

}  // namespace

TraceComparison compare_traces(const TraceSide& before, const TraceSide& after) {
  return Comparer(before, after).run();
}

std::string comparison_text(const TraceComparison& c, const TraceReport& before,
                            const TraceReport& after, double batch, size_t top) {
  const auto ratio = [](double a, double b) { return a > 0 && b > 0 ? a / b : 0; };
  std::string text = fmt::format("  {:<18} {:>14} {:>14}\n", "", "before", "after");
  if (c.step_before_s > 0 && c.step_after_s > 0) {
    text += line("TIME (profiled)", format_seconds(c.step_before_s), format_seconds(c.step_after_s),
                 ratio(c.step_before_s, c.step_after_s));
    if (batch > 0)
      text += line("images/s", format_rate(batch / c.step_before_s),
                   format_rate(batch / c.step_after_s), ratio(c.step_before_s, c.step_after_s));
  }
  text += line("span", time_text(before.span_ns), time_text(after.span_ns), 0);
  text += line(before.on_device ? "device work" : "operators", time_text(before.total_ns),
               time_text(after.total_ns),
               ratio(static_cast<double>(before.total_ns), static_cast<double>(after.total_ns)));
  text += line("kernels", format_count(before.kernels), format_count(after.kernels), 0);
  if (!c.aligned) {
    text += fmt::format(
        "\n  not aligned: the operators differ at more than {} places; counts only\n", kMostEdits);
  } else {
    text += fmt::format("\n  {} operators in the same order in both\n", format_count(c.same));
    for (size_t i = 0; i < c.edits.size() && i < top; ++i) {
      const TraceEdit& edit = c.edits[i];
      text += fmt::format(
          "  {:>6} x  {} -> {}   {} -> {}\n", format_count(edit.places),
          edit.removed.empty() ? "nothing" : fmt::format("{}", fmt::join(edit.removed, ", ")),
          edit.added.empty() ? "nothing" : fmt::format("{}", fmt::join(edit.added, ", ")),
          time_text(edit.removed_ns), time_text(edit.added_ns));
    }
    if (c.edits.size() > top) text += fmt::format("  and {} more (--top)\n", c.edits.size() - top);
  }
  text += changes_text("operator", c.operators, top);
  text += changes_text("module", c.modules, top);
  text += changes_text("chain that a rule knows", c.chains, top);
  return text;
}

}  // namespace opfuse::report
