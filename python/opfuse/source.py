"""Facts about the source of each site, from files and live interpreter; and the code to run.

Python says what is there; opfuse/rewrite (C++) decides what is legal and composes the edit. A
question that cannot be answered stays at its "not proved" value, which refuses the edit.
"""

from __future__ import annotations

import ast
import gc
import importlib.metadata
import inspect
import re
import site as site_module
import sys
import sysconfig
from types import AsyncGeneratorType, CodeType, CoroutineType, FunctionType, GeneratorType
from typing import Any

from opfuse import cells
from opfuse import names as names_module
from opfuse.names import Names
from opfuse.sourcefile import (
    SourceFile,
    SourceProblem,
    absolute,
    code_named,
    codes_in,
    qualname_of,
    same_code,
)
from opfuse.spans import NoSpan, Span, find_span
from opfuse.straightline import function_facts

_OPTED_OUT = re.compile(r"#\s*opfuse:\s*off\b")
_APPLY_FILE = "torch/autograd/function.py"
_IMPORTS = (ast.Import, ast.ImportFrom)
_NO_SPAN = {"begin": -1, "end": -1}
_FRAME_READERS = {"locals", "eval", "exec", "breakpoint"}
_FRAME_ATTRIBUTES = {"_getframe", "_current_frames", "currentframe", "set_trace"}

Frame = dict[str, Any]
Facts = dict[str, Any]


class SourceRefused(RuntimeError):
    """The edited text does not give code that can take the old one's place."""


def blank_facts(site: int) -> Facts:
    """Every field of opfuse/rewrite/facts.h at the value that refuses an edit."""
    return {
        "site": site, "file": "", "text": "", "sha256": "", "module": "", "qualname": "",
        "line": -1, "span": dict(_NO_SPAN), "span_kind": "", "span_problem": "",
        "first_statement": dict(_NO_SPAN), "reads": [], "operations": [], "import_offset": -1,
        "argument_sources": [], "installed_package": "", "installed_version": "",
        "source_matches": False, "source_problem": "", "has_positions": False,
        "functions_found": 0, "is_generator": False, "is_coroutine": False,
        "is_module_level": False, "is_nested": False, "running_now": False,
        "scripted_or_compiled": False, "opted_out": False, "uses_frame_magic": False,
        "kept_names": [], "hook_notes": [], "module_aliases": [], "module_globals": [],
        "function_class": "", "function_straight_line": False, "function_problem": "",
        "function_has_jvp": False, "function_has_vmap": False,
        "function_once_differentiable": False, "function_subclassed": False,
    }  # fmt: skip


def collect_facts(sites: list[dict[str, Any]], codes: dict[int, CodeType]) -> list[Facts]:
    """One facts object for each site of `find`. Never raises: a problem becomes a fact.

    Example: `session.call("plan", record=1, facts=collect_facts(found["sites"], codes))`
    """
    files: dict[str, SourceFile | SourceProblem] = {}
    return [_facts_or_problem(site, codes, files) for site in sites]


def _facts_or_problem(site: dict[str, Any], codes: dict[int, CodeType], files: dict) -> Facts:
    facts = blank_facts(int(site["id"]))
    try:
        _fill(facts, site, codes, files)
    except NoSpan as problem:
        facts["span_problem"] = str(problem)
    except SourceProblem as problem:
        facts["source_problem"] = f"its source {problem}"
    except Exception as error:  # whatever a user's objects do when looked at
        facts.update(blank_facts(facts["site"]), file=facts["file"], qualname=facts["qualname"])
        facts["source_problem"] = (
            f"its source could not be analysed ({type(error).__name__}: {error})"
        )
    return facts


def _fill(facts: Facts, site: dict[str, Any], codes: dict[int, CodeType], files: dict) -> None:
    places = edit_frames(site)
    code = codes.get(places[0]["code"])
    if code is None:
        raise SourceProblem("is not known: its frames were not recorded")
    _fill_code(facts, code, places)
    _RUNNING[facts["file"], facts["qualname"]] = code
    function = _pick_function(code)
    if function is not None:
        facts["module"] = function.__module__ or ""
        facts["module_globals"] = sorted(n for n in function.__globals__ if isinstance(n, str))
    file = _read_file(code.co_filename, files)
    facts.update(text=file.text, sha256=file.sha256, import_offset=file.import_offset())
    facts["source_problem"] = _sentence(file.problem_with(code))
    facts["source_matches"] = not facts["source_problem"]
    if function is None or not facts["source_matches"] or not facts["has_positions"]:
        return
    facts["module_aliases"] = names_module.aliases(Names(function))
    _fill_function_body(facts, file, code)
    span = _find_span(facts, file, Names(function), places, bool(site.get("function_class")))
    _fill_span(facts, file, span)
    if span.function_class is not None:
        facts.update(function_facts(span.function_class, site, codes))


