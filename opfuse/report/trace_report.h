#pragma once
// What was found in a trace file: chains by share of time with their proof level, what is fused
// already, where the time goes, and what of the file could not be used. Behind the terminal text
// and the JSON of `opfuse analyze`. Every time of an expected operator is predicted.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "opfuse/graph/infer.h"
#include "opfuse/match/match.h"
#include "opfuse/price/trace_price.h"
#include "opfuse/report/report.h"
#include "opfuse/trace/calls.h"
#include "opfuse/trace/event_table.h"
#include "opfuse/trace/trace_file.h"

namespace opfuse::report {

struct Range {
  int64_t low = 0, mid = 0, high = 0;
};

// The recorded time played again (price/step_replay.h), and with every finding replaced.
struct StepPrediction {
  int64_t recorded_ns = 0, replayed_ns = 0;
  double error = 0;  // of playing it as recorded; ranges are widened by it above 3 %
  int64_t host_alone_ns = 0, device_alone_ns = 0;
  Range gain_ns;               // of all findings together
  int64_t before_file_ns = 0;  // of the recorded time: a stream was busy with earlier work
  bool known = false, has_host = false;
};

// Calls of one rule at one place with the same shapes.
struct TraceFinding {
  std::string rule, target;             // "silu", "torch.nn.functional.silu"
  std::string module, source;           // "SiLU", "utils.py:67 forward"; "" unknown
  std::string region;                   // the innermost record_function range around it; "" none
  std::string shapes;                   // of the first output: "bf16[1,5185,4096]"
  std::vector<std::string> operators;   // "aten.mul.Tensor"
  std::vector<std::string> conditions;  // "if the constant is 1.702"
  std::string refusal;                  // why it cannot be replaced, as far as the graph shows
  int64_t calls = 0;
  price::Price price;  // summed over the calls
  bool priced = false;
  int64_t backward_calls = 0;   // of the calls: those whose backward is in the trace
  price::Price backward_price;  // of their backward operators, where that is known
  Range step_gain_ns;  // predicted, of this finding alone; all 0 where nothing is predicted
  graph::Proof proof = graph::Proof::kP3;  // the weakest edge inside the chain
  std::string raised_by;  // what would prove more: "profile_memory=True"; "" nothing does
  bool backward = false;
  std::vector<int32_t> events;  // rows of the EventTable, of all calls, for marks
  std::vector<size_t> matches;  // rows of MatchReport::matches
};

struct OperatorTime {
  std::string name;
  int64_t calls = 0, time_ns = 0;
};

struct TraceReport {
  std::string path, format, device;
  int64_t events = 0, bytes = 0;
  int32_t rank = -1;
  int64_t span_ns = 0;   // first to last event of the host or the device
  int64_t total_ns = 0;  // time that shares are of: device work, else operators
  bool on_device = false;
  int64_t kernels = 0, orphan_kernels = 0, orphan_ns = 0, graph_launches = 0;
  double busy_share = -1;        // of the device's span with work on any stream; -1: no device
  int64_t median_queue_ns = -1;  // from a launch's start to its kernel's start; -1: no launches
  std::string bound;             // "device", "host", "host and device" or "" (not known)
  StepPrediction step;
  int64_t by_operator_ns = 0, by_kernel_ns = 0;  // conservation: equal but for orphans
  std::vector<int64_t> steps;
  std::vector<TraceFinding> findings;  // by time now, largest first
  std::vector<TraceFinding> refused;
  std::vector<Candidate> candidates;    // chains that no rule knows, the largest first
  std::vector<OperatorTime> operators;  // by time, largest first
  std::vector<OperatorTime> fused;      // fused operators that the trace has already
  std::array<int64_t, 4> edges{};       // by Proof
  std::vector<std::string> advice;      // what would raise the proof
  trace::LossLog losses;
};

TraceReport report_trace(const trace::TraceFile& file, const trace::Calls& calls,
                         const trace::EventTable& table, const graph::InferredGraph& inferred,
                         const match::MatchReport& matches);

struct TraceTextOptions {
  size_t top = 10;
  bool color = false;
};
std::string trace_text(const TraceReport& report, const TraceTextOptions& options);
// Chains over several traces, such as ranks: calls and time of each, from the least to the most.
std::string traces_text(const std::vector<TraceReport>& reports, size_t top);
std::string trace_json(const TraceReport& report);

// Share of `total_ns` that the findings of this proof level or a better one could save (mid), 0
// where it is not known.
double possible_share(const TraceReport& report, graph::Proof least = graph::Proof::kP0);

}  // namespace opfuse::report
