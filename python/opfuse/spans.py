"""The span of a chain in one function: its expression, its operations, the names that it reads.

Everything found is reported as it is; opfuse/rewrite decides what is legal.
"""

from __future__ import annotations

import ast
import math
import operator
from dataclasses import dataclass, field
from typing import Any

from opfuse.names import Names, binary_name
from opfuse.sourcefile import SourceFile


class NoSpan(Exception):
    """Why the chain is not one span, as a sentence; `kept` as far as it was read."""

    kept: list[str] = []


@dataclass
class Span:
    """What `facts` needs of one chain."""

    kind: str
    node: ast.expr
    first_statement: dict[str, int] = field(default_factory=lambda: {"begin": -1, "end": -1})
    reads: dict[str, dict[str, Any]] = field(default_factory=dict)
    operations: list[dict[str, Any]] = field(default_factory=list)
    argument_sources: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    modules: list[Any] = field(default_factory=list)
    function_class: type | None = None


def nodes_at(file: SourceFile, place: dict[str, Any]) -> list[ast.expr]:
    """The operations whose instructions carry this source position."""
    wanted = (place["line"], place["end_line"], place["column"], place["end_column"])
    return [
        node
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Call | ast.BinOp | ast.UnaryOp) and wanted in _positions(node)
    ]


def _positions(node: ast.expr) -> list[tuple[int, int, int, int]]:
    at = [(node.lineno, node.end_lineno, node.col_offset, node.end_col_offset)]
    function = getattr(node, "func", None)
    if isinstance(function, ast.Attribute) and function.end_lineno != node.lineno:
        # A method call over several lines is placed at the line of the method's name.
        column = function.end_col_offset - len(function.attr.encode())
        at.append((function.end_lineno, node.end_lineno, column, node.end_col_offset))
    return at


def find_span(file: SourceFile, names: Names, places: list[dict[str, Any]], applies: bool) -> Span:
    """The span of the operations at `places`, in execution order; `applies`: a Function's apply."""
    nodes = []
    for place in places:
        found = nodes_at(file, place)
        if len(found) != 1:
            raise NoSpan(f"line {place['line']} holds no operation of that position")
        nodes.append(found[0])
    last = nodes[-1]
    if applies:
        return _apply_span(file, names, last)
    span = Span("expression", last)
    reader = _Reader(file, names, span, set(nodes))
    inside = set(ast.walk(last))
    outside = [node for node in nodes if node not in inside]
    if outside:
        span.kind = "statements"
        try:
            _read_statements(file, reader, outside)
        except NoSpan as problem:
            problem.kept = span.kept
            raise
    reader.visit(last)
    return span


def _apply_span(file: SourceFile, names: Names, node: ast.expr) -> Span:
    if not isinstance(node, ast.Call):
        raise NoSpan(f"line {node.lineno} is not a call of apply")
    span = Span("function_apply", node)
    span.function_class = names.function_class(node.func)
    reader = _Reader(file, names, span)
    reader.note_globals(node.func)
    arguments = ["other"] * (len(node.args) + len(node.keywords))
    if len(arguments) == 1 and node.args and not isinstance(node.args[0], ast.Starred):
        argument = node.args[0]
        plain = isinstance(argument, ast.Name)
        arguments = [reader.visit(argument) if plain else "expr"]
        span.argument_sources = [file.source(argument)]
    span.operations = [
        {"span": file.span(node), "callee": names.callee(node.func), "arguments": arguments}
    ]
    return span


