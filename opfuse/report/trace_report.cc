#include "opfuse/report/trace_report.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include <fmt/format.h>

#include "opfuse/base/dtype.h"
#include "opfuse/price/backward_nodes.h"
#include "opfuse/price/step_replay.h"
#include "opfuse/trace/file_events.h"

namespace opfuse::report {
namespace {

using graph::kNone;
using graph::NodeId;
using graph::Proof;
using graph::ValueId;

// "SiLU_31" -> "SiLU": every instance of a module class is one place.
std::string without_number(std::string name) {
  const size_t end = name.find_last_not_of("0123456789");
  if (end != std::string::npos && end + 1 < name.size() && name[end] == '_') name.resize(end);
  return name;
}

std::string shape_text(const graph::TensorMeta& meta) {
  std::string text(dtype_name(meta.dtype));
  if (!meta.shape_known) return text + "[?]";
  text += '[';
  for (size_t i = 0; i < meta.shape.size(); ++i)
    text += (i ? "," : "") + std::to_string(meta.shape[i]);
  return text + "]";
}

class Reporter {
 public:
  Reporter(const trace::TraceFile& file, const trace::Calls& calls, const trace::EventTable& table,
           const graph::InferredGraph& inferred, const match::MatchReport& matches)
      : file_(file),
        calls_(calls),
        table_(table),
        inferred_(inferred),
        matches_(matches),
        prices_(inferred),
        backward_(inferred.graph, matches) {}

  TraceReport run() {
    describe_file();
    add_times();
    add_queue();
    add_findings();
    predict_step();
    add_advice();
    return std::move(report_);
  }

 private:
  const graph::Graph& graph() const { return inferred_.graph; }

  void describe_file() {
    report_.path = file_.path;
    report_.format = file_.format;
    report_.events = static_cast<int64_t>(file_.table ? table_.events.size() : file_.size());
    report_.bytes = file_.bytes;
    report_.rank = file_.rank;
    report_.device = device_name();
    report_.steps = trace::steps_of(file_);
    report_.losses = file_.losses;
    report_.orphan_kernels = calls_.orphans;
    report_.graph_launches = calls_.graph_launches;
    report_.edges = inferred_.edges;
    count_unpaired();
  }

  void count_unpaired() {
    std::set<int64_t> forward, unpaired;
    for (const trace::EventRow& event : table_.events) {
      forward.insert(event.forward_sequence);
      if (event.kind == trace::EventKind::kFunction) forward.insert(event.sequence);
    }
    for (const trace::EventRow& event : table_.events)
      if (event.kind == trace::EventKind::kAutogradNode && event.sequence >= 0 &&
          !forward.contains(event.sequence))
        unpaired.insert(event.sequence);
    if (!unpaired.empty())
      report_.losses.add(trace::LossKind::kBackwardUnpaired, -1, {},
                         static_cast<int64_t>(unpaired.size()));
  }

  std::string device_name() const {
    const auto it = file_.header.find("deviceProperties");
    if (it == file_.header.end()) return "";
    const size_t key = it->second.find("\"name\"");
    const size_t begin = key == std::string::npos ? key : it->second.find('"', key + 6);
    const size_t end = begin == std::string::npos ? begin : it->second.find('"', begin + 1);
    return end == std::string::npos ? "" : it->second.substr(begin + 1, end - begin - 1);
  }

