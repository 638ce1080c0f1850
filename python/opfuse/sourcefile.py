"""A source file as the interpreter read it: bytes, syntax tree, code objects, byte offsets.

Spans are offsets into the file's UTF-8 bytes, a byte order mark included.
"""

from __future__ import annotations

import ast
import hashlib
import io
import os
import re
import tokenize
from collections.abc import Iterator
from functools import cached_property
from types import CodeType
from typing import Any

from opfuse import cells

_LINE_END = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"


class SourceProblem(Exception):
    """Why a source cannot be used, as a sentence that continues "its source …"."""


def _bytes_of(path: str) -> bytes:
    if (typed := cells.text_of(path)) is not None:
        return typed.encode()
    if not path or path.startswith("<"):
        raise SourceProblem("is not a file (typed in or generated)")
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise SourceProblem(f"cannot be read: {error.strerror}") from None


class SourceFile:
    """One file, read and parsed once.

    Example: `SourceFile.read("model.py").matches(function.__code__)`
    """

    def __init__(self, path: str, data: bytes):
        self.path = path
        self.data = data
        self.text = data.decode("utf-8")
        self.tree = ast.parse(data, path)
        self.parents = {
            child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }
        first = len(_BOM) if data.startswith(_BOM) else 0
        self._starts = [first, *(found.end() for found in _LINE_END.finditer(data, first))]

    @staticmethod
    def read(path: str) -> SourceFile:
        data = _bytes_of(path)
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        if encoding not in ("utf-8", "utf-8-sig"):
            raise SourceProblem(f"is written in {encoding}, not in UTF-8")
        try:
            return SourceFile(path, data)
        except (SyntaxError, UnicodeDecodeError, ValueError) as error:
            raise SourceProblem(f"no longer compiles: {error}") from None

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def code(self) -> CodeType:
        if cells.text_of(self.path) is None:
            return compile(self.data, self.path, "exec", dont_inherit=True)
        # A notebook compiles each statement of a cell by itself, and the compiler calls names that
        # are imported in the same unit in another way.
        imports = (ast.Import, ast.ImportFrom)
        body = [node for node in self.tree.body if not isinstance(node, imports)]
        return compile(ast.Module(body, []), self.path, "exec", dont_inherit=True)

    def offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def span(self, node: ast.AST) -> dict[str, int]:
        return {
            "begin": self.offset(node.lineno, node.col_offset),
            "end": self.offset(node.end_lineno, node.end_col_offset),
        }

    def source(self, node: ast.AST) -> str:
        span = self.span(node)
        return self.data[span["begin"] : span["end"]].decode("utf-8")

    def lines(self, first: int, last: int) -> str:
        """Lines `first` to `last`, counted from one."""
        end = self._starts[last] if last < len(self._starts) else len(self.data)
        return self.data[self._starts[first - 1] : end].decode("utf-8")

    def problem_with(self, running: CodeType) -> str:
        """Why this file is not what `running` was compiled from; "" when it is."""
        found = code_named(self.code, qualname_of(running), running.co_firstlineno)
        if not any(same_code(code, running, lines=True) for code in found):
            return "was changed since it was imported"
        return ""

    def import_offset(self) -> int:
        """Where a new import line goes: below the imports, else the docstring, else at the code."""
        body = self.tree.body
        imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
        documented = ast.get_docstring(self.tree, clean=False) is not None
        if imports or documented:
            line = (imports[-1] if imports else body[0]).end_lineno
            return self._starts[line] if line < len(self._starts) else len(self.data)
        if not body:
            return len(self.data)
        decorators = getattr(body[0], "decorator_list", [])
        return self.offset(min(node.lineno for node in [body[0], *decorators]), 0)

    def function_around(self, node: ast.AST) -> ast.AST | None:
        """The function, lambda or None (module and class level) whose body holds `node`."""
        while node in self.parents:
            node = self.parents[node]
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                return node
        return None

    def statement_around(self, node: ast.AST) -> ast.stmt | None:
        while node is not None and not isinstance(node, ast.stmt):
            node = self.parents.get(node)
        return node

    def function_of(self, code: CodeType) -> ast.AST | None:
        """The syntax of the function that `code` was compiled from."""
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                continue
            lines = [node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]
            name = getattr(node, "name", "<lambda>")
            if name == code.co_name and min(lines) == code.co_firstlineno:
                return node
        return None


def qualname_of(code: CodeType) -> str:
    return getattr(code, "co_qualname", code.co_name)


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """`code` and every code object inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_in(constant)


def code_named(whole: CodeType, qualname: str, first_line: int) -> list[CodeType]:
    return [
        code
        for code in codes_in(whole)
        if qualname_of(code) == qualname and code.co_firstlineno == first_line
    ]


_FIELDS = (
    "co_code co_names co_varnames co_freevars co_cellvars co_flags co_argcount "
    "co_posonlyargcount co_kwonlyargcount co_name co_exceptiontable"
).split()


def same_code(a: CodeType, b: CodeType, lines: bool) -> bool:
    """Equal in everything that runs; with `lines` also in every source position."""
    if any(getattr(a, name, None) != getattr(b, name, None) for name in _FIELDS):
        return False
    if lines and _places(a) != _places(b):
        return False
    return len(a.co_consts) == len(b.co_consts) and all(
        _same_constant(x, y, lines) for x, y in zip(a.co_consts, b.co_consts)
    )


def _places(code: CodeType) -> list[Any]:
    table = code.co_positions() if hasattr(code, "co_positions") else code.co_lines()
    return [code.co_firstlineno, *table]


def _same_constant(a: Any, b: Any, lines: bool) -> bool:
    if isinstance(a, CodeType) and isinstance(b, CodeType):
        return same_code(a, b, lines)
    # repr tells 0.0 from -0.0 and 1 from True; sets are compared as sets.
    if isinstance(a, frozenset):
        return type(a) is type(b) and {repr(x) for x in a} == {repr(x) for x in b}
    return type(a) is type(b) and repr(a) == repr(b)


def absolute(path: str) -> str:
    named = path.startswith("<") or cells.is_name(path)
    return path if named else os.path.abspath(path)
