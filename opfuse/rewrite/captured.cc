#include "opfuse/rewrite/captured.h"

#include <fmt/format.h>

#include <algorithm>

#include "opfuse/graph/schema.h"
#include "opfuse/graph/text.h"
#include "opfuse/rewrite/target.h"

namespace opfuse::rewrite {
namespace {

// The arguments of a target, as text, for one match.
class ArgumentTexts {
 public:
  ArgumentTexts(const graph::Graph& graph, const match::Match& match)
      : graph_(graph), match_(match), names_(match.rule->number_names()) {}

  Result<std::string> text(const std::string& argument) {
    const size_t equal = argument.find('=');
    if (equal != argument.npos && argument[0] != '"') {
      OPFUSE_TRY(const std::string value, text(argument.substr(equal + 1)));
      return argument.substr(0, equal + 1) + value;
    }
    if (argument[0] == '@') return of_operator(argument.substr(1));
    if (argument[0] == '[') return list(argument);
    const std::vector<match::RuleParameter>& parameters = match_.rule->parameters;
    const auto parameter = std::ranges::find(parameters, argument, &match::RuleParameter::name);
    if (parameter == parameters.end()) return size_or_literal(argument);
    const size_t index = parameter - parameters.begin();
    if (!parameter->is_tensor) return number(index, parameter->type == "int");
    const graph::ValueId value = match_.inputs[index];
    return value == graph::kNone ? "None" : "%" + graph_.values[value].name;
  }

  bool uses_sizes() const { return uses_sizes_; }

 private:
  Result<std::string> number(size_t index, bool whole) const {
    const auto bound = index < match_.numbers.size() ? match_.numbers[index] : std::nullopt;
    if (!bound) return Error{fmt::format("the number {} is not known", names_[index])};
    return whole ? fmt::format("{}", static_cast<int64_t>(*bound)) : fmt::format("{}", *bound);
  }

  Result<std::string> size_or_literal(const std::string& argument) {
    const auto size = std::ranges::find(names_, argument);
    if (size == names_.end()) return argument;
    uses_sizes_ = true;
    return number(size - names_.begin(), true);
  }

  // "[1, n]"
  Result<std::string> list(const std::string& argument) {
    std::string out = "[";
    size_t begin = 1;
    while (begin < argument.size() - 1) {
      const size_t end = std::min(argument.find(", ", begin), argument.size() - 1);
      OPFUSE_TRY(const std::string item, text(argument.substr(begin, end - begin)));
      out += (out.size() > 1 ? ", " : "") + item;
      begin = end + 2;
    }
    return out + "]";
  }

  // "convolution.stride": that argument of the chain's only operator aten.convolution.
  Result<std::string> of_operator(std::string name) const {
    const bool may_lack = name.ends_with('?');
    if (may_lack) name.pop_back();
    const size_t dot = name.rfind('.');
    const std::string op = "aten." + name.substr(0, dot), wanted = name.substr(dot + 1);
    std::optional<std::string> found;
    for (const graph::NodeId id : match_.nodes) {
      const graph::Node& node = graph_.nodes[id];
      if (node.op != op && !node.op.starts_with(op + ".")) continue;
      for (size_t i = 0; node.schema && i < node.inputs.size(); i++) {
        if (node.schema->arguments[i].name != wanted) continue;
        if (found) return Error{fmt::format("the chain has two operators {}", op)};
        found = graph::print_attr(node.inputs[i].attr);
      }
    }
    if (!found && may_lack) return std::string("None");
    if (!found) return Error{fmt::format("the chain has no {} of {}", wanted, op)};
    return *found;
  }

  const graph::Graph& graph_;
  const match::Match& match_;
  std::vector<std::string> names_;  // of numbers and sizes
  bool uses_sizes_ = false;
};

std::string place_of(const graph::Graph& graph, const match::Match& match) {
  for (const graph::NodeId node : match.nodes)
    if (!graph.nodes[node].positions.empty()) {
      const graph::Position& at = graph.positions[graph.nodes[node].positions.front()];
      return fmt::format("{}:{}", at.file, at.line);
    }
  return "";
}

std::string name_of(const graph::Graph& graph, graph::ValueId value) {
  return value == graph::kNone ? "" : graph.values[value].name;
}

CapturedChain chain_of(const graph::Graph& graph, const match::MatchReport& report, int index,
                       const PlanOptions& options) {
  const match::Match& match = report.matches[index];
  CapturedChain chain;
  chain.rule = match.rule->name;
  chain.domain = match.rule->domain;
  chain.place = place_of(graph, match);
  for (const graph::NodeId node : match.nodes)
    chain.nodes.push_back(
        graph.nodes[node].outputs.empty() ? "" : name_of(graph, graph.nodes[node].outputs[0]));
  for (const graph::ValueId value : match.inputs) chain.inputs.push_back(name_of(graph, value));
  for (const graph::ValueId value : match.outputs) chain.outputs.push_back(name_of(graph, value));
  match::Site site;
  site.rule = match.rule;
  site.matches = {index};
  chain.equivalence = match::Equivalence::kE0;
  auto refusal = refusal_from_matches(report, site, options, &chain.equivalence);
  const match::Target* target =
      refusal ? nullptr : choose_target(graph, report, site, options, &refusal);
  if (!target) {
    chain.refusal = refusal->reason;
    return chain;
  }
  if (target->result >= 0) {
    chain.refusal = target->op + " gives several results, of which a graph cannot take one yet";
    return chain;
  }
  chain.equivalence = std::max(chain.equivalence, target->equivalence);
  chain.target = target->op;
  chain.python = target->python;
  ArgumentTexts texts(graph, match);
  for (const std::string& argument : called_with(*target)) {
    Result<std::string> text = texts.text(argument);
    if (!text) {
      chain.refusal = text.error().message;
      return chain;
    }
    chain.arguments.push_back(std::move(*text));
  }
  chain.uses_sizes = texts.uses_sizes();
  return chain;
}

}  // namespace

match::Rulebook captured_rulebook(match::Rulebook rulebook) {
  for (match::Rule& rule : rulebook.rules)
    for (match::Target& target : rule.targets)
      if (!target.graph.empty()) {
        target.python = target.graph;
        target.python_arguments = target.graph_arguments;
      }
  return rulebook;
}

std::vector<CapturedChain> captured_chains(const graph::Graph& graph,
                                           const match::MatchReport& report,
                                           const PlanOptions& options) {
  std::vector<CapturedChain> chains;
  for (size_t i = 0; i < report.matches.size(); i++)
    chains.push_back(chain_of(graph, report, static_cast<int>(i), options));
  return chains;
}

}  // namespace opfuse::rewrite
