#pragma once
// Translation validation: the observed step must equal the expected graph (rewrite::rewrite_graph
// of the original step) up to input values and shapes of the batch, order-insensitively but with
// every data dependence, write, region and attribute compared: value numbering over storages.

#include "opfuse/graph/graph.h"
#include "opfuse/verify/verdict.h"

namespace opfuse::verify {

struct ValidateOptions {
  bool ignore_shapes = false;  // variable batch: compare ranks and dtypes only
};

ValidationVerdict validate(const graph::Graph& expected, const graph::Graph& observed,
                           const ValidateOptions& options);

}  // namespace opfuse::verify
