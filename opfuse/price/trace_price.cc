#include "opfuse/price/trace_price.h"

#include <algorithm>
#include <bit>
#include <set>

#include "opfuse/base/dtype.h"
#include "opfuse/trace/event_table.h"

namespace opfuse::price {
namespace {

using graph::kNone;
using graph::Node;
using graph::ValueId;

int64_t bytes_of(const graph::TensorMeta& meta) {
  if (!meta.shape_known || meta.dtype == DType::kUnknown) return -1;
  return meta.numel() * dtype_size(meta.dtype);
}

size_t bucket_of(int64_t bytes) {
  return static_cast<size_t>(std::bit_width(static_cast<uint64_t>(bytes)));
}

// Distinct tensors read and written, or -1 where one is not known.
int64_t moved_bytes(const graph::Graph& graph, const std::set<ValueId>& values) {
  int64_t sum = 0;
  for (ValueId value : values) {
    if (graph.values[value].meta.flags & trace::kWrappedNumber) continue;
    const int64_t bytes = bytes_of(graph.values[value].meta);
    if (bytes < 0) return -1;
    sum += bytes;
  }
  return sum;
}

int64_t node_bytes(const graph::Graph& graph, const Node& node) {
  std::set<ValueId> values;
  for (const graph::Input& input : node.inputs)
    for (ValueId value : input.values)
      if (value != kNone) values.insert(value);
  for (ValueId value : node.outputs)
    if (value != kNone) values.insert(value);
  return moved_bytes(graph, values);
}

double quantile(const std::vector<double>& sorted, double share) {
  return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1) + 0.5)];
}

}  // namespace

TracePrices::TracePrices(const graph::InferredGraph& inferred) : inferred_(inferred) {
  const graph::Graph& graph = inferred.graph;
  std::vector<double> times;
  const bool on_device = std::ranges::any_of(inferred.kernels, [](int32_t n) { return n > 0; });
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (node.schema == nullptr || !node.schema->pointwise || node.dur_ns <= 0) continue;
    if (on_device && inferred.kernels[i] != 1) continue;
    times.push_back(static_cast<double>(node.dur_ns));
    const int64_t bytes = node_bytes(graph, node);
    if (bytes > 0)
      rates_[bucket_of(bytes)].push_back(static_cast<double>(bytes) /
                                         static_cast<double>(node.dur_ns));
  }
  for (std::vector<double>& rates : rates_) std::ranges::sort(rates);
  std::ranges::sort(times);
  if (!times.empty()) shortest_ns_ = static_cast<int64_t>(quantile(times, 0.05));
}

Price TracePrices::of(const match::Match& match) const {
  const graph::Graph& graph = inferred_.graph;
  Price price;
  for (graph::NodeId node : match.nodes) {
    price.now_ns += std::max<int64_t>(graph.nodes[node].dur_ns, 0);
    price.launches += inferred_.kernels[node];
  }
  std::set<ValueId> values;
  for (ValueId value : match.inputs)
    if (value != kNone) values.insert(value);
  for (ValueId value : match.outputs)
    if (value != kNone) values.insert(value);
  price.bytes = moved_bytes(graph, values);
  predict(&price);
  return price;
}

Price TracePrices::of_backward(const match::Match& match,
                               const std::vector<graph::NodeId>& nodes) const {
  const graph::Graph& graph = inferred_.graph;
  Price price;
  for (graph::NodeId node : nodes) {
    price.now_ns += std::max<int64_t>(graph.nodes[node].dur_ns, 0);
    price.launches += inferred_.kernels[node];
  }
  std::set<ValueId> inputs, outputs;
  for (ValueId value : match.inputs)
    if (value != kNone) inputs.insert(value);
  for (ValueId value : match.outputs)
    if (value != kNone) outputs.insert(value);
  const int64_t read = moved_bytes(graph, inputs), written = moved_bytes(graph, outputs);
  if (nodes.empty() || read < 0 || written < 0) return price;
  price.bytes = written + 2 * read;
  predict(&price);
  return price;
}

void TracePrices::predict(Price* made) const {
  Price& price = *made;
  if (price.bytes <= 0) return;
  // The nearest size that this trace has kernels of.
  const size_t wanted = bucket_of(price.bytes);
  const std::vector<double>* rates = nullptr;
  for (size_t away = 0; away < rates_.size() && rates == nullptr; ++away)
    for (const size_t at : {wanted - away, wanted + away})
      if (at < rates_.size() && !rates_[at].empty() && rates == nullptr) rates = &rates_[at];
  if (rates == nullptr) return;
  const auto time_at = [&](double share) {
    const auto ns =
        static_cast<int64_t>(static_cast<double>(price.bytes) / quantile(*rates, share));
    return std::min(std::max(ns, shortest_ns_), price.now_ns);
  };
  price.low_ns = time_at(1.0);
  price.mid_ns = time_at(0.75);
  price.high_ns = time_at(0.25);
  price.known = true;
}

}  // namespace opfuse::price