def _sentence(problem: str) -> str:
    return f"its source {problem}" if problem else ""


def edit_frames(site: dict[str, Any]) -> list[Frame]:
    """For each operator of the chain its frame in the function to edit, in execution order.

    The deepest function that holds the whole chain; for a custom Function, its caller.
    """
    stacks = [list(reversed(operation["stack"])) for operation in site["operations"]]
    if not stacks or not all(stacks):
        raise SourceProblem("is not known: no frame of the chain was recorded")
    depth = 0
    while all(len(s) > depth for s in stacks) and all(s[depth] == stacks[0][depth] for s in stacks):
        depth += 1
    shared = stacks[0][:depth]
    inside = [stack[depth] for stack in stacks if len(stack) > depth]
    if site.get("function_class"):
        # From the innermost apply inwards the frames are the chain's own.
        applies = [i for i, f in enumerate(shared) if f["file"].endswith(_APPLY_FILE)]
        shared, inside = (shared[: applies[-1]] if applies else shared), []
    in_one = len(inside) == len(stacks) and len({frame["code"] for frame in inside}) == 1
    if in_one and not names_module.is_torch_file(inside[0]["file"]):
        return inside
    while shared and names_module.is_torch_file(shared[-1]["file"]):
        shared.pop()
    if not shared:
        raise NoSpan("its operators run in different functions")
    return [shared[-1]] * len(stacks)


def _fill_code(facts: Facts, code: CodeType, places: list[Frame]) -> None:
    qualname = qualname_of(code)
    functions = functions_with(code)
    if not hasattr(code, "co_qualname") and functions:
        qualname = functions[0].__qualname__
    generators = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
    coroutines = inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE
    facts.update(
        file=absolute(cells.shown_file(code.co_filename)),
        qualname=qualname,
        line=places[-1]["line"],
        has_positions=all(place["column"] >= 0 and place["end_column"] >= 0 for place in places),
        functions_found=len(functions),
        is_generator=bool(code.co_flags & generators),
        is_coroutine=bool(code.co_flags & coroutines),
        is_module_level=not code.co_flags & inspect.CO_OPTIMIZED,
        is_nested="<locals>" in qualname,
        running_now=is_running(code),
        scripted_or_compiled=is_compiled(code, functions),
    )


def functions_with(code: CodeType) -> list[FunctionType]:
    """Every function object that runs `code`."""
    return [f for f in gc.get_referrers(code) if type(f) is FunctionType and f.__code__ is code]


def _pick_function(code: CodeType) -> FunctionType | None:
    functions = functions_with(code)
    return functions[0] if functions else None


def is_running(code: CodeType) -> bool:
    """True when `code` is on any thread's stack, or in a suspended generator or coroutine."""
    for frame in sys._current_frames().values():
        while frame is not None:
            if frame.f_code is code:
                return True
            frame = frame.f_back
    if not code.co_flags & (
        inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    ):
        return False
    # By exact type: isinstance asks every object for its __class__, and some answer with code.
    attributes = {GeneratorType: "gi_code", CoroutineType: "cr_code", AsyncGeneratorType: "ag_code"}
    return any(
        getattr(found, attributes[type(found)]) is code
        for found in gc.get_objects()
        if type(found) in attributes
    )


def is_compiled(code: CodeType, functions: list[FunctionType]) -> bool:
    """torch.compile holds a version of this code, or torch.jit one of its function or class."""
    if "torch._dynamo" in sys.modules:
        from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

        if _debug_get_cache_entry_list(code):
            return True
    from torch.jit._recursive import concrete_type_store
    from torch.jit._state import _try_get_jit_cached_function

    if any(_try_get_jit_cached_function(function) is not None for function in functions):
        return True
    scripted = {cls.__qualname__ for cls in concrete_type_store.type_store}
    return any(function.__qualname__.rpartition(".")[0] in scripted for function in functions)


