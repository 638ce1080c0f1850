#include "opfuse/torch/session_json.h"

#include <algorithm>
#include <map>
#include <set>

#include "opfuse/base/dtype.h"
#include "opfuse/match/words.h"
#include "opfuse/report/candidates.h"
#include "opfuse/torch/host_memory.h"

namespace opfuse::torch_bridge {
namespace {

Json position_json(const graph::Position& p) {
  return {{"file", p.file},     {"function", p.function}, {"line", p.line},
          {"column", p.column}, {"end_line", p.end_line}, {"end_column", p.end_column},
          {"code", p.code}};
}

Json stack_json(const graph::Graph& graph, const std::vector<int32_t>& rows) {
  Json stack = Json::array();
  for (int32_t row : rows) stack.push_back(position_json(graph.positions[row]));
  return stack;
}

// The innermost frame outside torch's own files: where a user looks.
const graph::Position* user_position(const graph::Graph& graph, const std::vector<int32_t>& rows) {
  for (int32_t row : rows) {
    const graph::Position& p = graph.positions[row];
    if (p.file.find("/torch/") == std::string::npos && !p.file.empty() && p.file[0] != '<')
      return &p;
  }
  return rows.empty() ? nullptr : &graph.positions[rows.front()];
}

Json operators_json(const graph::Graph& graph, const std::vector<graph::NodeId>& nodes) {
  Json operators = Json::array();
  for (graph::NodeId id : nodes) {
    const graph::Node& node = graph.nodes[id];
    const graph::Position* p = user_position(graph, node.positions);
    operators.push_back(
        {{"op", node.op}, {"line", p ? p->line : -1}, {"column", p ? p->column : -1}});
  }
  return operators;
}

Json operations_json(const graph::Graph& graph, const std::vector<graph::NodeId>& nodes) {
  Json operations = Json::array();
  for (graph::NodeId id : nodes)
    operations.push_back(
        {{"op", graph.nodes[id].op}, {"stack", stack_json(graph, graph.nodes[id].positions)}});
  return operations;
}

std::string shape_text(const graph::TensorMeta& meta) {
  std::string text(dtype_name(meta.dtype));
  text += '[';
  for (size_t i = 0; i < meta.shape.size(); ++i)
    text += (i ? "," : "") + std::to_string(meta.shape[i]);
  return text + (meta.shape_known ? "]" : "?]");
}

Json shapes_json(const Analysis& analysis, const match::Site& site) {
  std::map<std::string, int> counts;
  for (int index : site.matches) {
    const match::Match& match = analysis.report.matches[index];
    if (!match.inputs.empty() && match.inputs[0] >= 0)
      ++counts[shape_text(analysis.graph.values[match.inputs[0]].meta)];
  }
  return counts;
}

std::string short_op(const std::string& op) {
  std::string text = op.starts_with("aten.") ? op.substr(5) : op;
  return text.substr(0, text.find('.'));
}

std::string chain_text(const graph::Graph& graph, const match::Match& match) {
  std::string text;
  for (graph::NodeId id : match.nodes)
    text += (text.empty() ? "" : ", ") + short_op(graph.nodes[id].op);
  return text;
}

Json refusal_json(const graph::Graph& graph, const match::Refusal& refusal) {
  std::string node;
  if (refusal.node >= 0) {
    const graph::Node& at = graph.nodes[refusal.node];
    node = at.op;
    if (const graph::Position* p = user_position(graph, at.positions))
      node += " at " + p->file + ":" + std::to_string(p->line);
  }
  return {{"row", refusal.row}, {"reason", refusal.reason}, {"node", node}};
}

Json site_json(const Analysis& analysis, const match::Site& site) {
  const graph::Graph& graph = analysis.graph;
  const match::Match& first = analysis.report.matches[site.matches.front()];
  const graph::Node& last = graph.nodes[first.nodes.back()];
  const graph::Position* chain = user_position(graph, last.positions);
  Json refusals = Json::array();
  for (int index : site.matches)
    for (const auto& refusal : analysis.report.matches[index].refusals)
      refusals.push_back(refusal_json(graph, refusal));
  Json json = {{"id", site.id},
               {"rule", site.rule->name},
               {"calls", site.matches.size()},
               {"function_class", site.function_class},
               {"equivalence", std::string(match::equivalence_name(first.equivalence))},
               {"canonical_rows", first.canonical_rows},
               {"domain", site.rule->domain},
               {"forward_ms", static_cast<double>(site.forward_ns) / 1e6},
               {"backward_ms", static_cast<double>(site.backward_ns) / 1e6},
               {"backward_complete", first.backward.nodes.empty() || first.backward.complete},
               {"now", chain_text(graph, first)},
               {"operators", operators_json(graph, first.nodes)},
               {"backward_operators", operators_json(graph, first.backward.nodes)},
               {"stack", stack_json(graph, site.positions)},
               {"operations", operations_json(graph, first.nodes)},
               {"backward_operations", operations_json(graph, first.backward.nodes)},
               {"shapes", shapes_json(analysis, site)},
               {"refusals", refusals},
               {"refusal", refusals.empty() ? Json() : refusals.front()},
               {"status", refusals.empty() ? "found" : "refused"}};
  if (chain) {
    json["file"] = json["chain_file"] = chain->file;
    json["line"] = json["chain_line"] = chain->line;
    json["chain_columns"] = {chain->column, chain->end_column};
  }
  return json;
}

const rewrite::Replacement* planned(const rewrite::Plan& plan, int site) {
  for (const auto& replacement : plan.replacements)
    if (replacement.site == site) return &replacement;
  return nullptr;
}

Json errors_json(const std::vector<verify::TensorError>& errors) {
  Json list = Json::array();
  for (const auto& e : errors)
    list.push_back({{"what", e.what},
                    {"elements", e.elements},
                    {"same_function", e.same_function},
                    {"error_old", e.error_old},
                    {"error_new", e.error_new},
                    {"excess", e.excess},
                    {"nonfinite_differences", e.nonfinite_differences}});
  return list;
}

Json interval_json(const verify::RatioInterval& interval) {
  return {{"ratio", interval.ratio},
          {"low", interval.low},
          {"high", interval.high},
          {"pairs", interval.pairs}};
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const size_t middle = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + middle, values.end());
  return values[middle];
}

// Where the chains run; "" where none was found.
std::string device_of(const Analysis& analysis) {
  if (analysis.report.matches.empty()) return "";
  const graph::ValueId first = analysis.report.matches[0].outputs[0];
  return device_name(analysis.graph.values[first].meta.device);
}

}  // namespace

