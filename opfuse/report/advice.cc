#include "opfuse/report/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "opfuse/report/format.h"

namespace opfuse::report {
namespace {

constexpr double kLeastGain = 1.1;

// Of the whole cycle, waiting for data included; 0 when it is not known.
double cycle_s(const Report& report) {
  const SideTimes& side = report.old_side.steps > 0 ? report.old_side : report.plain;
  return side.steps > 0 ? side.time_median_s + side.data_mean_s : 0;
}

std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

double without(double share) { return 1 / (1 - std::min(share, 0.99)); }

void add_data(const Report& report, std::vector<Advice>* advice) {
  const SideTimes& side = report.old_side.steps > 0 ? report.old_side : report.plain;
  const double cycle = cycle_s(report);
  if (cycle <= 0) return;
  const double share = side.data_mean_s / cycle;
  advice->push_back(
      {fmt::format(
           "the script waits {} a step for data, {} of the time: more workers of the loader "
           "(num_workers), or samples that are prepared once",
           format_seconds(side.data_mean_s), percent(share)),
       without(share)});
}

// The processors of which torch's bf16 kernels use instructions of their own.
bool has_bf16(const Machine& machine) {
  return machine.isa == "avx512bf16" || machine.isa == "neon";
}

void add_low_precision(const Report& report, std::vector<Advice>* advice) {
  const double cycle = cycle_s(report);
  if (cycle <= 0 || report.step.low_precision_ms <= 0) return;
  if (report.step.low_precision == "bf16" && has_bf16(report.machine)) return;
  const double share = std::min(report.step.low_precision_ms / 1e3 / cycle, 1.0);
  advice->push_back(
      {fmt::format("matrix products and convolutions in {} take {} of the time, and this processor "
                   "({}) has no instructions for them: float32 may be faster here",
                   report.step.low_precision, percent(share), report.machine.isa),
       without(share)});
}

// Attention that is written out and that no edit reaches.
void add_attention(const Report& report, std::vector<Advice>* advice) {
  const double cycle = cycle_s(report);
  std::map<std::string, std::pair<double, int>> places;  // place -> ms, calls
  double ms = 0;
  int calls = 0;
  for (const Site& site : report.sites) {
    if (!site.rule.starts_with("attention") || (site.kept && *site.kept)) continue;
    auto& [place_ms, place_calls] = places[place_of(site)];
    place_ms += site.forward_ms + site.backward_ms, place_calls += site.calls;
    ms += site.forward_ms + site.backward_ms, calls += site.calls;
  }
  if (cycle <= 0 || ms <= 0) return;
  const auto longest = std::max_element(
      places.begin(), places.end(),
      [](const auto& a, const auto& b) { return a.second.first < b.second.first; });
  const double share = std::min(ms / 1e3 / cycle, 1.0);
  advice->push_back(
      {fmt::format("attention is written out in {} ({}) and takes {} of the time: "
                   "torch.nn.functional.scaled_dot_product_attention computes it in one operator "
                   "(in models of transformers: attn_implementation=\"sdpa\")",
                   plural(calls, "place"), longest->first, percent(share)),
       without(share)});
}

}  // namespace

std::vector<Advice> advice_of(const Report& report) {
  std::vector<Advice> advice;
  add_data(report, &advice);
  add_low_precision(report, &advice);
  add_attention(report, &advice);
  std::erase_if(advice, [](const Advice& one) { return !(one.at_most >= kLeastGain); });
  std::stable_sort(advice.begin(), advice.end(),
                   [](const Advice& a, const Advice& b) { return a.at_most > b.at_most; });
  return advice;
}

}  // namespace opfuse::report