  void add_times() {
    int64_t first = std::numeric_limits<int64_t>::max(), last = 0;
    const auto cover = [&](int64_t start, int64_t dur) {
      first = std::min(first, start);
      last = std::max(last, start + std::max<int64_t>(dur, 0));
    };
    for (const trace::EventRow& event : table_.events) cover(event.start_ns, event.dur_ns);
    std::map<std::string, OperatorTime> by_name;
    for (const trace::KernelRow& kernel : table_.kernels) {
      cover(kernel.start_ns, kernel.dur_ns);
      const int64_t dur = std::max<int64_t>(kernel.dur_ns, 0);
      report_.by_kernel_ns += dur;
      report_.kernels += kernel.work == trace::DeviceWork::kKernel;
      if (kernel.event == kNone) report_.orphan_ns += dur;
    }
    report_.on_device = report_.by_kernel_ns > 0;
    int64_t inside = 0;
    for (size_t i = 0; i < graph().nodes.size(); ++i) {
      const graph::Node& node = graph().nodes[i];
      OperatorTime& entry = by_name[node.op];
      ++entry.calls;
      entry.time_ns += std::max<int64_t>(node.dur_ns, 0);
      inside += std::max<int64_t>(node.dur_ns, 0);
    }
    report_.by_operator_ns = inside;
    report_.total_ns = report_.on_device ? report_.by_kernel_ns : inside;
    report_.span_ns = last > first ? last - first : 0;
    for (auto& [name, entry] : by_name) {
      entry.name = name;
      report_.operators.push_back(entry);
      if (is_fused(name)) report_.fused.push_back(entry);
    }
    const auto by_time = [](const OperatorTime& a, const OperatorTime& b) {
      return a.time_ns > b.time_ns;
    };
    std::ranges::stable_sort(report_.operators, by_time);
    std::ranges::stable_sort(report_.fused, by_time);
  }

  void add_queue() {
    if (table_.kernels.empty()) return;
    std::vector<int64_t> queues;
    int64_t busy = 0, covered = std::numeric_limits<int64_t>::min();
    for (const trace::KernelRow& kernel : table_.kernels) {
      const int64_t end = kernel.start_ns + std::max<int64_t>(kernel.dur_ns, 0);
      busy += std::max<int64_t>(end - std::max(kernel.start_ns, covered), 0);
      covered = std::max(covered, end);
      if (kernel.launch_ns >= 0) queues.push_back(kernel.start_ns - kernel.launch_ns);
    }
    const int64_t span = covered - table_.kernels.front().start_ns;
    if (span > 0) report_.busy_share = static_cast<double>(busy) / static_cast<double>(span);
    if (queues.empty()) return;
    std::ranges::nth_element(queues, queues.begin() + static_cast<ptrdiff_t>(queues.size() / 2));
    report_.median_queue_ns = queues[queues.size() / 2];
  }

  // ---- the step, played again

  void predict_step() {
    if (file_.losses.count(trace::LossKind::kTimesInOrder) > 0) return;
    if (table_.kernels.empty()) return predict_host_step();
    const price::StepReplay replay(table_);
    StepPrediction& step = report_.step;
    step.known = replay.recorded_ns() > 0;
    step.has_host = replay.has_host();
    step.recorded_ns = replay.recorded_ns();
    step.replayed_ns = replay.run();
    step.error = replay.error();
    step.before_file_ns = replay.before_file_ns();
    step.host_alone_ns = replay.host_alone_ns();
    step.device_alone_ns = replay.device_alone_ns();
    if (step.has_host) report_.bound = bound_of(step);
    price::ReplayChange all[3];
    for (TraceFinding& finding : report_.findings) {
      if (!finding.priced) continue;
      int64_t gains[3];
      for (int i = 0; i < 3; ++i) {
        const price::ReplayChange one = change_of(finding, i);
        gains[i] = step.replayed_ns - replay.run(one);
        all[i].removed.insert(all[i].removed.end(), one.removed.begin(), one.removed.end());
        all[i].durations_ns.insert(all[i].durations_ns.end(), one.durations_ns.begin(),
                                   one.durations_ns.end());
      }
      finding.step_gain_ns = range_of(gains, step.error);
    }
    int64_t gains[3];
    for (int i = 0; i < 3; ++i) gains[i] = step.replayed_ns - replay.run(all[i]);
    step.gain_ns = range_of(gains, step.error);
  }

  // The one whose absence would leave less than this share of the step decides it.
  static std::string bound_of(const StepPrediction& step) {
    constexpr double kDecides = 0.9;
    const auto whole = kDecides * static_cast<double>(step.replayed_ns);
    const bool host = static_cast<double>(step.host_alone_ns) > whole;
    const bool device = static_cast<double>(step.device_alone_ns) > whole;
    if (host && device) return "host and device";
    if (!host && !device) return step.host_alone_ns > step.device_alone_ns ? "host" : "device";
    return host ? "host" : "device";
  }

