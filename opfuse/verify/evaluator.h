#pragma once
// What verify/ needs of a tensor library: run a Graph on the values of a record. Implemented by
// opfuse/torch over ATen; a small reference one lives in the tests.

#include <memory>
#include <string>
#include <vector>

#include "opfuse/base/result.h"
#include "opfuse/base/tensor_view.h"
#include "opfuse/graph/graph.h"

namespace opfuse::verify {

struct ReplayOptions {
  bool f64 = false;        // raise every floating value, cast and dtype argument to f64
  bool magnitude = false;  // S: sums and differences become sums of absolute values (implies f64)
  int perturb_seed = 0;    // != 0: externals moved by +-1 ulp of the replay's dtype
  bool check_hashes = false;    // compare every hash of the record (only with f64 = false)
  bool recorded_random = true;  // random results from the record instead of the generator
  // Parameters of four dimensions, their gradients and state lie in channels_last, and each result
  // where its operator puts it instead of where the record says.
  bool channels_last = false;
  std::vector<graph::ValueId> keep = {};  // values to return
};

// Kept values and what was noticed. Views stay valid while it lives.
class Evaluation {
 public:
  virtual ~Evaluation() = default;
  virtual Result<TensorView> value(graph::ValueId id) const = 0;
  int64_t values_checked = 0, values_wrong = 0;
  std::string first_wrong;
  std::vector<std::string> cut_points;
  double seconds = 0;
};

class Evaluator {
 public:
  virtual ~Evaluator() = default;
  virtual Result<std::unique_ptr<Evaluation>> replay(const graph::Graph& graph,
                                                     const ReplayOptions& options) = 0;
};

}  // namespace opfuse::verify
