"""Is a fused operator the function that a chain of a captured graph computes? Asked on the values
of a running call, with gradients and buffers, in float64 and in the call's own dtypes.

In float64 both must agree to 2^-40 of the tensor's largest magnitude: that is the same function. A
custom autograd.Function has a backward that the graph does not show: with one in the chain that is
asked again with all values 64 times as large, and as small, so that what it does far from this
call's values is seen. In the call's dtypes the fused operator's distance to the float64 values may
be twice the chain's, and eight roundoffs of the largest magnitude (u = eps / 2) beyond; dtype,
sizes and strides must be the chain's. The limits are those of opfuse/verify/metrics.h, taken over
a tensor as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from opfuse.capture import is_function
from opfuse.chain_rewrite import Chain, composition

SAME_FUNCTION = 2.0**-40
ALLOWED_ROUNDOFFS = 8
FAR = (64.0, 1 / 64)  # times the call's values
# There a gate is 1 to the last bit, and what is left of its gradient is rounding: cotangents are up
# to 1/2, so what is below a thousandth counts as no gradient.
SAME_FAR, LEAST_SCALE_FAR = 2.0**-20, 1e-3
SAMPLES = 2  # of the leading dimension, where all that is computed there is one sample's
_SMALL = 1 << 16  # elements: buffers that the chain itself writes are copied before it
_LOWERING_CASTS = {"float": "double", "half": "double", "bfloat16": "double"}


class Proof:
    """What one chain's proof needs, gathered while the graph runs."""

    def __init__(self, chain: Chain, graph: GraphModule) -> None:
        self.chain = chain
        self.graph = graph
        self.originals: dict[Node, Any] = {}
        self.values: dict[Node, Any] = {}  # the same, copies of what may be written
        self.versions: dict[Node, int] = {}

    def hold(self, env: dict[Node, Any]) -> None:
        """Takes the inputs that are known by now."""
        for node in self.chain.inputs:
            if node in self.values or node not in env:
                continue
            value = self.originals[node] = env[node]
            if isinstance(value, Tensor):
                self.versions[node] = value._version
                if not value.requires_grad and value.numel() <= _SMALL:
                    value = value.clone()
            self.values[node] = value

    def problem(self) -> str:
        """Why the fused operator may not take the chain's place; "" when it may."""
        missing = [n.name for n in self.chain.inputs if n not in self.values]
        if missing:
            return f"its input {missing[0]} was not seen"
        for node, value in self.values.items():
            written = isinstance(value, Tensor) and value._version != self.versions[node]
            if written and value.numel() > _SMALL:
                return f"its input {node.name} is written while it runs"
        found = "it could not be proved"
        for values in (_first_samples(self.values), self.values):
            if values is None:
                continue
            try:
                with torch.random.fork_rng(devices=[]):
                    alone = composition(self.graph, self.chain)
                    found = _compare(alone, self.chain, values) or self._far(alone, values)
            except Exception as error:  # sizes that the graph holds as numbers, among others
                found = f"it could not be proved: {type(error).__name__}: {error}".splitlines()[0]
            if not found:
                return ""
        return found

    def _far(self, alone: GraphModule, values: dict[Node, Any]) -> str:
        if not any(is_function(node) for node in self.chain.nodes):
            return ""
        for factor in FAR:
            scaled = {node: _scaled(value, factor) for node, value in values.items()}
            limits = (SAME_FAR, LEAST_SCALE_FAR)
            _, _, found = _same_function(alone, self.chain, scaled, *limits)
            if found:
                return f"{found}, with values {factor:g} times this call's"
        return ""

    def adopted(self) -> tuple[Any, ...] | None:
        """What the fused operator gives on the call's own inputs, as `chain.outputs`, after a proof
        that held. Buffers that the chain has written are first as they were before it. None, and
        nothing has changed, where that cannot be done: on other devices and where numbers are
        drawn, which would be drawn twice.
        """
        tensors = {n: v for n, v in self.originals.items() if isinstance(v, Tensor)}
        if any(tensor.device.type != "cpu" for tensor in tensors.values()):
            return None
        # By value: batch norm's running statistics change without a new version.
        written = [n for n, tensor in tensors.items() if not _same(tensor, self.values[n])]
        after = {node: tensors[node].detach().clone() for node in written}
        drawn = torch.get_rng_state()
        try:
            _write(tensors, {node: self.values[node] for node in written})
            results = self.chain.call(self.originals)
        except Exception:  # as on a proof's values, but memory may be short
            results = None
        if results is None or not torch.equal(drawn, torch.get_rng_state()):
            torch.set_rng_state(drawn)
            _write(tensors, after)
            return None
        return results