  // A host that computes itself: one operator after another, so every nanosecond saved is gained.
  void predict_host_step() {
    StepPrediction& step = report_.step;
    if (report_.span_ns <= 0 || report_.total_ns <= 0) return;
    step.known = step.has_host = true;
    step.recorded_ns = step.replayed_ns = step.host_alone_ns = report_.span_ns;
    report_.bound = "host";
    for (TraceFinding& finding : report_.findings) {
      if (!finding.priced) continue;
      finding.step_gain_ns = {};
      for (const price::Price& p : {finding.price, finding.backward_price}) {
        if (!p.known) continue;
        finding.step_gain_ns.low += p.now_ns - p.high_ns;
        finding.step_gain_ns.mid += p.now_ns - p.mid_ns;
        finding.step_gain_ns.high += p.now_ns - p.low_ns;
      }
      step.gain_ns.low += finding.step_gain_ns.low;
      step.gain_ns.mid += finding.step_gain_ns.mid;
      step.gain_ns.high += finding.step_gain_ns.high;
    }
  }

  static Range range_of(const int64_t (&gains)[3], double error) {
    constexpr double kExact = 0.03;
    const double wide = error > kExact ? error : 0;
    const auto times = [](int64_t ns, double factor) {
      return static_cast<int64_t>(static_cast<double>(ns) * factor);
    };
    return {times(std::min({gains[0], gains[1], gains[2]}), 1 - std::min(wide, 1.0)), gains[1],
            times(std::max({gains[0], gains[1], gains[2]}), 1 + wide)};
  }

  // Of each call the last kernel stays and takes the time of the fused operator: at the slow, the
  // middle or the fast end of the price.
  price::ReplayChange change_of(const TraceFinding& finding, int end) const {
    if (kernels_of_node_.empty()) {
      kernels_of_node_.resize(graph().nodes.size());
      for (size_t k = 0; k < inferred_.node_of_kernel.size(); ++k)
        if (inferred_.node_of_kernel[k] != kNone)
          kernels_of_node_[inferred_.node_of_kernel[k]].push_back(static_cast<int32_t>(k));
    }
    price::ReplayChange change;
    for (const size_t m : finding.matches) {
      const match::Match& match = matches_.matches[m];
      replace(match.nodes, prices_.of(match), end, &change);
      const std::vector<NodeId> backward = backward_.of(match);
      if (!backward.empty()) replace(backward, prices_.of_backward(match, backward), end, &change);
    }
    return change;
  }

  void replace(const std::vector<NodeId>& nodes, const price::Price& price, int end,
               price::ReplayChange* change) const {
    std::vector<int32_t> kernels;
    for (NodeId node : nodes)
      kernels.insert(kernels.end(), kernels_of_node_[node].begin(), kernels_of_node_[node].end());
    if (kernels.empty() || !price.known) return;
    std::ranges::sort(kernels);
    const int64_t ns[] = {price.high_ns, price.mid_ns, price.low_ns};
    change->durations_ns.emplace_back(kernels.back(), ns[end]);
    change->removed.insert(change->removed.end(), kernels.begin(), kernels.end() - 1);
  }

  // Operators that are what a chain would become.
  static bool is_fused(std::string_view op) {
    for (std::string_view name :
         {"aten.silu", "aten.gelu", "aten.hardswish", "aten.native_layer_norm",
          "aten._fused_rms_norm", "aten.native_batch_norm", "aten.cudnn_batch_norm",
          "aten._scaled_dot_product_flash_attention",
          "aten._scaled_dot_product_efficient_attention",
          "aten._scaled_dot_product_cudnn_attention", "aten.mish", "aten.addcmul",
          "aten.native_group_norm", "aten._fused_adam_", "aten._fused_adamw_", "aten._fused_sgd_"})
      if (op == name || (op.starts_with(name) && op[name.size()] == '.')) return true;
    return op.starts_with("triton_") || op.starts_with("torch_npu.npu_") ||
           op.starts_with("npu.npu_");
  }

  // ---- findings

  std::string module_of(NodeId node) const {
    for (int32_t scope = graph().nodes[node].scope; scope != kNone;
         scope = graph().scopes[scope].parent)
      if (graph().scopes[scope].name.starts_with("nn.Module: "))
        return without_number(graph().scopes[scope].name.substr(11));
    return "";
  }

