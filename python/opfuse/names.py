"""What a name in the user's source is bound to, and whether it is torch's own operator.

Only modules, classes and functions are looked through; no property or __getattr__ of the user runs.
"""

from __future__ import annotations

import ast
import builtins
import gc
import inspect
import operator
import os
from types import CodeType, FunctionType, ModuleType
from typing import Any

_UNRESOLVED = object()
_BINARY = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.Pow: "pow",
    ast.MatMult: "matmul", ast.FloorDiv: "floordiv", ast.Mod: "mod",
}  # fmt: skip


class Names:
    """The names of one function: its code, its globals, the live instances of its class.

    Example: `Names(function).callee(call.func)` gives "torch.sigmoid".
    """

    def __init__(self, function: FunctionType):
        self.function = function
        self.code: CodeType = function.__code__
        self.globals: dict[str, Any] = function.__globals__
        self._instances: list[Any] | None = None

    def kind(self, name: str) -> str:
        if name in self.code.co_cellvars or name in self.code.co_freevars:
            return "closure"
        if name in self.code.co_varnames:
            return "local"
        if name in self.globals:
            return "global"
        return "builtin" if hasattr(builtins, name) else "other"

    def value(self, node: ast.AST) -> Any:
        """The object of a dotted name that starts at a global; _UNRESOLVED for anything else."""
        if isinstance(node, ast.Name):
            if self.kind(node.id) == "global":
                return self.globals[node.id]
            if self.kind(node.id) == "builtin":
                return getattr(builtins, node.id)
            return _UNRESOLVED
        if isinstance(node, ast.Attribute):
            owner = self.value(node.value)
            if isinstance(owner, ModuleType):
                return getattr(owner, node.attr, _UNRESOLVED)
            if isinstance(owner, type):
                return _class_attribute(owner, node.attr)
        return _UNRESOLVED

    def resolves(self, node: ast.AST) -> bool:
        return self.value(node) is not _UNRESOLVED

    def function_class(self, node: ast.AST) -> type | None:
        """The autograd.Function whose `apply` this expression is."""
        found = self.value(node)
        owner = getattr(found, "__self__", None)
        if not isinstance(owner, type) or getattr(found, "__name__", "") != "apply":
            return None
        import torch

        return owner if issubclass(owner, torch.autograd.Function) else None

    def callee(self, node: ast.AST) -> str:
        """The canonical name of what a call calls: "torch.sigmoid", "module:…", "unknown:…"."""
        found = self.value(node)
        text = ast.unparse(node)
        if found is not _UNRESOLVED:
            cls = self.function_class(node)
            if cls is not None:
                return f"Function.apply:{cls.__qualname__}"
            return canonical_name(found) or f"unknown:{text}"
        if isinstance(node, ast.Attribute):
            modules = self.member_modules(node)
            if modules:
                kinds = sorted({f"{type(m).__module__}.{type(m).__qualname__}" for m in modules})
                return f"module:{', '.join(kinds)}"
            if is_own_method(node.attr):
                return f"Tensor.{node.attr}"
        return f"unknown:{text}"

    # Attributes of self

    def instances(self) -> list[Any]:
        """Live objects whose method this function is."""
        if self._instances is None:
            owner = self._owner()
            self._instances = (
                [] if owner is None else [o for o in gc.get_objects() if issubclass(type(o), owner)]
            )
        return self._instances

    def _owner(self) -> type | None:
        found: Any = self.globals
        for part in self.function.__qualname__.split(".")[:-1]:
            space = found if isinstance(found, dict) else vars(found)
            found = space.get(part)
            if not isinstance(found, type):
                return None
        return found if isinstance(found, type) else None

    def is_self(self, node: ast.AST) -> bool:
        first = self.code.co_varnames[: min(1, self.code.co_argcount)]
        return isinstance(node, ast.Name) and (node.id,) == first and self.kind(node.id) == "local"

    def attribute_kind(self, node: ast.Attribute) -> str:
        """ "module_member", "property" or "attribute" of `self.x`, by every live instance."""
        import torch

        instances = self.instances() if self.is_self(node.value) else []
        if not instances or not all(isinstance(one, torch.nn.Module) for one in instances):
            return "attribute"
        return (
            "module_member"
            if all(_is_plain_member(one, node.attr) for one in instances)
            else "property"
        )

    def member_modules(self, node: ast.Attribute) -> list[Any]:
        """The modules that `self.act` is in the live instances."""
        if not self.is_self(node.value):
            return []
        found = [vars(one).get("_modules", {}).get(node.attr) for one in self.instances()]
        return [module for module in found if module is not None]


