#pragma once
// Words of the text form, shared by the printer and the parser.

#include <array>
#include <cstdint>
#include <string_view>

#include "opfuse/graph/graph.h"
#include "opfuse/trace/event_table.h"
#include "opfuse/trace/side_stream.h"

namespace opfuse::graph::text {

struct FlagName {
  uint16_t bit;
  std::string_view name;
};

constexpr std::array kRegionFlags = {
    FlagName{trace::kGradMode, "grad"},
    FlagName{trace::kInferenceMode, "inference"},
    FlagName{trace::kAutocast, "autocast"},
    FlagName{trace::kGraphTask, "graph_task"},
    FlagName{trace::kPythonMode, "python_mode"},
    FlagName{trace::kSideStream, "side_stream"},
    FlagName{trace::kSavedTensorHooks, "saved_tensor_hooks"},
    FlagName{trace::kCheckpointRecompute, "recompute"},
    FlagName{trace::kCreateGraph, "create_graph"},
    FlagName{trace::kUnfinished, "unfinished"},
    FlagName{trace::kComposite, "composite"},
    FlagName{trace::kRandom, "random"},
    FlagName{trace::kOpaqueArguments, "opaque_arguments"},
};

constexpr std::array kTensorFlags = {
    FlagName{trace::kRequiresGrad, "requires_grad"},
    FlagName{trace::kLeaf, "leaf"},
    FlagName{trace::kWrappedNumber, "wrapped"},
    FlagName{trace::kIsParameter, "parameter"},
    FlagName{trace::kHasHooks, "hooks"},
    FlagName{trace::kInference, "inference"},
    FlagName{trace::kConjOrNeg, "conj"},
    FlagName{trace::kSubclass, "subclass"},
    FlagName{trace::kExported, "exported"},
};

constexpr std::array kEscapes = {
    FlagName{kEscapesPython, "python"},          FlagName{kEscapesHook, "hook"},
    FlagName{kEscapesModuleHook, "module_hook"}, FlagName{kEscapesSaved, "saved"},
    FlagName{kEscapesExport, "export"},          FlagName{kEscapesStep, "step"},
};

// Block keywords, by ScopeKind.
constexpr std::array<std::string_view, 4> kScopeWords = {"operator", "backward", "function",
                                                         "scope"};

struct TimeUnit {
  std::string_view name;
  int64_t ns;
  int digits;
};
constexpr std::array kTimeUnits = {TimeUnit{"s", 1'000'000'000, 9}, TimeUnit{"ms", 1'000'000, 6},
                                   TimeUnit{"us", 1'000, 3}, TimeUnit{"ns", 1, 0}};

}  // namespace opfuse::graph::text