  // "block3" of record_function("block3"): no module, no step, nothing of the profiler's own.
  std::string region_of(NodeId node) const {
    for (int32_t at = graph().nodes[node].scope; at != kNone; at = graph().scopes[at].parent) {
      const graph::Scope& scope = graph().scopes[at];
      if (scope.kind != graph::ScopeKind::kUserScope) continue;
      bool own = false;
      for (std::string_view known :
           {"nn.Module: ", "ProfilerStep#", "autograd.", "Optimizer.", "enumerate(DataLoader)"})
        own = own || scope.name.starts_with(known);
      if (!own) return scope.name;
    }
    return "";
  }

  std::string raised_by(Proof proof) const {
    const bool can_have_memory = !file_.format.starts_with("ascend");
    if (proof == Proof::kP3) return "";
    if (proof == Proof::kP0 && !inferred_.has_shapes) return "record_shapes=True";
    if (proof < Proof::kP2 && can_have_memory && !inferred_.has_memory)
      return "profile_memory=True";
    return "tensor ids: opfuse record or an ExecutionTraceObserver";
  }

  // The innermost frame outside of torch.
  std::string source_of(NodeId node) const {
    const std::vector<int32_t>& stack = graph().nodes[node].positions;
    for (int32_t frame : stack) {
      const graph::Position& p = graph().positions[frame];
      if (p.file.empty() || p.file.starts_with("torch/") ||
          p.file.find("/torch/") != std::string::npos || p.function.starts_with("<built-in"))
        continue;
      return fmt::format("{}:{} {}", p.file, p.line, p.function);
    }
    return "";
  }

  // The weakest edge that makes the chain: those between its operators, and those of an input that
  // is read at several places and must be one value. Which value a single input is does not matter.
  Proof proof_of(const match::Match& match) const {
    const std::set<NodeId> inside(match.nodes.begin(), match.nodes.end());
    const std::set<ValueId> inputs(match.inputs.begin(), match.inputs.end());
    std::map<ValueId, std::pair<int, Proof>> reads;  // of inputs: how often, the weakest edge
    Proof weakest = Proof::kP3;
    for (NodeId node : match.nodes)
      for (const graph::Input& input : graph().nodes[node].inputs)
        for (ValueId value : input.values) {
          if (value == kNone || (graph().values[value].meta.flags & trace::kWrappedNumber))
            continue;
          if (inside.contains(graph().values[value].producer)) {
            weakest = std::min(weakest, input.proof);
          } else if (inputs.contains(value)) {
            auto& [count, proof] = reads.try_emplace(value, 0, Proof::kP3).first->second;
            ++count;
            proof = std::min(proof, input.proof);
          }
        }
    for (const auto& [value, read] : reads)
      if (read.first > 1) weakest = std::min(weakest, read.second);
    return weakest;
  }

  std::string target_of(const match::Rule& rule) const {
    const bool npu = file_.format.starts_with("ascend");
    const match::Target* best = nullptr;
    for (const match::Target& target : rule.targets)
      if (target.device == (npu ? "npu" : "") || (best == nullptr && target.device.empty()))
        best = &target;
    if (best == nullptr && !rule.targets.empty()) best = &rule.targets.front();
    if (best == nullptr) return "";
    return best->python.empty() ? best->op : best->python;
  }

  TraceFinding describe(const match::Match& match) const {
    TraceFinding finding;
    const NodeId last = match.nodes.back();
    finding.rule = match.rule->name;
    finding.target = target_of(*match.rule);
    finding.module = module_of(last);
    finding.source = source_of(last);
    finding.region = region_of(last);
    if (!match.outputs.empty() && match.outputs[0] != kNone)
      finding.shapes = shape_text(graph().values[match.outputs[0]].meta);
    for (NodeId node : match.nodes) {
      finding.operators.push_back(graph().nodes[node].op);
      finding.events.push_back(graph().nodes[node].event);
    }
    finding.conditions = match.conditions;
    if (!match.refusals.empty()) finding.refusal = match.refusals.front().reason;
    finding.calls = 1;
    finding.price = prices_.of(match);
    finding.priced = finding.price.known;
    const std::vector<NodeId> backward = backward_.of(match);
    if (!backward.empty()) {
      finding.backward_calls = 1;
      finding.backward_price = prices_.of_backward(match, backward);
    }
    finding.proof = proof_of(match);
    finding.backward = graph().nodes[last].region.flags & trace::kGraphTask;
    return finding;
  }