def _class_attribute(owner: type, name: str) -> Any:
    found = inspect.getattr_static(owner, name, _UNRESOLVED)
    if isinstance(found, staticmethod | classmethod) or inspect.isroutine(found):
        return getattr(owner, name, _UNRESOLVED)
    return found if isinstance(found, type) else _UNRESOLVED


def _is_plain_member(module: Any, name: str) -> bool:
    """`module.name` is an entry of a dictionary that only an assignment changes."""
    import torch

    kind = type(module)
    if kind.__getattribute__ is not object.__getattribute__:
        return False
    if kind.__getattr__ is not torch.nn.Module.__getattr__:
        return False
    if inspect.getattr_static(kind, name, _UNRESOLVED) is not _UNRESOLVED:
        return False  # a property, or a class attribute: parametrizations are properties too
    own = vars(module)
    return name in own or any(
        name in own.get(table, {}) for table in ("_parameters", "_buffers", "_modules")
    )


def canonical_name(found: Any) -> str:
    """ "torch.sigmoid" when `found` is torch's own function of that name; else ""."""
    import torch

    name = getattr(found, "__name__", "")
    if not name or not isinstance(name, str):
        return ""
    functions = torch._C._VariableFunctions
    if _is_same(getattr(functions, name, None), found):
        return f"torch.{name}"
    special = getattr(torch._C, "_special", None)
    for candidate in (name, f"special_{name}"):
        if special is not None and _is_same(getattr(special, candidate, None), found):
            return f"torch.special.{candidate.removeprefix('special_')}"
    if _is_same(getattr(torch._C._nn, name, None), found):  # F.softplus, F.gelu
        return f"torch.nn.functional.{name}"
    if inspect.ismethoddescriptor(found) and vars(torch._C.TensorBase).get(name) is found:
        return f"Tensor.{name}"
    if isinstance(found, FunctionType) and found.__module__ == "torch.nn.functional":
        if is_torch_file(found.__code__.co_filename):
            return f"torch.nn.functional.{name}"
    if found is getattr(operator, name, None):
        return f"operator.{name}"
    return ""


def _is_same(own: Any, found: Any) -> bool:
    # A builtin method is a new object at each look: compared by equality, and by kind.
    return own is not None and inspect.isbuiltin(found) and own == found


def is_torch_file(path: str) -> bool:
    import torch

    return path.startswith(os.path.dirname(torch.__file__) + os.sep)


def is_own_method(name: str) -> bool:
    """`Tensor.name` is torch's, not put there by somebody else."""
    import torch

    found = inspect.getattr_static(torch.Tensor, name, None)
    if found is vars(torch._C.TensorBase).get(name, _UNRESOLVED):
        return True
    return isinstance(found, FunctionType) and is_torch_file(found.__code__.co_filename)


def binary_name(node: ast.BinOp) -> str:
    """ "operator.mul" for `a * b`, unless somebody exchanged Tensor's own method."""
    name = _BINARY.get(type(node.op))
    if name is None:
        return f"unknown:{type(node.op).__name__}"
    if not is_own_method(f"__{name}__") or not is_own_method(f"__r{name}__"):
        return f"unknown:Tensor.__{name}__"
    return f"operator.{name}"


def aliases(names: Names) -> list[str]:
    """ "F=torch.nn.functional": globals through which the function can reach torch."""
    found = []
    for name, value in names.globals.items():
        if not isinstance(name, str) or names.kind(name) != "global" or name.startswith("_opfuse_"):
            continue
        if isinstance(value, ModuleType):
            target = value.__name__
        elif isinstance(value, FunctionType):
            target = canonical_name(value)
        else:
            continue
        if target.split(".")[0].startswith("torch") or target == "opfuse.functional":
            found.append(f"{name}={target}")
    return sorted(found)