def _read_file(path: str, files: dict[str, SourceFile | SourceProblem]) -> SourceFile:
    if path not in files:
        try:
            files[path] = SourceFile.read(path)
        except SourceProblem as problem:
            files[path] = problem
    found = files[path]
    if isinstance(found, SourceProblem):
        raise found
    return found


def _find_span(
    facts: Facts, file: SourceFile, names: Names, places: list[Frame], applies: bool
) -> Span:
    if not applies and all(place == places[0] for place in places) and len(places) > 1:
        raise NoSpan("its operators run inside a function that is called here")
    try:
        return find_span(file, names, places, applies)
    except NoSpan as problem:
        facts["kept_names"] += problem.kept
        raise


def _fill_span(facts: Facts, file: SourceFile, span: Span) -> None:
    facts.update(
        span=file.span(span.node),
        span_kind=span.kind,
        first_statement=span.first_statement,
        line=span.node.lineno,
        reads=list(span.reads.values()),
        operations=span.operations,
        argument_sources=span.argument_sources,
        hook_notes=[note for module in span.modules for note in hook_notes(module)],
    )
    facts["kept_names"] += span.kept
    statement = file.statement_around(span.node)
    first = min(span.node.lineno, statement.lineno)
    if span.kind == "statements":
        first -= file.data[span.first_statement["begin"] : file.span(statement)["begin"]].count(
            b"\n"
        )
    facts["opted_out"] = bool(_OPTED_OUT.search(file.lines(first, span.node.end_lineno)))
    package, version = installed_package(file.path)
    facts.update(installed_package=package, installed_version=version)


def _fill_function_body(facts: Facts, file: SourceFile, code: CodeType) -> None:
    function = file.function_of(code)
    for node in ast.walk(function) if function is not None else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            bare = node.func.id in ("vars", "dir") and not node.args
            facts["uses_frame_magic"] |= bare or node.func.id in _FRAME_READERS
        if isinstance(node, ast.Attribute):
            facts["uses_frame_magic"] |= node.attr in _FRAME_ATTRIBUTES


def hook_notes(module: Any) -> list[str]:
    """Hooks that run when this module is called: its own, and those of all modules."""
    from torch.nn.modules import module as torch_module

    kinds = ("forward_pre_hooks", "forward_hooks", "backward_pre_hooks", "backward_hooks")
    notes = [f"{type(module).__name__} has {k}" for k in kinds if getattr(module, f"_{k}", None)]
    globally = [k for k in kinds if getattr(torch_module, f"_global_{k}", None)]
    return notes + [f"all modules have {kind}" for kind in globally]


def installed_package(path: str) -> tuple[str, str]:
    """Distribution and version that a file in site-packages belongs to; ("", "") outside."""
    roots = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    roots.update(site_module.getsitepackages())
    roots.add(site_module.getusersitepackages())
    folders = ("/site-packages", "/dist-packages")
    roots.update(entry for entry in sys.path if entry.rstrip("/").endswith(folders))
    root = next((root for root in roots if path.startswith(root.rstrip("/") + "/")), None)
    if root is None:
        return "", ""
    top = path[len(root) :].strip("/").split("/")[0].removesuffix(".py")
    distributions = importlib.metadata.packages_distributions().get(top)
    if not distributions:
        return top, ""
    return distributions[0], importlib.metadata.version(distributions[0])


# The code objects that facts were made of, by file and qualified name.
_RUNNING: dict[tuple[str, str], CodeType] = {}


def facts_of_entry(entry: dict[str, Any]) -> Facts:
    """Finds the running code that an entry of a stored plan edits. Raises SourceRefused."""
    file, qualname = absolute(entry["file"]), entry["qualname"]
    functions = [
        found
        for found in gc.get_objects()
        if type(found) is FunctionType
        and qualname_of(found.__code__) in (qualname, found.__code__.co_name)
        and found.__qualname__ == qualname
        and absolute(found.__code__.co_filename) == file
    ]
    codes = {found.__code__ for found in functions}
    if len(codes) != 1:
        raise SourceRefused(f"{file}: expected one function {qualname}, found {len(codes)}")
    code = codes.pop()
    problem = SourceFile.read(file).problem_with(code)
    if problem:
        raise SourceRefused(f"{file}: its source {problem}")
    _RUNNING[file, qualname] = code
    return {**blank_facts(int(entry.get("site", -1))), "file": file, "qualname": qualname,
            "module": functions[0].__module__}  # fmt: skip