  static void add_price(price::Price* to, const price::Price& from) {
    to->now_ns += from.now_ns;
    to->low_ns += from.low_ns;
    to->mid_ns += from.mid_ns;
    to->high_ns += from.high_ns;
    to->launches += from.launches;
  }

  static void add_call(TraceFinding* to, const TraceFinding& from) {
    to->calls += from.calls;
    add_price(&to->price, from.price);
    to->backward_price.known =
        to->backward_calls == 0
            ? from.backward_price.known
            : to->backward_price.known && (from.backward_calls == 0 || from.backward_price.known);
    to->backward_calls += from.backward_calls;
    add_price(&to->backward_price, from.backward_price);
    to->priced = to->priced && from.priced;
    to->proof = std::min(to->proof, from.proof);
    to->matches.insert(to->matches.end(), from.matches.begin(), from.matches.end());
    to->events.insert(to->events.end(), from.events.begin(), from.events.end());
  }

  void add_findings() {
    std::map<std::vector<std::string>, TraceFinding> places, refused;
    for (size_t i = 0; i < matches_.matches.size(); ++i) {
      TraceFinding finding = describe(matches_.matches[i]);
      finding.matches = {i};
      std::vector<std::string> key = {finding.rule,   finding.module, finding.source,
                                      finding.region, finding.shapes, finding.backward ? "b" : "f",
                                      finding.refusal};
      key.insert(key.end(), finding.conditions.begin(), finding.conditions.end());
      auto& into = finding.refusal.empty() ? places : refused;
      auto [it, is_new] = into.try_emplace(key, finding);
      if (!is_new) add_call(&it->second, finding);
    }
    for (auto& [key, finding] : places) {
      finding.raised_by = raised_by(finding.proof);
      report_.findings.push_back(std::move(finding));
    }
    for (auto& [key, finding] : refused) report_.refused.push_back(std::move(finding));
    for (auto* list : {&report_.findings, &report_.refused})
      std::ranges::stable_sort(*list, [](const TraceFinding& a, const TraceFinding& b) {
        return a.price.now_ns > b.price.now_ns;
      });
  }

  void add_advice() {
    const bool has_operators = !graph().nodes.empty();
    if (!has_operators)
      report_.advice.push_back(
          "the file has no operators of the host: record with activities CPU as well");
    else if (!inferred_.has_shapes)
      report_.advice.push_back("no shapes: record_shapes=True raises the proof from P0 to P1");
    if (has_operators && !inferred_.has_memory)
      report_.advice.push_back(
          "no allocation events: profile_memory=True raises the proof from P1 to P2");
    bool positions = false;
    for (const graph::Node& node : graph().nodes) positions = positions || !node.positions.empty();
    if (has_operators && !positions)
      report_.advice.push_back("no Python frames: with_stack=True names modules and sources");
    if (calls_.graph_launches > 0)
      report_.advice.push_back(fmt::format(
          "{} launches are captured graphs: the operators inside them are not in the file",
          calls_.graph_launches));
  }

  const trace::TraceFile& file_;
  const trace::Calls& calls_;
  const trace::EventTable& table_;
  const graph::InferredGraph& inferred_;
  const match::MatchReport& matches_;
  price::TracePrices prices_;
  price::BackwardNodes backward_;
  mutable std::vector<std::vector<int32_t>> kernels_of_node_;  // rows of EventTable::kernels
  TraceReport report_;
};

}  // namespace

TraceReport report_trace(const trace::TraceFile& file, const trace::Calls& calls,
                         const trace::EventTable& table, const graph::InferredGraph& inferred,
                         const match::MatchReport& matches) {
  return Reporter(file, calls, table, inferred, matches).run();
}

double possible_share(const TraceReport& report, Proof least) {
  if (report.total_ns <= 0) return 0;
  int64_t saved = 0;
  for (const TraceFinding& finding : report.findings)
    for (const price::Price& p : {finding.price, finding.backward_price})
      if (finding.priced && p.known && finding.proof >= least)
        saved += std::max<int64_t>(p.now_ns - p.mid_ns, 0);
  return static_cast<double>(saved) / static_cast<double>(report.total_ns);
}

}  // namespace opfuse::report
