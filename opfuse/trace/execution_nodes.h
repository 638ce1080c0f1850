#pragma once
// The nodes of an execution trace as they stand in the file. Internal to trace/.

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "opfuse/trace/json_walker.h"
#include "opfuse/trace/losses.h"

namespace opfuse::trace {

struct ExecutionNode {
  int64_t id = -1, parent = -1, sequence = -1, thread = 0, record_id = -1;
  std::string name, schema, kernel_backend;
  nlohmann::json inputs, input_shapes, input_types, input_strides;
  nlohmann::json outputs, output_shapes, output_types, output_strides;
};

class ExecutionNodes : public ObjectReader {
 public:
  ExecutionNodes(const JsonWindow* window, std::vector<ExecutionNode>* nodes)
      : window_(*window), nodes_(*nodes) {}
  Scan scan(const char** at) override;
  bool looks_like_event(const char* at) const override;

 private:
  const JsonWindow& window_;
  std::vector<ExecutionNode>& nodes_;
};

}  // namespace opfuse::trace
