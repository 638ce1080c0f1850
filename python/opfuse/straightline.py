"""Whether the forward and backward of a custom autograd.Function are straight-line code.

Straight-line: assignments of tensor operations and one return, each operation accounted for by a
recorded operator at its position, no name but locals and torch's own functions, no state but ctx's
saved tensors. Then what was recorded is what happens at every call.
"""

from __future__ import annotations

import ast
import inspect
from types import CodeType, FunctionType
from typing import Any

from opfuse.names import Names, binary_name
from opfuse.sourcefile import SourceFile, SourceProblem
from opfuse.spans import nodes_at

# They leave the tensor world, or write.
_FORBIDDEN = {"item", "tolist", "numpy", "data_ptr", "backward", "register_hook", "requires_grad_"}


class NotStraight(Exception):
    """Why not, as a sentence."""


def function_facts(cls: type, site: dict[str, Any], codes: dict[int, CodeType]) -> dict[str, Any]:
    """The `function_…` fields of the facts for a Function class.

    Example: `function_facts(SwishImplementation, site, codes)["function_straight_line"]`
    """
    from torch.autograd import Function

    problem = ""
    try:
        _check_class(cls, site, codes)
    except (NotStraight, SourceProblem) as error:
        problem = str(error)
    return {
        "function_class": cls.__qualname__,
        "function_straight_line": not problem,
        "function_problem": problem,
        "function_has_jvp": cls.jvp is not Function.jvp,
        "function_has_vmap": cls.vmap is not Function.vmap or bool(cls.generate_vmap_rule),
        "function_once_differentiable": _is_once_differentiable(cls),
        "function_subclassed": _overrides_apply(cls),
    }


def body_problem(cls: type) -> str:
    """Why a Function's forward or backward does more than its operators; "" when it does not.

    From the source alone, without a record of a call. Example: `body_problem(Swish)`
    """
    from torch.autograd import Function

    if cls.setup_context is not Function.setup_context:
        return "it uses setup_context"
    if _overrides_apply(cls):
        return "its apply is not torch's own"
    for name in ("forward", "backward"):
        function = _plain(cls, name)
        if not isinstance(function, FunctionType) or hasattr(function, "__wrapped__"):
            return f"its {name} is decorated, or not a static method"
        try:
            _Body(function, name, None).check()
        except (NotStraight, SourceProblem) as error:
            return str(error)
    return ""


def _overrides_apply(cls: type) -> bool:
    from torch.autograd import Function

    own = inspect.getattr_static(Function, "apply")
    return inspect.getattr_static(cls, "apply") is not own or type(cls) is not type(Function)


def _is_once_differentiable(cls: type) -> bool:
    from torch.autograd.function import once_differentiable

    wrapper = once_differentiable(lambda ctx: None).__code__
    return getattr(_plain(cls, "backward"), "__code__", None) is wrapper


def _plain(cls: type, name: str) -> Any:
    found = inspect.getattr_static(cls, name, None)
    return found.__func__ if isinstance(found, staticmethod) else found


def _check_class(cls: type, site: dict[str, Any], codes: dict[int, CodeType]) -> None:
    from torch.autograd import Function

    if site.get("function_class") not in (cls.__name__, cls.__qualname__):
        raise NotStraight(f"the recorded Function was {site.get('function_class')}")
    if cls.setup_context is not Function.setup_context:
        raise NotStraight("it uses setup_context")
    for name, operations in (
        ("forward", site["operations"]),
        ("backward", site.get("backward_operations", [])),
    ):
        function = _plain(cls, name)
        if not isinstance(function, FunctionType) or hasattr(function, "__wrapped__"):
            raise NotStraight(f"its {name} is decorated, or not a static method")
        recorded = _places_in(function.__code__, operations, codes)
        # A step without a backward pass shows nothing of it; the source alone is not enough there.
        if name == "backward" and not operations:
            recorded = None
        _Body(function, name, recorded).check()


def _places_in(
    code: CodeType, operations: list[dict[str, Any]], codes: dict[int, CodeType]
) -> list[dict[str, Any]]:
    """Where each recorded operator stands in this function."""
    places = []
    for operation in operations:
        frames = [f for f in operation["stack"] if codes.get(f["code"]) is code]
        if not frames:
            raise NotStraight(f"{operation['op']} ran outside its {code.co_name}")
        places.append(frames[-1])
    return places