class _Reader:
    """Turns an expression into operations in evaluation order."""

    def __init__(self, file: SourceFile, names: Names, span: Span, chain: set | None = None):
        self.chain = chain  # the syntax of the chain's operators
        self.expressions = 0
        self.file = file
        self.names = names
        self.span = span
        self.inner: dict[str, str] = {}  # locals of the chain's statements: "s" -> "op:0"

    def visit(self, node: ast.expr) -> str:
        """What an operand is: "read:x", "op:1", "const:2.0", … (OperationFact) or "other"."""
        if isinstance(node, ast.Name):
            return self.inner.get(node.id) or self._read(node, self.names.kind(node.id))
        if literal := self._number(node) or self._literal(node):
            return literal
        if isinstance(node, ast.Tuple | ast.List) and (tensors := self._tensors(node)):
            return tensors
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            kind = "other" if self.names.resolves(node) else self.names.attribute_kind(node)
            return self._read(node, kind)
        if isinstance(node, ast.Attribute):
            return self._read(node, "attribute")
        if isinstance(node, ast.NamedExpr):
            self.span.kept.append(f"{node.target.id} is bound inside the expression")
            value = self.visit(node.value)
            self._read(node.target, "other")["rebound_inside"] = True
            return value
        return self._expression(node) or self._operation(node) or self._other(node)

    def _expression(self, node: ast.expr) -> str:
        """An operand that is no part of the chain: evaluated once, before and after the edit."""
        if self.chain is None or not isinstance(node, ast.Call) or _is_cast(node):
            return ""
        text = self.file.source(node)
        for part in ast.walk(node):
            if part in self.chain or isinstance(part, _BINDING):
                return ""
            if isinstance(part, ast.Name) and part.id in self.inner:
                return ""
        if "\n" in text:
            return ""
        self.expressions += 1  # visited in the order of evaluation
        return f"expr:{self.expressions}:{text}"

    def note_globals(self, node: ast.AST) -> None:
        """Notes the global name that a callee starts with."""
        while isinstance(node, ast.Attribute):
            node = node.value
        if isinstance(node, ast.Name) and self.names.kind(node.id) in ("global", "builtin"):
            self._read(node, self.names.kind(node.id))

    def _other(self, node: ast.expr) -> str:
        for name in ast.walk(node):
            if isinstance(name, ast.Name):
                self._read(name, self.names.kind(name.id))
        return "other"

    def _number(self, node: ast.expr) -> str:
        value = self._constant(node)
        return "" if value is None else f"const:{value!r}"

    def _literal(self, node: ast.expr) -> str:
        """Flags, None, strings, lists of whole numbers, and dtypes."""
        if isinstance(node, ast.Constant):
            plain = node.value is None or type(node.value) in (bool, str)
            return f"const:{node.value!r}" if plain else ""
        if isinstance(node, ast.Tuple | ast.List):
            numbers = [self._constant(element) for element in node.elts]
            whole = all(type(number) is int for number in numbers)
            return f"list:{','.join(map(str, numbers))}" if numbers and whole else ""
        if isinstance(node, ast.Attribute) and node.attr == "dtype":
            return self._dtype_of(node.value)
        import torch

        found = self.names.value(node) if isinstance(node, ast.Attribute) else None
        if isinstance(found, torch.dtype):
            self.note_globals(node)
            return f"dtype:{str(found).removeprefix('torch.')}"
        return ""

    def _tensors(self, node: ast.Tuple | ast.List) -> str:
        """A list of names and parts of the chain: "tensors:op:1,read:x"."""
        if not node.elts or any(isinstance(element, ast.Starred) for element in node.elts):
            return ""
        operands = [self.visit(element) for element in node.elts]
        plain = all(one.startswith(("op:", "read:")) and "," not in one for one in operands)
        return f"tensors:{','.join(operands)}" if plain else "other"

    def _dtype_of(self, node: ast.expr) -> str:
        """The dtype of a local tensor, told by the value that the name has here."""
        if not isinstance(node, ast.Name) or self.names.kind(node.id) != "local":
            return ""
        value = self.inner.get(node.id) or self._read(node, "local")
        return f"dtypeof:{value}"

    def _constant(self, node: ast.expr) -> int | float | None:
        """The number that an expression of numbers, math.pi and math.sqrt always is."""
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self._constant(node.operand)
            return None if value is None else -value
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            left, right = self._constant(node.left), self._constant(node.right)
            if left is None or right is None:
                return None
            return _computed(_ARITHMETIC[type(node.op)], left, right)
        if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
            value = self._constant(node.args[0])
            if value is not None and self.names.value(node.func) is math.sqrt:
                self.note_globals(node.func)
                return _computed(math.sqrt, value)
        if isinstance(node, ast.Attribute) and node.attr == "pi":
            if self.names.value(node.value) is math:
                self.note_globals(node)
                return math.pi
        return None

    def _operation(self, node: ast.expr) -> str:
        if isinstance(node, ast.BinOp):
            return self._emit(node, binary_name(node), [node.left, node.right])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return self._emit(node, "operator.neg", [node.operand])
        if not isinstance(node, ast.Call):
            return ""
        callee = self.names.callee(node.func)
        self.note_globals(node.func)
        operands = list(node.args)
        if callee.startswith("Tensor.") and not self.names.resolves(node.func):
            operands.insert(0, node.func.value)
        if callee.startswith("module:"):
            self.span.modules += self.names.member_modules(node.func)
        return self._emit(node, callee, operands, node.keywords)

    def _emit(
        self,
        node: ast.expr,
        callee: str,
        operands: list[ast.expr],
        keywords: list[ast.keyword] | None = None,
    ) -> str:
        arguments = [self.visit(operand) for operand in operands]
        for keyword in keywords or ():
            value = self.visit(keyword.value)
            arguments.append("other" if keyword.arg is None else f"{keyword.arg}={value}")
        self.span.operations.append(
            {"span": self.file.span(node), "callee": callee, "arguments": arguments}
        )
        return f"op:{len(self.span.operations) - 1}"

    def _read(self, node: ast.expr, kind: str) -> Any:
        text = self.file.source(node)
        resolved = self.names.value(node) if kind in ("global", "builtin") else None
        fact = self.span.reads.setdefault(
            text,
            {
                "text": text,
                "kind": kind,
                "resolves_to": getattr(resolved, "__name__", "") if resolved is not None else "",
                "count": 0,
                "rebound_inside": False,
            },
        )
        fact["count"] += 1
        return fact if isinstance(node.ctx, ast.Store) else f"read:{text}"


