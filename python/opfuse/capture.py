"""Graphs of a model without running a training step: what Dynamo captures, lowered to ATen before
autograd, as the text that `opfuse match` reads (opfuse/graph/text.h).

Such a graph is for finding and explaining. What is replaced in a running script is found in a
recorded step, which also holds what Python, hooks and autograd do.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot, make_fx

_DTYPES = {
    torch.float64: "f64", torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8",
    torch.uint8: "u8", torch.bool: "bool", torch.complex64: "c64",
}  # fmt: skip
_INTERNAL = "torch/_functorch/autograd_function.py"
_FRAME = re.compile(r'File "(?P<file>.*)", line (?P<line>\d+), in (?P<function>\S+)')


def graph_texts(model: Callable[..., Any], *args: Any, **kwargs: Any) -> list[str]:
    """One text for each graph that Dynamo captures of `model(*args, **kwargs)`, in order.

    `model` is a module or a function of tensors; it runs once, as it would without us. Code that
    Dynamo cannot capture splits the graph; what the torch of this process cannot trace at all
    raises its own exception.

    Example: `open("graph.txt", "w").write(graph_texts(model, x)[0])`
    """
    texts: list[str] = []

    def backend(graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        texts.append(text_of(graph, inputs))
        return graph.forward

    torch.compile(model, backend=backend, dynamic=False)(*args, **kwargs)
    return texts


def text_of(graph: GraphModule, inputs: list[Any]) -> str:
    """The text of a captured graph (torch-level calls) for these inputs; the inputs are not
    changed: tracing works on fake copies."""
    return lower(graph, inputs).text


@dataclass
class Lowered:
    """A captured graph as ATen operators, in the text form, and where each came from."""

    text: str
    made: dict[Node, list[str]]  # of the captured graph: the operators of each call, by name
    results: dict[Node, list[str]]  # name of the tensor that a call gives; none of several
    values: dict[str, Node]  # names of the text: the first captured node whose result it is


def lower(graph: GraphModule, inputs: list[Any], scopes: bool = True) -> Lowered:
    """Lowers a captured graph for inputs of these sizes, strides and dtypes (fake ones will do).

    Without `scopes` the operators of an autograd.Function stand among the others.

    Example: `lower(graph, inputs).text`
    """
    lowering = _Lowering(graph)
    lowered = _trace(lowering, inputs)
    requires = [isinstance(i, torch.Tensor) and i.requires_grad for i in inputs]
    parameters = [isinstance(i, torch.nn.Parameter) for i in inputs]
    functions = lowering.functions if scopes else {}
    printer = _Printer(lowered, functions, requires, parameters)
    text = printer.text()
    alive = {node.name: node for node in lowered.graph.nodes}
    made = {
        node: [alive[n] for n in names if n in alive and _counts(alive[n], printer)]
        for node, names in lowering.made.items()
    }
    results = {
        node: [printer.name(alive[name])[1:] for name in names if name in alive]
        for node, names in lowering.results.items()
    }
    values: dict[str, Node] = {}
    for node, names in results.items():
        for name in names:
            values.setdefault(name, node)
    named = {node: printer.result_names(ops) for node, ops in made.items()}
    return Lowered(text, named, results, values)


def _counts(node: Node, printer: _Printer) -> bool:
    """False for a part of a result, and for an operator that does nothing: memory never read."""
    if node in printer.parts or node in printer.same:
        return False
    return bool(node.users) or "empty" not in str(node.target)


def _changes_nothing(node: Node) -> bool:
    """as_strided_ to the sizes that the tensor has and strides that lead to the same elements, as
    adaptive_avg_pool2d of a channels_last tensor makes them."""
    if getattr(node.target, "__name__", "") != "as_strided_.default" or len(node.args) != 3:
        return False
    before = node.args[0].meta.get("val")  # type: ignore[union-attr]
    sizes, strides = node.args[1], node.args[2]
    if not isinstance(before, torch.Tensor) or list(before.shape) != list(sizes):
        return False
    return all(n == 1 or a == b for n, a, b in zip(sizes, before.stride(), strides))


class _Lowering(Interpreter):
    """Runs the captured graph; keeps which traced nodes each of its nodes made and gave."""

    def __init__(self, graph: GraphModule) -> None:
        super().__init__(graph)
        self.functions: dict[str, str] = {}  # traced node -> "F 3", the third call of a Function F
        self.made: dict[Node, list[str]] = {}
        self.results: dict[Node, list[str]] = {}  # the tensor of a node's result; none of a tuple

    def run_node(self, n: Node) -> Any:
        mode = get_proxy_mode()
        if mode is None:
            return super().run_node(n)
        traced = mode.tracer.graph.nodes
        before = len(traced)
        result = super().run_node(n)
        new = [node.name for node in list(traced)[before:]]
        self.made[n] = new
        if isinstance(result, torch.Tensor):
            slot = get_proxy_slot(result, mode.tracer, None)
            self.results[n] = [] if slot is None else [slot.proxy.node.name]
        if is_function(n):
            calls = len(set(self.functions.values()))
            self.functions.update(dict.fromkeys(new, f"{_function_name(n)} #{calls + 1}"))
        return result


def is_function(node: Node) -> bool:
    """A call of an autograd.Function: as a whole, or as the operator that Dynamo makes of it."""
    name = getattr(node.target, "__name__", str(node.target))
    return name in ("autograd_function_apply", "trampoline_autograd_apply")


def function_class(node: Node) -> type | None:
    """The autograd.Function that a node calls as a whole."""
    if getattr(node.target, "__name__", "") != "trampoline_autograd_apply":
        return None
    held = [cell.cell_contents for cell in getattr(node.target, "__closure__", None) or ()]
    classes = [c for c in held if isinstance(c, type) and issubclass(c, torch.autograd.Function)]
    return classes[0] if len(classes) == 1 else None


def _function_name(node: Node) -> str:
    """SwishImplementation, where the node or the line that calls it says so."""
    cls = function_class(node)
    if cls is not None:
        return cls.__name__
    called = re.findall(r"(\w+)\.apply\(", node.meta.get("stack_trace") or "")
    return called[-1] if called else "Function"


def _trace(lowering: _Lowering, inputs: list[Any]) -> GraphModule:
    fake = FakeTensorMode(allow_non_fake_inputs=True)  # without a ShapeEnv: sizes stay numbers
    with fake:
        values = [_like(i) for i in inputs]
    with fake, torch.fx.traceback.preserve_node_meta():
        return make_fx(lambda *given: lowering.run(*given))(*values)


def _like(value: Any) -> Any:
    """A tensor of the same sizes, strides and dtype, symbolic sizes by what they are now."""
    if isinstance(value, torch.SymInt):
        return int(value.node.hint)
    if not isinstance(value, torch.Tensor):
        return value
    sizes = [_like(size) for size in value.shape]
    strides = [_like(stride) for stride in value.stride()]
    return torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)


class _Printer:
    """Prints one lowered graph."""

    def __init__(
        self,
        graph: GraphModule,
        functions: dict[str, str],
        requires: list[bool],
        parameters: list[bool],
    ) -> None:
        self.graph = graph.graph
        self.functions = functions
        self.requires = iter(requires)
        self.parameters = iter(parameters)
        self.grads: dict[Node, bool] = {}
        self.parts: dict[Node, tuple[Node, int]] = {}  # getitem: of which node, which result
        self.same: dict[Node, Node] = {}  # other strides where a dimension has one element

    def text(self) -> str:
        lines: list[str] = []
        function = ""
        for node in self.graph.nodes:
            now = self.functions.get(node.name, "")
            if now != function:
                lines.extend(["}"] if function else [])
                lines.extend([f"function {now} {{"] if now else [])
                function = now
            lines.extend(("  " if function else "") + line for line in self._lines(node))
        return "\n".join([*lines, *(["}"] if function else [])]) + "\n"

    def _lines(self, node: Node) -> Iterator[str]:
        if node.op == "placeholder":
            grad, parameter = next(self.requires), next(self.parameters)
            self.grads[node] = grad
            flags = (" requires_grad" if grad else "") + (" leaf parameter" if parameter else "")
            yield f"{_type(node.name, node.meta.get('val'), flags)}"
        elif node.op == "get_attr":
            yield _type(node.name, getattr(self.graph.owning_module, str(node.target), None), "")
        elif node.op == "output":
            results = [a for a in _flat(node.args) if isinstance(a, Node)]
            yield "return " + ", ".join(self.name(a) for a in results)
        elif _changes_nothing(node):
            self.same[node] = node.args[0]  # type: ignore[assignment]
        elif getattr(node.target, "__name__", "") == "getitem":
            self.parts[node] = (node.args[0], int(node.args[1]))  # type: ignore[assignment,arg-type]
        else:
            yield self._call(node)

    def _call(self, node: Node) -> str:
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            raise TypeError(f"expected a call of an operator, found {node.format_node()}")
        inputs = [a for a in _flat([*node.args, *node.kwargs.values()]) if isinstance(a, Node)]
        grad = any(self._requires(a) for a in inputs) and "detach" not in schema.name
        self.grads[node] = grad
        values = node.meta.get("val")
        several = isinstance(values, list | tuple)
        names = self.result_names_of(node)
        results = []
        for name, value in zip(names, values if several else [values], strict=True):
            floating = isinstance(value, torch.Tensor) and value.is_floating_point()
            results.append(_type(name, value, " requires_grad" if grad and floating else ""))
        arguments = [self._value(a) for a in node.args]
        arguments += [f"{k}={self._value(v)}" for k, v in node.kwargs.items()]
        name = schema.name.replace("::", ".")
        name += f".{schema.overload_name}" if schema.overload_name else ""
        return f"{', '.join(results)} = {name}({', '.join(arguments)}){_position(node)}"

    def result_names_of(self, node: Node) -> list[str]:
        values = node.meta.get("val")
        several = isinstance(values, list | tuple)
        return [f"{node.name}_{k}" for k in range(len(values))] if several else [node.name]

    def result_names(self, nodes: list[Node]) -> list[str]:
        """The first result of each operator, which stands for it."""
        return [self.result_names_of(node)[0] for node in nodes]

    def _requires(self, node: Node) -> bool:
        node = self.same.get(node, node)
        node = self.parts[node][0] if node in self.parts else node
        return self.grads.get(node, False)

    def name(self, node: Node) -> str:
        node = self.same.get(node, node)
        if node in self.parts:
            whole, index = self.parts[node]
            return f"%{whole.name}_{index}"
        return f"%{node.name}"

    def _value(self, value: Any) -> str:
        if isinstance(value, Node):
            return self.name(value)
        if isinstance(value, list | tuple):
            return "[" + ", ".join(self._value(v) for v in value) + "]"
        if isinstance(value, str):
            return f'"{value}"'
        if isinstance(value, torch.dtype):
            return _DTYPES.get(value, "?")
        if value is None or isinstance(value, bool | int | float):
            return repr(value)
        if isinstance(value, torch.device):
            return f'"{value}"'
        return f"<{type(value).__name__}>"


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value


def _type(name: str, value: Any, flags: str) -> str:
    if not isinstance(value, torch.Tensor):
        return f"%{name}: ?"
    sizes = ",".join(str(int(size)) for size in value.shape)
    text = f"%{name}: {_DTYPES.get(value.dtype, '?')}[{sizes}]"
    dense = torch.empty(value.shape, device="meta").stride()
    if value.stride() != dense:
        text += f" strides[{','.join(str(s) for s in value.stride())}]"
    if value.storage_offset():
        text += f" offset[{value.storage_offset()}]"
    if value.device.type != "cpu":
        text += " cuda" if value.device.type == "cuda" else " device[?]"
    return text + flags


def _position(node: Node) -> str:
    """` @ file:line:column-column (function) < caller`, columns where the trace underlines them."""
    found = _FRAME.finditer(node.meta.get("stack_trace") or "")
    frames = [frame for frame in found if not frame["file"].endswith(_INTERNAL)]
    if not frames:
        return ""
    texts = []
    for frame in reversed(frames):
        texts.append(f"{frame['file']}:{frame['line']}{_columns(node, frame)}")
        if len(texts) == 1:
            texts[0] += f" ({frame['function']})"
    return " @ " + " < ".join(texts)


def _columns(node: Node, frame: re.Match[str]) -> str:
    trace = node.meta["stack_trace"]
    code, _, marks = trace[frame.end() :].lstrip("\n").partition("\n")
    marks = marks.partition("\n")[0]
    if not marks.strip() or set(marks.strip()) - set("^~"):
        return ""
    source = linecache.getline(frame["file"], int(frame["line"]))
    shift = len(source) - len(source.lstrip()) - (len(code) - len(code.lstrip()))
    first = len(marks) - len(marks.lstrip()) + shift
    return f":{first}-{first + len(marks.strip())}"
