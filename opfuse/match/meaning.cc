#include "opfuse/match/meaning.h"

#include <algorithm>
#include <cmath>
#include <random>

#include <fmt/format.h>

#include "opfuse/graph/schema.h"
#include "opfuse/match/rule_functions.h"

namespace opfuse::match {
namespace {

using graph::Array;
using graph::Arrays;
using graph::Graph;
using graph::kNone;
using graph::Node;
using graph::ValueId;

double number_for(const RuleParameter& parameter) {
  if (parameter.type == "int") return -1;  // a dimension
  return parameter.type == "bool" ? 0 : 0.3;
}

std::vector<int64_t> shape_of(const TensorType& type, bool first, const NumberBindings& numbers) {
  using Kind = Dimension::Kind;
  if (!type.has_shape) return {3, 4};
  std::vector<int64_t> shape;
  for (const Dimension& one : type.shape) {
    if (one.kind == Kind::kRest) shape.insert(shape.end(), {2, 2});
    if (one.kind == Kind::kAnyRest) shape.insert(shape.end(), 2, 1);  // broadcast to the first
    if (one.kind == Kind::kAnyRest && first) shape.back() = 6;
    if (one.kind == Kind::kOnes) shape.insert(shape.end(), 2, 1);
    if (one.kind == Kind::kAny) shape.push_back(1);
    if (one.kind == Kind::kSize) shape.push_back(one.size);
    if (one.kind == Kind::kName) shape.push_back(static_cast<int64_t>(*numbers[one.name]));
  }
  return shape;
}

// The spelling with the sample's numbers in its open places.
Graph closed(const Spelling& spelling, const Sample& sample) {
  Graph graph = spelling.graph;
  const auto value = [&](std::string_view text) {
    const int hole = std::stoi(std::string(text.substr(7)));  // "number 2", "number.2"
    return *value_of(spelling.numbers[hole], sample.numbers);
  };
  for (Node& node : graph.nodes)
    for (graph::Input& input : node.inputs)
      if (auto* open = std::get_if<graph::OpaqueAttr>(&input.attr))
        if (open->type.starts_with("number ")) input.attr = value(open->type);
  for (graph::Value& external : graph.values)
    if (external.producer == kNone && external.name.starts_with("number."))
      external.meta.number = value(external.name);
  return graph;
}

}  // namespace

bool can_be_evaluated(const Graph& graph) {
  // Numbers that are sizes of inner values have no sample.
  const auto sized = [](const Node& node) { return node.op == kReshape && node.inputs.size() > 1; };
  return std::ranges::all_of(
      graph.nodes, [&](const Node& node) { return graph::can_evaluate(node.op) && !sized(node); });
}

namespace {

std::optional<double> literal(const std::string& text) {
  if (text == "True" || text == "False") return text == "True" ? 1 : 0;
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  return *end == 0 ? std::optional(number) : std::nullopt;
}

std::vector<int64_t> list(const Rule& rule, const std::string& text, const Sample& sample) {
  std::vector<int64_t> values;
  const std::vector<std::string> names = rule.number_names();
  for (size_t at = 1; at < text.size() && text[at] != ']';) {
    const size_t end = text.find_first_of(",]", at);
    const std::string word = text.substr(at, end - at);
    const auto name = std::ranges::find(names, word);
    values.push_back(static_cast<int64_t>(
        name == names.end() ? std::stod(word) : *sample.numbers[name - names.begin()]));
    at = text[end] == ',' ? end + 2 : end;
  }
  return values;
}

}  // namespace

Sample sample_of(const Rule& rule, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0, 1.5);
  Sample sample;
  sample.numbers.resize(rule.parameters.size() + rule.sizes.size());
  for (size_t i = 0; i < rule.sizes.size(); ++i)
    sample.numbers[rule.parameters.size() + i] = 2.0 * static_cast<double>(i) + 4;
  for (size_t i = 0; i < rule.parameters.size(); ++i) {
    const RuleParameter& parameter = rule.parameters[i];
    Array array;
    if (parameter.is_tensor) {
      array.shape = shape_of(parameter.tensor, i == 0, sample.numbers);
      array.data.resize(graph::element_count(array.shape));
      const DType dtype = parameter.tensor.dtype;
      const bool whole = dtype != DType::kUnknown && !is_floating(dtype);
      for (double& x : array.data) x = whole ? static_cast<double>(random() % 2) : normal(random);
    } else {
      sample.numbers[i] = number_for(parameter);
    }
    sample.arrays.push_back(std::move(array));
  }
  return sample;
}