Json sites_json(const Analysis& analysis) {
  Json list = Json::array();
  const std::string device = device_of(analysis);
  for (const auto& site : analysis.sites) {
    list.push_back(site_json(analysis, site));
    list.back()["found_only"] = !match::never_replaced(*site.rule, device).empty();
    const auto& targets = site.rule->targets;
    list.back()["own"] = std::any_of(targets.begin(), targets.end(), [](const auto& target) {
      return target.op.starts_with("opfuse.");
    });
  }
  return list;
}

Json near_misses_json(const Analysis& analysis) {
  // Equal places are one entry with a count.
  std::vector<Json> list;
  std::map<std::string, size_t> index;
  const std::string device = device_of(analysis);
  for (const auto& miss : analysis.report.near_misses) {
    // What only resembles a rule that replaces nothing is no news.
    if (!miss.certain && !match::never_replaced(*miss.rule, device).empty()) continue;
    const graph::NodeId at = miss.refusal.node >= 0 ? miss.refusal.node
                             : miss.nodes.empty()   ? graph::kNone
                                                    : miss.nodes.back();
    const graph::Position* p =
        at >= 0 ? user_position(analysis.graph, analysis.graph.nodes[at].positions) : nullptr;
    Json json = {{"rule", miss.rule->name},  {"reason", miss.refusal.reason},
                 {"row", miss.refusal.row},  {"file", p ? p->file : ""},
                 {"line", p ? p->line : -1}, {"column", p ? p->column : -1}};
    const std::string key = json.dump(-1, ' ', false, Json::error_handler_t::replace);
    auto [found, fresh] = index.emplace(key, list.size());
    if (!fresh) {
      list[found->second]["calls"] = list[found->second]["calls"].get<int>() + 1;
      continue;
    }
    Json operators = Json::array();
    for (graph::NodeId id : miss.nodes) operators.push_back(analysis.graph.nodes[id].op);
    json["operators"] = operators;
    json["calls"] = 1;
    list.push_back(json);
  }
  return list;
}