class _Body:
    """One function's statements, checked one by one."""

    def __init__(self, function: FunctionType, role: str, places: list[dict[str, Any]] | None):
        self.function = function
        self.role = role
        self.names = Names(function)
        self.file = SourceFile.read(function.__code__.co_filename)
        problem = self.file.problem_with(function.__code__)
        if problem:
            raise NotStraight(f"the source of its {role} {problem}")
        self.node = self.file.function_of(function.__code__)
        if not isinstance(self.node, ast.FunctionDef):
            raise NotStraight(f"the source of its {role} was not found")
        self.places = places
        self.recorded: set[ast.AST] = set()
        self.used: set[ast.AST] = set()

    def fail(self, node: ast.AST, why: str) -> None:
        raise NotStraight(f"line {node.lineno} of its {self.role}: {why}")

    def check(self) -> None:
        arguments = self.node.args
        plain = not (
            arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.defaults
        )
        if not plain or len(arguments.posonlyargs + arguments.args) != 2:
            self.fail(self.node, "expected ctx and one tensor as its arguments")
        if self.function.__code__.co_freevars or self.function.__code__.co_cellvars:
            self.fail(self.node, "it closes over other names")
        self.context = (arguments.posonlyargs + arguments.args)[0].arg
        for place in self.places or ():
            found = nodes_at(self.file, place)
            if len(found) != 1:
                raise NotStraight(f"an operator of line {place['line']} has no place in its source")
            self.recorded.add(found[0])
        for statement in self.node.body:
            self.statement(statement)
        if not isinstance(self.node.body[-1], ast.Return):
            self.fail(self.node, "it does not end with a return")
        extra = self.recorded - self.used
        if extra:
            self.fail(next(iter(extra)), "an operator was recorded that the source does not name")

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        if isinstance(node, ast.Expr) and self.is_save(node.value):
            if not all(isinstance(a, ast.Name) for a in node.value.args) or node.value.keywords:
                self.fail(node, "it saves something else than its tensors")
            return
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self.target(target)
            return self.value(node.value)
        if isinstance(node, ast.Return) and node is self.node.body[-1] and node.value is not None:
            return self.value(node.value)
        self.fail(node, f"{ast.unparse(node).splitlines()[0]} is not an assignment of tensors")

    def target(self, node: ast.expr) -> None:
        if isinstance(node, ast.Tuple):
            for element in node.elts:
                self.target(element)
        elif not isinstance(node, ast.Name) or self.names.kind(node.id) != "local":
            self.fail(node, f"it keeps {ast.unparse(node)}")

    def value(self, node: ast.expr) -> None:
        if isinstance(node, ast.Name):
            if self.names.kind(node.id) != "local" or node.id == self.context:
                self.fail(node, f"it uses {node.id}, which is no local tensor")
        elif isinstance(node, ast.Constant):
            if type(node.value) not in (int, float):
                self.fail(node, f"it uses the constant {node.value!r}")
        elif not self.is_saved(node):
            self.operation(node)

    def operation(self, node: ast.expr) -> None:
        operands: list[ast.expr] = []
        if isinstance(node, ast.BinOp):
            operands, callee = [node.left, node.right], binary_name(node)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            operands, callee = [node.operand], "operator.neg"
        elif isinstance(node, ast.Call):
            operands, callee = self.call(node)
        else:
            self.fail(node, f"{ast.unparse(node)} is not an operation on tensors")
        if callee.startswith(("unknown:", "module:", "Function.apply:")):
            self.fail(node, f"it calls {ast.unparse(node)}")
        for operand in operands:
            self.value(operand)
        if isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant):
            return  # a negative number
        if all(isinstance(operand, ast.Constant) for operand in operands):
            self.fail(node, "it computes with constants alone")
        if self.places is not None and node not in self.recorded:
            self.fail(node, f"no operator was recorded for {ast.unparse(node)}")
        self.used.add(node)

    def call(self, node: ast.Call) -> tuple[list[ast.expr], str]:
        if node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
            self.fail(node, "it passes arguments by keyword")
        operands, callee = list(node.args), self.names.callee(node.func)
        name = callee.rpartition(".")[2]
        if name in _FORBIDDEN or name.endswith("_"):
            self.fail(node, f"it calls {name}")
        if callee.startswith("Tensor.") and not self.names.resolves(node.func):
            operands.insert(0, node.func.value)
        return operands, callee

    def is_save(self, node: ast.expr) -> bool:
        return (
            isinstance(node, ast.Call)
            and self.is_context(node.func, "save_for_backward")
            and self.role == "forward"
        )

    def is_saved(self, node: ast.expr) -> bool:
        """`ctx.saved_tensors`, or one of them."""
        if isinstance(node, ast.Subscript):
            index = node.slice
            whole = isinstance(index, ast.Constant) and type(index.value) is int
            return whole and self.is_saved(node.value)
        return self.is_context(node, "saved_tensors")

    def is_context(self, node: ast.expr, name: str) -> bool:
        return (
            isinstance(node, ast.Attribute)
            and node.attr == name
            and isinstance(node.value, ast.Name)
            and node.value.id == self.context
        )