Result<std::vector<Array>> values_of(const Rule& rule, const Spelling& spelling,
                                     const Sample& sample) {
  const Graph graph = closed(spelling, sample);
  Arrays externals;
  for (size_t i = 0; i < rule.parameters.size(); ++i)
    if (rule.parameters[i].is_tensor) externals[static_cast<ValueId>(i)] = sample.arrays[i];
  OPFUSE_TRY(Arrays values, graph::evaluate(graph, externals));
  std::vector<Array> results;
  for (ValueId result : graph.results) results.push_back(values.at(result));
  return results;
}

Result<Array> target_value(const Rule& rule, const Target& target, const Sample& sample,
                           uint32_t absent) {
  Graph graph;
  Node node;
  node.op = target.op;
  node.schema = graph::SchemaTable::builtin().find(target.op);
  Arrays externals;
  for (size_t i = 0; i < rule.parameters.size(); ++i) {
    graph.values.emplace_back();
    if (rule.parameters[i].is_tensor) externals[static_cast<ValueId>(i)] = sample.arrays[i];
  }
  for (const std::string& text : target.arguments) {
    graph::Input input;
    input.attr = graph::NoneAttr{};
    const auto parameter = std::ranges::find(rule.parameters, text, &RuleParameter::name);
    const size_t index = parameter - rule.parameters.begin();
    if (parameter == rule.parameters.end()) {
      if (text[0] == '[') input.attr = list(rule, text, sample);
      if (text[0] == '"') input.attr = text.substr(1, text.size() - 2);
      if (auto number = literal(text)) input.attr = *number;
    } else if (!parameter->is_tensor) {
      input.attr = *sample.numbers[index];
    } else if (!(absent >> index & 1)) {
      input.kind = graph::InputKind::kTensor;
      input.values = {static_cast<ValueId>(index)};
    }
    node.inputs.push_back(std::move(input));
  }
  for (size_t i = node.inputs.size(); node.schema && i < node.schema->arguments.size(); ++i) {
    graph::Input input;
    input.attr = node.schema->arguments[i].default_value;
    node.inputs.push_back(std::move(input));
  }
  const auto result = static_cast<ValueId>(graph.values.size());
  graph.values.emplace_back();
  graph.values.back().producer = 0;
  node.outputs = {result};
  graph.nodes.push_back(std::move(node));
  OPFUSE_TRY(Arrays values, graph::evaluate(graph, externals));
  return values.at(result);
}

std::string difference(const Array& a, const Array& b) {
  if (a.shape != b.shape) return "the shapes differ";
  for (size_t i = 0; i < a.data.size(); ++i) {
    const double x = a.data[i], y = b.data[i];
    if (std::isnan(x) && std::isnan(y)) continue;
    if (x == y) continue;
    // NaN and infinities compare false.
    if (!(std::abs(x - y) <= 1e-8 * (1 + std::abs(x) + std::abs(y))))
      return fmt::format("{:.9g} against {:.9g}", x, y);
  }
  return "";
}

Status check_meaning(const Rule& rule) {
  std::vector<const Spelling*> all = {&rule.composition};
  for (const Spelling& spelling : rule.spellings) all.push_back(&spelling);
  for (const Spelling& spelling : rule.alternatives) all.push_back(&spelling);
  const Sample sample = sample_of(rule, 1);
  for (const Spelling* spelling : all) {
    // Of the same optional parameters: the composition, or the alternative made of it first.
    const auto meaning = std::ranges::find(all, spelling->absent, &Spelling::absent);
    if (!can_be_evaluated((*meaning)->graph) || !can_be_evaluated(spelling->graph)) continue;
    OPFUSE_TRY(std::vector<Array> expected, values_of(rule, **meaning, sample));
    OPFUSE_TRY(std::vector<Array> found, values_of(rule, *spelling, sample));
    for (size_t i = 0; i < expected.size() && i < found.size(); ++i)
      if (std::string text = difference(expected[i], found[i]); !text.empty())
        return Error{fmt::format(
            "{}:{}:1: rule {}: expected spelling '{}' to be the function of the composition, found "
            "{}",
            rule.file, spelling->line, rule.name, spelling->name, text)};
  }
  return ok_status();
}

}  // namespace opfuse::match