// The type of 16 bits in which matrix products and convolutions take longest, and how many
// milliseconds; "" where there is none.
std::pair<std::string, double> low_precision_of(const graph::Graph& graph) {
  static const std::set<std::string_view> products = {
      "aten.mm",           "aten.addmm",  "aten.bmm",         "aten.baddbmm",
      "aten.linear",       "aten.matmul", "aten.convolution", "aten.convolution_backward",
      "aten.mkldnn_linear"};
  std::map<std::string, double> ms;
  for (const graph::Node& node : graph.nodes) {
    if (node.dur_ns <= 0 || node.outputs.empty() || node.outputs[0] == graph::kNone) continue;
    const std::string_view op = node.op;
    if (!products.count(op.substr(0, op.find('.', op.find('.') + 1)))) continue;
    const DType dtype = graph.values[node.outputs[0]].meta.dtype;
    if (dtype == DType::kBF16 || dtype == DType::kF16)
      ms[std::string(dtype_name(dtype))] += static_cast<double>(node.dur_ns) / 1e6;
  }
  const auto longest = std::max_element(
      ms.begin(), ms.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (longest == ms.end()) return {};
  return {longest->first, longest->second};
}

Json candidates_json(const Analysis& analysis) {
  const auto chains = match::find_candidates(analysis.graph, analysis.report,
                                             {.least_share = report::kLeastCandidateShare});
  Json list = Json::array();
  for (const report::Candidate& one : report::candidates_of(analysis.graph, chains))
    list.push_back({{"operators", one.operators},
                    {"file", one.file},
                    {"line", one.line},
                    {"calls", one.calls},
                    {"bytes_saved", one.bytes_saved},
                    {"ms", one.ms},
                    {"share", one.share},
                    {"backward", one.backward}});
  return list;
}

static void add_replacement(const rewrite::Replacement& r, Json* site) {
  (*site)["status"] = "planned";
  (*site)["file"] = r.file;
  (*site)["line"] = r.line;
  (*site)["target"] = r.target;
  (*site)["domain"] = r.domain;
  (*site)["function"] = r.qualname;
  if (r.edits.empty()) return;
  (*site)["source_now"] = r.edits.back().old_text;
  (*site)["becomes"] = r.edits.back().source_text;
}

Json planned_sites_json(const rewrite::Plan& plan) {
  Json list = Json::array();
  for (const auto& replacement : plan.replacements) {
    Json site = {{"id", replacement.site},
                 {"rule", replacement.rule},
                 {"calls", replacement.calls},
                 {"equivalence", std::string(match::equivalence_name(replacement.equivalence))}};
    add_replacement(replacement, &site);
    site["now"] = site.value("source_now", "");
    list.push_back(std::move(site));
  }
  return list;
}

Json planned_sites_json(const Analysis& analysis, const rewrite::Plan& plan) {
  Json list = sites_json(analysis);
  for (auto& json : list) {
    const int id = json["id"].get<int>();
    if (const rewrite::Replacement* r = planned(plan, id)) add_replacement(*r, &json);
    for (const auto& refused : plan.refused)
      if (refused.site == id) {
        json["status"] = "refused";
        json["refusal"] = refusal_json(analysis.graph, refused.refusal);
      }
  }
  return list;
}

Json site_verdict_json(const verify::SiteVerdict& v) {
  return {{"site", v.site},
          {"accepted", v.accepted},
          {"reason", v.reason},
          {"input_set", v.input_set},
          {"captured", errors_json(v.captured)},
          {"generated", errors_json(v.generated)},
          {"captured_calls", v.captured_calls},
          {"generated_cases", v.generated_cases}};
}

Json step_verdict_json(const verify::StepVerdict& v) {
  return {{"replayed_exactly", v.replayed_exactly},
          {"values_checked", v.values_checked},
          {"values_wrong", v.values_wrong},
          {"first_wrong", v.first_wrong},
          {"cut_points", v.cut_points},
          {"fp64_floors", v.fp64_floors},
          {"run_floors", v.run_floors},
          {"floor_replays", v.floor_replays},
          {"worst_tensor", v.worst_tensor},
          {"gradient_error_old", v.gradient_error_old},
          {"gradient_error_new", v.gradient_error_new},
          {"accepted", v.accepted},
          {"reason", v.reason}};
}

Json validation_json(const verify::ValidationVerdict& v) {
  return {{"accepted", v.accepted},
          {"operators_equal", v.operators_equal},
          {"sites_replaced", v.sites_replaced},
          {"backward_replaced", v.backward_replaced},
          {"reason", v.reason},
          {"attempts", v.attempts}};
}

std::string phase_name(verify::AbPhase phase) {
  switch (phase) {
    case verify::AbPhase::kChoosing:
      return "choosing";
    case verify::AbPhase::kHeadline:
      return "headline";
    case verify::AbPhase::kDone:
      return "done";
  }
  return "";
}

std::string outcome_name(verify::AbOutcome outcome) {
  switch (outcome) {
    case verify::AbOutcome::kRunning:
      return "running";
    case verify::AbOutcome::kTuned:
      return "tuned";
    case verify::AbOutcome::kNotFaster:
      return "not_faster";
    case verify::AbOutcome::kUndecided:
      return "undecided";
  }
  return "";
}

Json ab_json(const verify::AbTest& test, const std::vector<verify::StepSample>& samples) {
  std::vector<double> sides[2];
  for (const auto& sample : samples) sides[sample.replaced ? 1 : 0].push_back(sample.wall_s);
  return {{"phase", phase_name(test.phase())},
          {"outcome", outcome_name(test.outcome())},
          {"choosing", interval_json(test.choosing_wall())},
          {"headline_wall", interval_json(test.headline_wall())},
          {"headline_cpu", interval_json(test.headline_cpu())},
          {"old_step_s", median(sides[0])},
          {"new_step_s", median(sides[1])},
          {"counted_steps", test.counted_steps()}};
}

std::string site_key(const Analysis& analysis, const match::Site& site) {
  std::string key = site.rule->name + "|" + site.function_class;
  const match::Match& first = analysis.report.matches[site.matches.front()];
  for (graph::NodeId id : first.nodes) {
    key += "|" + analysis.graph.nodes[id].op;
    if (const graph::Position* p =
            user_position(analysis.graph, analysis.graph.nodes[id].positions))
      key += "@" + p->file + ":" + std::to_string(p->line) + ":" + std::to_string(p->column);
  }
  for (int32_t row : site.positions) {
    const graph::Position& p = analysis.graph.positions[row];
    key += "<" + p.file + ":" + std::to_string(p.line) + ":" + std::to_string(p.column);
  }
  return key;
}

}  // namespace opfuse::torch_bridge