def prepare_code(
    facts: Facts, memory_text: str, source_text: str = "", global_name: str = ""
) -> tuple[CodeType, CodeType]:
    """The running code and the one to put in its place, compiled from the whole edited file.

    With `source_text` (what the diff gives) both texts must be the same program, up to line numbers
    and to how the operator is named. Raises SourceRefused.
    """
    running = _RUNNING.get((facts["file"], facts["qualname"]))
    where = f"{facts['file']}: {facts['qualname']}"
    if running is None:
        raise SourceRefused(f"{where}: expected facts of running code, found none")
    try:
        whole = compile(memory_text.encode(), running.co_filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise SourceRefused(f"{where}: the edited file does not compile: {error}") from None
    found = code_named(whole, qualname_of(running), running.co_firstlineno)
    if len(found) != 1:
        raise SourceRefused(f"{where}: expected one such function, found {len(found)}")
    if found[0].co_freevars != running.co_freevars:
        raise SourceRefused(f"{where}: the edited code closes over other names")
    if source_text:
        problem = program_difference(memory_text, source_text, global_name)
        if problem:
            raise SourceRefused(f"{where}: the diff is not what runs: {problem}")
    return running, found[0]


def program_difference(memory_text: str, source_text: str, global_name: str) -> str:
    """Where two texts are different programs; "" when they are the same.

    The same: equal syntax and equal code, but for lines, for added imports at the top, and for the
    operators: one is `global_name` in memory and one dotted name in the source, and those of other
    edits of the file are names of ours likewise.
    """
    memory, source = ast.parse(memory_text.encode()), ast.parse(source_text.encode())
    missing = _imports(memory) - _imports(source)
    if missing:
        return f"the diff lacks {sorted(missing)[0]}"
    callees: dict[str, set[str]] = {}

    def same(a: Any, b: Any) -> bool:
        ours = isinstance(a, ast.Name) and (a.id == global_name or a.id.startswith("_opfuse_"))
        if ours and not isinstance(b, list):
            callees.setdefault(a.id, set()).add(ast.unparse(b))
            return isinstance(b, ast.Name | ast.Attribute)
        if isinstance(a, list) and isinstance(b, list):
            return len(a) == len(b) and all(map(same, a, b))
        if type(a) is not type(b):
            return False
        if isinstance(a, ast.AST):
            return all(same(getattr(a, f, None), getattr(b, f, None)) for f in a._fields)
        return repr(a) == repr(b)

    bodies = [
        [node for node in tree.body if not isinstance(node, _IMPORTS)] for tree in (memory, source)
    ]
    for a, b in zip(*bodies):
        if not same(a, b):
            return f"line {a.lineno} runs, line {b.lineno} is in the diff"
    if len(bodies[0]) != len(bodies[1]):
        return "they have different statements"
    for names in callees.values():
        if len(names) > 1:
            return f"one operator has several names: {', '.join(sorted(names))}"
    return _code_difference(memory, source, {ours: min(names) for ours, names in callees.items()})


def _imports(tree: ast.Module) -> set[str]:
    return {ast.unparse(node) for node in tree.body if isinstance(node, _IMPORTS)}


def _code_difference(memory: ast.Module, source: ast.Module, callees: dict[str, str]) -> str:
    """Compiles both with the source's operator names and compares every code object."""

    class Rename(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            callee = callees.get(node.id)
            return node if callee is None else ast.parse(callee, mode="eval").body

    memory = Rename().visit(memory)
    # The compiler calls names imported at the top in another way: the same imports for both.
    imports = [node for node in source.body if isinstance(node, _IMPORTS)]
    for tree in (memory, source):
        tree.body = imports + [node for node in tree.body if not isinstance(node, _IMPORTS)]
    a, b = _placeless_codes(memory), _placeless_codes(source)
    for x, y in zip(a, b):
        if not same_code(x, y, lines=False):
            return f"{qualname_of(x)} compiles to other code"
    return "" if len(a) == len(b) else "they have different functions"


def _placeless_codes(tree: ast.Module) -> list[CodeType]:
    """Every code object below the module, compiled as if all stood in one place."""
    for node in ast.walk(tree):
        if "lineno" in node._attributes:
            node.lineno = node.end_lineno = 1
            node.col_offset = node.end_col_offset = 0
    return list(codes_in(compile(tree, "<tree>", "exec", dont_inherit=True)))[1:]
