// The terminal text of `opfuse analyze`.

#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include "opfuse/report/format.h"
#include "opfuse/report/secrets.h"
#include "opfuse/report/trace_report.h"
#include "opfuse/trace/read.h"

namespace opfuse::report {
namespace {

std::string time_text(int64_t ns) { return format_seconds(static_cast<double>(ns) * 1e-9); }

std::string share_text(int64_t part, int64_t whole) {
  if (whole <= 0) return "-";
  return fmt::format("{:.1f}%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string proof_name(graph::Proof proof) {
  static constexpr const char* kNames[] = {"P0 names", "P1 shapes", "P2 memory", "P3 ids"};
  return kNames[static_cast<size_t>(proof)];
}

std::string short_operators(const std::vector<std::string>& operators) {
  std::string text;
  for (const std::string& op : operators) {
    std::string name = op.starts_with("aten.") ? op.substr(5) : op;
    name.resize(std::min(name.size(), name.find('.')));
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

std::string size_text(int64_t bytes) {
  if (bytes >= 1 << 20) return format_bytes(bytes);
  return fmt::format("{} KiB", (bytes + 1023) / 1024);
}

// "-1.7% [1.2, 1.8]": what the recorded time would lose.
std::string gain_text(const Range& gain, int64_t whole) {
  const auto share = [&](int64_t ns) {
    return whole > 0
               ? 100 * static_cast<double>(std::max<int64_t>(ns, 0)) / static_cast<double>(whole)
               : 0.0;
  };
  return fmt::format("-{:.1f}% [{:.1f}, {:.1f}]", share(gain.mid), share(gain.low),
                     share(gain.high));
}

std::string head_lines(const TraceReport& r) {
  std::string text = fmt::format("opfuse  {}  ({}{}{}, {} events, {})\n", mask_text(r.path),
                                 r.format, r.device.empty() ? "" : ", " + r.device,
                                 r.rank >= 0 ? fmt::format(", rank {}", r.rank) : "",
                                 format_count(r.events), size_text(r.bytes));
  if (r.total_ns == 0)
    text += "  no times in this file: chains are counted only\n";
  else
    text += fmt::format("  span {}, {} {} in {}\n", time_text(r.span_ns),
                        r.on_device ? "device work" : "operators", time_text(r.total_ns),
                        r.on_device ? plural(r.kernels, "kernel")
                                    : plural(static_cast<int64_t>(r.operators.size()), "operator"));
  if (r.on_device)
    text += fmt::format("  conservation: operators {} + not joined {} = device work {}{}\n",
                        time_text(r.by_operator_ns), time_text(r.by_kernel_ns - r.by_operator_ns),
                        time_text(r.by_kernel_ns),
                        r.orphan_kernels > 0 ? fmt::format("; {} without a launch in the file",
                                                           plural(r.orphan_kernels, "kernel"))
                                             : "");
  if (r.median_queue_ns >= 0)
    text +=
        fmt::format("  device busy {:.0f}% of its span, a kernel waits {} behind its launch{}\n",
                    100 * r.busy_share, time_text(r.median_queue_ns),
                    r.bound.empty() ? "" : fmt::format(": {}-bound", r.bound));
  if (r.step.known && r.on_device)
    text +=
        r.step.has_host
            ? fmt::format(
                  "  played again: {} of {} recorded ({:.1f}% off); the host alone {}, "
                  "the device alone {}\n",
                  time_text(r.step.replayed_ns), time_text(r.step.recorded_ns), 100 * r.step.error,
                  time_text(r.step.host_alone_ns), time_text(r.step.device_alone_ns))
            : "  no launches in this file: the host's part of the step is not known\n";
  if (20 * r.step.before_file_ns > r.step.recorded_ns)
    text += fmt::format("  for {} of it the device was busy with work from before the file\n",
                        time_text(r.step.before_file_ns));
  if (r.edges[3] > 0)
    return text + fmt::format("  edges: {} by tensor ids (P3)\n", format_count(r.edges[3]));
  text += fmt::format("  edges: {} by memory (P2), {} by shapes (P1), {} guessed (P0)\n",
                      format_count(r.edges[2]), format_count(r.edges[1]), format_count(r.edges[0]));
  return text;
}

std::string backward_line(const TraceFinding& f) {
  const price::Price& p = f.backward_price;
  std::string text = fmt::format("      backward of {} calls: {}", format_count(f.backward_calls),
                                 time_text(p.now_ns));
  if (p.known)
    text += fmt::format(", predicted {} [{}, {}]", time_text(p.mid_ns), time_text(p.low_ns),
                        time_text(p.high_ns));
  if (p.launches > f.backward_calls)
    text += fmt::format(", {} launches fewer", format_count(p.launches - f.backward_calls));
  return text + '\n';
}

std::string finding_lines(const TraceReport& r, const TraceFinding& f) {
  std::string where = f.module;
  if (!f.source.empty()) where += (where.empty() ? "" : "  ") + f.source;
  if (!f.region.empty()) where += (where.empty() ? "in " : "  in ") + f.region;
  if (where.empty()) where = "place not in the file";
  std::string text =
      fmt::format("  {:<16} {:>5} calls  {:>9}  {:>6}  {}{}\n", f.rule, format_count(f.calls),
                  time_text(f.price.now_ns), share_text(f.price.now_ns, r.total_ns),
                  mask_text(where), f.backward ? "  (backward)" : "");
  text += fmt::format("      {}  {}  proof {}", f.shapes, short_operators(f.operators),
                      proof_name(f.proof));
  text += f.raised_by.empty() ? "\n" : fmt::format("; more by {}\n", f.raised_by);
  if (f.priced)
    text +=
        fmt::format("      becomes {}: predicted {} [{}, {}]", f.target, time_text(f.price.mid_ns),
                    time_text(f.price.low_ns), time_text(f.price.high_ns));
  else
    text += fmt::format("      becomes {}: time not predicted, sizes are unknown", f.target);
  if (f.price.launches > f.calls)
    text += fmt::format(", {} launches fewer", format_count(f.price.launches - f.calls));
  if (r.step.known && f.priced)
    text += fmt::format("; step {}", gain_text(f.step_gain_ns, r.step.recorded_ns));
  text += '\n';
  if (f.backward_calls > 0) text += backward_line(f);
  for (const std::string& condition : f.conditions) text += "      " + condition + '\n';
  return text;
}

std::string loss_lines(const TraceReport& r) {
  std::string text;
  for (trace::LossKind kind : r.losses.present()) {
    const trace::LossInfo& info = trace::loss_info(kind);
    const trace::LossCount& entry = r.losses.of(kind);
    const char* level = info.severity == trace::Severity::kLoss     ? "lost"
                        : info.severity == trace::Severity::kRepair ? "repaired"
                                                                    : "note";
    text += fmt::format("  {}: {} {}", level, format_count(entry.count), info.text);
    if (entry.first_offset >= 0 && info.severity != trace::Severity::kNote) {
      text += fmt::format("; the first at byte {}", format_count(entry.first_offset));
      if (const int64_t line = trace::line_of_byte(r.path, entry.first_offset); line > 0)
        text += fmt::format(", line {}", format_count(line));
      if (!entry.excerpt.empty()) text += ": " + mask_text(entry.excerpt);
    }
    text += '\n';
  }
  return text;
}

}  // namespace

std::string trace_text(const TraceReport& r, const TraceTextOptions& options) {
  std::string text = head_lines(r);
  if (r.findings.empty()) text += "\nNo chain of small operators that a rule knows.\n";
  if (!r.findings.empty()) text += "\n  chain             calls       now   share  where\n";
  for (size_t i = 0; i < r.findings.size() && i < options.top; ++i)
    text += finding_lines(r, r.findings[i]);
  if (r.findings.size() > options.top)
    text += fmt::format("  and {} more (--top)\n", r.findings.size() - options.top);
  if (!r.findings.empty())
    text +=
        fmt::format("  possible: {:.1f}% of {} (predicted); {:.1f}% where memory or ids prove it\n",
                    100 * possible_share(r), r.on_device ? "device work" : "operator time",
                    100 * possible_share(r, graph::Proof::kP2));
  if (!r.findings.empty() && r.step.known)
    text +=
        fmt::format("  step: {} with all of them (predicted), of {}{}\n",
                    gain_text(r.step.gain_ns, r.step.recorded_ns), time_text(r.step.recorded_ns),
                    r.step.error > 0.03 ? ", wide because playing it again is off" : "");
  if (!r.refused.empty()) {
    text += "\n  looks like a rule, but:\n";
    for (size_t i = 0; i < r.refused.size() && i < options.top; ++i)
      text += fmt::format("  {:<16} {:>5} calls  {}: {}\n", r.refused[i].rule,
                          format_count(r.refused[i].calls),
                          r.refused[i].module.empty() ? r.refused[i].source : r.refused[i].module,
                          r.refused[i].refusal);
  }
  if (!r.fused.empty()) {
    text += "\n  fused already:";
    for (const OperatorTime& op : r.fused)
      text += fmt::format(" {} x{} ({})", op.name, format_count(op.calls), time_text(op.time_ns));
    text += '\n';
  }
  constexpr size_t kCandidates = 3;
  if (!r.candidates.empty()) text += "\n  no rule knows:\n";
  for (size_t i = 0; i < std::min(kCandidates, r.candidates.size()); ++i)
    text += "  " + mask_text(candidate_sentence(r.candidates[i])) + '\n';
  const std::string losses = loss_lines(r);
  if (!losses.empty()) text += "\n" + losses;
  if (!r.advice.empty()) text += '\n';
  for (const std::string& line : r.advice) text += "  " + line + '\n';
  return text;
}

std::string traces_text(const std::vector<TraceReport>& reports, size_t top) {
  using Chain = std::tuple<std::string, std::string, std::string>;
  struct Sum {
    int64_t calls = 0, ns = 0;
  };
  struct Spread {
    size_t traces = 0;
    int64_t least_calls = 0, most_calls = 0, least_ns = 0, most_ns = 0, all_ns = 0;
  };
  std::map<Chain, Spread> chains;
  for (const TraceReport& r : reports) {
    std::map<Chain, Sum> here;  // several findings of a trace may be one chain
    for (const TraceFinding& f : r.findings) {
      Sum& sum = here[{f.rule, f.module.empty() ? f.source : f.module, f.shapes}];
      sum.calls += f.calls, sum.ns += f.price.now_ns;
    }
    for (const auto& [chain, sum] : here) {
      Spread& s = chains[chain];
      const bool first = s.traces++ == 0;
      s.least_calls = first ? sum.calls : std::min(s.least_calls, sum.calls);
      s.most_calls = std::max(s.most_calls, sum.calls);
      s.least_ns = first ? sum.ns : std::min(s.least_ns, sum.ns);
      s.most_ns = std::max(s.most_ns, sum.ns);
      s.all_ns += sum.ns;
    }
  }
  std::vector<std::pair<Chain, Spread>> rows(chains.begin(), chains.end());
  std::ranges::stable_sort(
      rows, [](const auto& a, const auto& b) { return a.second.all_ns > b.second.all_ns; });
  std::string text = fmt::format("\n{}:\n", plural(static_cast<int64_t>(reports.size()), "trace"));
  if (rows.empty()) text += "  no chain in any of them\n";
  for (size_t i = 0; i < rows.size() && i < top; ++i) {
    const auto& [key, s] = rows[i];
    text +=
        fmt::format("  {:<16} in {}, {} to {} calls, {} to {}  {}  {}\n", std::get<0>(key),
                    plural(static_cast<int64_t>(s.traces), "trace"), format_count(s.least_calls),
                    format_count(s.most_calls), time_text(s.least_ns), time_text(s.most_ns),
                    mask_text(std::get<1>(key)), std::get<2>(key));
  }
  return text;
}

}  // namespace opfuse::report
