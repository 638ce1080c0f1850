#pragma once
// What Python's ast and the live interpreter say about one site; collected by
// python/opfuse/source.py, decided on here. Spans are UTF-8 byte offsets into the file's text. All
// questions that Python could not answer stay at their "not proved" default, and the edit is
// refused. BORDER: python -> rewrite (JSON object per site, field names as below).

#include <cstdint>
#include <string>
#include <vector>

#include "opfuse/base/result.h"

namespace opfuse::rewrite {

struct Span {
  int64_t begin = -1, end = -1;
};

// A name or attribute that the span reads.
struct ReadFact {
  std::string text;  // "x", "self.x", "torch.sigmoid", "F"
  std::string kind;  // "local", "global", "builtin", "closure", "module_member", "property",
                     // "attribute", "other"
  std::string
      resolves_to;  // for callables and modules: "torch.sigmoid", "torch.nn.functional"; else ""
  int count = 0;    // reads inside the span
  bool rebound_inside = false;  // walrus or nested scope binds it within the span
};

// One AST operation inside the span (call, operator) and what it resolves to.
struct OperationFact {
  Span span;
  std::string callee;  // resolved: "torch.sigmoid", "operator.mul", "Tensor.sigmoid",
                       // "Function.apply:<class>", "module:torch.nn.modules.activation.Sigmoid",
                       // "unknown:<text>"
  // "read:x", "op:<index>", "op:<index>.<result>" where its results were bound to several names,
  // "tensors:op:0,read:x", "const:1.702", "const:True", "const:'tanh'", "list:-1,-2",
  // "dtype:float32", "dtypeof:read:x"; "expr:2:f(x)": an expression beside the chain, the second in
  // the order of evaluation; "expr": any expression, evaluated once in the original order (argument
  // of a Function's apply only); "other": anything else. By keyword: "keepdim=const:True".
  std::vector<std::string> arguments;
};

struct SiteFacts {
  int site = -1;
  std::string file;  // absolute path
  std::string text;  // the whole file as the interpreter compiled it (UTF-8)
  std::string sha256;
  std::string module;    // "efficientnet_pytorch.utils"
  std::string qualname;  // "MemoryEfficientSwish.forward"
  int32_t line = -1;
  Span span;                 // expression to replace
  std::string span_kind;     // "function_apply", "expression", "statements"; "" when there is none
  std::string span_problem;  // why the chain is not one contiguous span; "" when it is
  Span first_statement;      // "statements": the statement(s) before it that the edit removes
  std::vector<ReadFact> reads;
  std::vector<OperationFact> operations;  // in evaluation order
  int64_t import_offset = -1;  // where a new import line goes: after the last top-level import
  std::vector<std::string>
      argument_sources;  // source text of the target's tensor arguments, in order

  std::string installed_package;  // distribution name when the file lies in site-packages, else ""
  std::string installed_version;
  bool source_matches = false;  // compiling the file gives the running code object
  std::string source_problem;   // why not: "changed since it was imported", "is missing"
  bool has_positions = false;
  int functions_found = 0;  // function objects that hold the code (gc.get_referrers)
  bool is_generator = false, is_coroutine = false, is_module_level = false, is_nested = false;
  bool running_now = false;           // the code is on some thread's stack or suspended
  bool scripted_or_compiled = false;  // torch.jit.script or torch.compile holds it
  bool opted_out = false;             // "# opfuse: off" on a line of the span
  bool uses_frame_magic = false;      // locals(), eval, exec, sys._getframe in the function
  std::vector<std::string>
      kept_names;  // inner values that Python keeps: "self.last = s", "return s", …
  std::vector<std::string> hook_notes;  // hooks on modules or tensors of the chain
  std::vector<std::string>
      module_aliases;  // globals bound to torch / torch.nn.functional: "F=torch.nn.functional"
  std::vector<std::string> module_globals;  // all global names, to choose a free one

  // A custom autograd.Function that is the chain:
  std::string function_class;  // qualified name
  bool function_straight_line =
      false;                     // forward and backward: straight-line source, fully accounted for
  std::string function_problem;  // why not, when false
  bool function_has_jvp = false, function_has_vmap = false, function_once_differentiable = false;
  bool function_subclassed = false;  // __call__/apply overridden
};

Result<SiteFacts> parse_facts(std::string_view json);

}  // namespace opfuse::rewrite
