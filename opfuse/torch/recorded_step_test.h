#pragma once
// Test support: records a step written in C++ and builds its graph.

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "opfuse/graph/build.h"
#include "opfuse/torch/record.h"
#include "opfuse/torch/recorder.h"

namespace opfuse::torch_bridge {

struct RecordedStep {
  std::unique_ptr<Record> record;
  graph::Graph graph;
};

inline RecordedStep record_step(const std::function<void()>& step) {
  at::set_num_threads(1);  // small tensors
  RecordedStep out;
  const Status started = start_recording({.values = true, .python_frames = false});
  if (!started.ok()) {
    ADD_FAILURE() << started.error().message;
    return out;
  }
  try {
    step();
  } catch (...) {
    abandon_recording();
    throw;
  }
  auto record = stop_recording();
  if (!record.ok()) {
    ADD_FAILURE() << record.error().message;
    return out;
  }
  out.record = std::move(record.value());
  auto graph = graph::build_graph(out.record->table, graph::SchemaTable::builtin(),
                                  &out.record->extra_schemas);
  if (graph.ok())
    out.graph = std::move(graph.value());
  else
    ADD_FAILURE() << graph.error().message;
  return out;
}

// Nodes of an operator, in order.
inline std::vector<graph::NodeId> nodes_of(const graph::Graph& graph, const std::string& op) {
  std::vector<graph::NodeId> found;
  for (size_t i = 0; i < graph.nodes.size(); ++i)
    if (graph.nodes[i].op == op) found.push_back(static_cast<graph::NodeId>(i));
  return found;
}

}  // namespace opfuse::torch_bridge