def _same(tensor: Tensor, before: Tensor) -> bool:
    return before is tensor or torch.equal(before, tensor)


@torch.no_grad()
def _write(tensors: dict[Node, Tensor], values: dict[Node, Tensor]) -> None:
    for node, value in values.items():
        tensors[node].copy_(value)


def _first_samples(values: dict[Node, Any]) -> dict[Node, Any] | None:
    """The values of the first samples alone; None where no leading dimension is the batch's."""

    def has_samples(value: Any) -> bool:
        plain = isinstance(value, Tensor) and not isinstance(value, torch.nn.Parameter)
        return plain and value.dim() > 1

    batch = max((v.shape[0] for v in values.values() if has_samples(v)), default=0)
    if batch <= SAMPLES:
        return None
    return {
        node: v[:SAMPLES] if has_samples(v) and v.shape[0] == batch else v
        for node, v in values.items()
    }


def _scaled(value: Any, factor: float) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return (value.detach() * factor).requires_grad_(value.requires_grad)


def _compare(alone: GraphModule, chain: Chain, values: dict[Node, Any]) -> str:
    truth, grad, found = _same_function(alone, chain, values)
    return found or _compare_accuracy(alone, chain, values, truth, grad)


def _same_function(
    alone: GraphModule,
    chain: Chain,
    values: dict[Node, Any],
    limit: float = SAME_FUNCTION,
    least_scale: float = 0.0,
) -> tuple[list[tuple[str, Tensor | None]], bool, str]:
    """What the chain gives in float64, whether gradients were taken, and where the fused operator
    gives something else."""
    grad = torch.is_grad_enabled()
    old64 = _Run(values, chain, torch.float64, grad)
    old64.run(lambda given: _InFloat64(alone).run(*given.values()))
    new64 = _Run(values, chain, torch.float64, grad)
    new64.run(chain.call)
    truths = list(old64.results())
    for (name, truth), (_, other) in zip(truths, new64.results(), strict=True):
        if truth is None or other is None:
            if truth is not other:
                return truths, grad, f"{name} exists on one side alone"
            continue
        scale = truth.abs().max().item() if truth.numel() else 0.0
        distance = (truth - other).abs().max().item() if truth.numel() else 0.0
        if not distance <= limit * max(scale, least_scale):
            problem = f"{name} differs by {distance:.1e} of {scale:.1e} in float64"
            return truths, grad, f"another function: {problem}"
    return truths, grad, ""


def _compare_accuracy(
    alone: GraphModule,
    chain: Chain,
    values: dict[Node, Any],
    truths: list[tuple[str, Tensor | None]],
    grad: bool,
) -> str:
    old = _Run(values, chain, None, grad)
    old.run(lambda given: Interpreter(alone).run(*given.values()))
    new = _Run(values, chain, None, grad)
    new.run(chain.call)
    for (name, truth), (_, before), (_, after) in zip(
        truths, old.results(), new.results(), strict=True
    ):
        if truth is None or before is None or after is None:
            if before is not after:
                return f"{name} exists on one side alone"
            continue
        if before.dtype != after.dtype:
            return f"{name} is {after.dtype}, expected {before.dtype}"
        # Strides of a gradient are nobody's business: autograd adds it to others.
        strided = _strides(before) != _strides(after) and not name.startswith("gradient")
        if before.shape != after.shape or strided:
            return (
                f"{name} has sizes {tuple(after.shape)} and strides {after.stride()}, expected "
                f"{tuple(before.shape)} and {before.stride()}"
            )
        if not truth.numel():
            continue
        scale = truth.abs().max().item()
        if name.endswith("afterwards"):  # a mean of the inputs or their squares, which may cancel
            scale = max(scale, old.largest_input() ** 2, old.largest_input())
        roundoff = torch.finfo(before.dtype).eps / 2 if before.is_floating_point() else 0.0
        error_old = (before.double() - truth).abs().max().item()
        error_new = (after.double() - truth).abs().max().item()
        if not error_new <= 2 * error_old + ALLOWED_ROUNDOFFS * roundoff * scale:
            return f"less accurate: {name} is {error_new:.1e} off, {error_old:.1e} before"
    return ""