_BINDING = (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom, ast.Lambda)
_CASTS = ("to", "float", "type_as")


def _is_cast(node: ast.Call) -> bool:
    """A cast that may have recorded nothing."""
    return isinstance(node.func, ast.Attribute) and node.func.attr in _CASTS


_ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def _computed(function: Any, *values: int | float) -> int | float | None:
    """What `function` gives, when it is an ordinary number."""
    try:
        value = function(*values)
    except (ArithmeticError, ValueError):
        return None
    return value if type(value) in (int, float) and math.isfinite(value) else None


def _read_statements(file: SourceFile, reader: _Reader, outside: list[ast.expr]) -> None:
    """The statements before the last one that hold the rest of the chain."""
    last = file.statement_around(reader.span.node)
    block = _block_of(file, last)
    before = sorted({block.index(s) for s in map(file.statement_around, outside) if s in block})
    end = block.index(last)
    if {block[i] for i in before} != {file.statement_around(node) for node in outside}:
        raise NoSpan("its statements are in different blocks")
    first = before[0]
    while first > 0 and _names_dtype_or_casts(reader, block[first - 1]):
        first -= 1
    for statement in block[first : before[-1] + 1]:
        _read_assignment(reader, statement)
    _check_names(file, reader, block[first : before[-1] + 1])
    if before[-1] + 1 != end:
        raise NoSpan("other statements stand between its operations")
    if getattr(last, "value", None) is not reader.span.node:
        raise NoSpan("its last operation is not the whole value of its statement")
    reader.span.first_statement = {
        "begin": file.span(block[first])["begin"],
        "end": file.span(block[before[-1]])["end"],
    }


def _names_dtype_or_casts(reader: _Reader, statement: ast.stmt) -> bool:
    """`dtype = x.dtype` and `h = x.float()`: casts of the chain that may have recorded nothing."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return False
    value = statement.value
    if isinstance(value, ast.Attribute) and value.attr == "dtype":
        tensor = value.value
    elif isinstance(value, ast.Call) and _is_cast(value):
        tensor = value.func.value
    else:
        return False
    return isinstance(tensor, ast.Name) and reader.names.kind(tensor.id) == "local"


def _block_of(file: SourceFile, statement: ast.stmt) -> list[ast.stmt]:
    parent = file.parents[statement]
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and statement in block:
            return block
    raise NoSpan("its statement stands in no block")


def _read_assignment(reader: _Reader, statement: ast.stmt) -> None:
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    bound = _bound_names(target)
    if not bound or len(statement.targets) != 1:
        reader.span.kept.append(ast.unparse(statement))
        raise NoSpan("an inner value goes elsewhere than to local names")
    result = reader.visit(statement.value)
    several = isinstance(target, ast.Tuple)
    plain = result.startswith("op:" if several else ("op:", "dtypeof:"))
    for i, name in enumerate(bound):
        if reader.names.kind(name) != "local" or not plain:
            reader.span.kept.append(f"{name} is no plain local name")
        reader.inner[name] = f"{result}.{i}" if several else result


def _bound_names(target: ast.AST | None) -> list[str]:
    """The different names that an assignment binds: `a` or `a, b`; none where it is neither."""
    elements = target.elts if isinstance(target, ast.Tuple) else [target]
    names = [element.id for element in elements if isinstance(element, ast.Name)]
    return names if len(set(names)) == len(elements) else []


def _check_names(file: SourceFile, reader: _Reader, removed: list[ast.stmt]) -> None:
    """An inner name must be used by the chain alone. What stands before the first statement sees
    the name as it was, which the edit leaves alone, unless a loop leads back there."""
    function = file.function_around(reader.span.node)
    own = {id(node) for part in [*removed, reader.span.node] for node in ast.walk(part)}
    first = (removed[0].lineno, removed[0].col_offset)
    looped = _in_loop(file, removed[0])
    for node in ast.walk(function) if function is not None else ():
        if not isinstance(node, ast.Name) or node.id not in reader.inner or id(node) in own:
            continue
        if not looped and (node.lineno, node.col_offset) < first:
            continue
        verb = "read" if isinstance(node.ctx, ast.Load) else "bound"
        reader.span.kept.append(f"{node.id} is also {verb} in line {node.lineno}")


def _in_loop(file: SourceFile, node: ast.AST) -> bool:
    while not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module):
        node = file.parents[node]
        if isinstance(node, ast.For | ast.While | ast.AsyncFor):
            return True
    return False
