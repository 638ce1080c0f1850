#pragma once
// Plan: non-overlapping replacements with mechanism and expected gain; serialised as plan.json;
// hashable, so that ranks can agree on it and a later run can apply it.
// BORDER: rewrite -> verify, report, python.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "opfuse/base/result.h"
#include "opfuse/graph/graph.h"
#include "opfuse/match/match.h"
#include "opfuse/rewrite/facts.h"

namespace opfuse::rewrite {

// One span of one file. `memory_text` is what runs here (operator bound to a free global name, same
// number of lines); `source_text` is what the diff contains.
// An added import line is an edit of an empty span whose memory_text is empty.
struct SourceEdit {
  std::string file, sha256;
  Span span;
  std::string old_text, memory_text, source_text;
};

struct Replacement {
  int site = -1;
  std::string rule, target;   // "silu", "aten.silu"
  std::string python_target;  // "torch.nn.functional.silu": what runs here
  std::string source_target;  // what the diff calls; another one when it is for a vendor's device
  match::Equivalence equivalence = match::Equivalence::kE1;
  std::string domain;  // "" total
  std::string mechanism = "source";
  std::string module, qualname, file;
  std::string package, package_version;  // of an installed file: edited in memory only
  int32_t line = -1;
  int calls = 0;
  std::vector<SourceEdit> edits;
  std::vector<std::string> imports;  // lines the diff adds: "import torch.nn.functional as F"
  std::string global_name;           // name bound in the module's globals in memory
  bool verified = true;              // false: for a device that is not here
};

struct RefusedSite {
  int site = -1;
  match::Refusal refusal;
};

struct Plan {
  int version = 1;
  std::vector<Replacement> replacements;
  std::vector<RefusedSite> refused;
};

struct PlanOptions {
  std::string device = "cpu";  // picks the target
  std::string target_vendor;   // "torch_npu": write the diff for that vendor, not verified here
  bool strict = false;         // only total targets
  bool own_operators = false;  // those of opfuse.functional may be put in: asked for, and built
  // Versions of the packages that are imported here: {"torch_npu", "2.13.0"}.
  std::map<std::string, std::string> packages;
  match::Equivalence allow = match::Equivalence::kE1;
};

// Legality from the facts, then the edits. One SiteFacts per site that is still legal.
Plan make_plan(const graph::Graph& graph, const match::MatchReport& report,
               const std::vector<match::Site>& sites, const std::vector<SiteFacts>& facts,
               const PlanOptions& options);

std::string plan_to_json(const Plan& plan);
Result<Plan> plan_from_json(std::string_view json);
// 16 hex digits over everything that decides what runs.
std::string plan_hash(const Plan& plan);

// Applies the edits of one file to its text. `memory` picks memory_text, else source_text +
// imports.
Result<std::string> apply_edits(std::string_view text, const Plan& plan, std::string_view file,
                                bool memory);
// A module to import instead of a diff, for the replacements in installed packages: checks version
// and hash of the installed file, then makes the same edit in memory. "" when there is none.
std::string patch_module(const Plan& plan);

// Unified diff with a/ b/ paths, `path` relative to the root, as `git apply` takes it. "" when
// equal.
std::string unified_diff(std::string_view path, std::string_view before, std::string_view after);

// What one call of a target runs here, as operators: made by running it (opfuse/torch/), because
// which kernels an operator calls is the framework's business.
struct TargetTrace {
  graph::Graph graph;
  std::vector<graph::NodeId> forward, backward;
  std::vector<graph::ValueId> inputs;  // by parameter; kNone where it is absent or a number
  std::vector<graph::ValueId> outputs;
  graph::ValueId cotangent = graph::kNone;
  std::vector<graph::ValueId> gradients;  // by parameter; kNone where none is made
  std::shared_ptr<const void> schemas;    // what Node::schema of the graph points into
};

struct MatchTrace {
  std::shared_ptr<const TargetTrace> target;
  // By parameter: the values of the graph to rewrite that sum up to its gradient.
  std::vector<std::vector<graph::ValueId>> contributions;
};
using MatchTraces = std::map<int, MatchTrace>;  // by index into MatchReport::matches

// The graph that the step must become when the plan runs: each planned match's forward chain
// replaced by the target, its backward chain by the target's backward. Matches without a trace have
// one input, one result and a target whose rule names its backward operator.
graph::Graph rewrite_graph(const graph::Graph& graph, const match::MatchReport& report,
                           const std::vector<match::Site>& sites, const Plan& plan,
                           const MatchTraces& traces = {});

}  // namespace opfuse::rewrite