def _strides(tensor: Tensor) -> tuple[int, ...]:
    """Of the dimensions that are walked along."""
    return tuple(s for s, size in zip(tensor.stride(), tensor.shape) if size > 1)


class _Run:
    """One side: copies of the inputs, what it gave, what it wrote."""

    def __init__(
        self, values: dict[Node, Any], chain: Chain, dtype: torch.dtype | None, grad: bool
    ) -> None:
        self.given: dict[Node, Any] = {}
        for node in chain.inputs:
            value = values[node]
            if isinstance(value, Tensor):
                wants = grad and value.requires_grad
                value = value.detach().clone()
                if dtype is not None and value.is_floating_point():
                    value = value.to(dtype)
                value.requires_grad_(wants)
            self.given[node] = value
        self.outputs: list[Tensor] = []
        self.gradients: list[Tensor | None] = []

    def run(self, function: Callable[[dict[Node, Any]], tuple[Tensor, ...]]) -> None:
        self.outputs = list(function(self.given))
        wanted = [v for v in self.given.values() if isinstance(v, Tensor) and v.requires_grad]
        targets = [output for output in self.outputs if output.requires_grad]
        if not wanted or not targets:
            return
        cotangents = []
        for index, target in enumerate(targets):
            generator = torch.Generator().manual_seed(index)
            noise = torch.rand(target.shape, generator=generator, dtype=torch.float64) - 0.5
            cotangents.append(
                torch.empty_like(target.detach()).copy_(noise.to(torch.bfloat16))
            )  # the same numbers in every dtype
        self.gradients = list(torch.autograd.grad(targets, wanted, cotangents, allow_unused=True))

    def largest_input(self) -> float:
        """The largest magnitude of what the chain reads."""
        tensors = [v for v in self.given.values() if isinstance(v, Tensor) and v.numel()]
        return max((float(t.detach().abs().max()) for t in tensors if t.is_floating_point()),
                   default=0.0)  # fmt: skip

    def results(self) -> Iterator[tuple[str, Tensor | None]]:
        """Outputs, gradients and, of inputs without gradient, what they hold afterwards."""
        for index, output in enumerate(self.outputs):
            yield f"result {index + 1}", output.detach()
        for index, gradient in enumerate(self.gradients):
            yield f"gradient {index + 1}", gradient
        for node, value in self.given.items():
            if isinstance(value, Tensor) and not value.requires_grad:
                if value.is_floating_point() and value.numel() <= _SMALL:
                    yield f"{node.name} afterwards", value


class _InFloat64(Interpreter):
    """Runs a graph with its casts to float32 and lower left out: the truth."""

    def run_node(self, n: Node) -> Any:
        if n.op == "call_method" and n.target in _LOWERING_CASTS:
            args, _ = self.fetch_args_kwargs_from_env(n)
            return args[0].double()
        return super().run_node(n)

    def fetch_args_kwargs_from_env(self, n: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        return tuple(map(_raised, args)), {k: _raised(v) for k, v in kwargs.items()}


def _raised(value: Any) -> Any:
    low = (torch.float32, torch.float16, torch.bfloat16)
    return torch.float64 if any(value is dtype for dtype in low) else value
