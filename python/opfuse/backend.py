"""`torch.compile(model, backend="opfuse")`: fused operators in place of chains of small ones, in
the graph that Dynamo captures; the graph runs eagerly, under ordinary autograd.

The chains are found as in a recorded step, across modules and functions. The first call runs the
captured graph as it is, up to the end of a chain; there its replacement is proved on the values of
that call, in float64 and in their own dtype, with gradients and buffers (opfuse.chain_proof), and
one that holds gives the values that the call goes on with: what the chain had saved for its
backward is let go. From the second call on the graph runs with those that held. What is not
replaced is exactly what Dynamo captured.

    import opfuse.backend
    model = opfuse.backend.optimize(model)            # or torch.compile(model, backend="opfuse")
    model(x); model(x)
    print(opfuse.backend.reports()[-1])
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._higher_order_ops.wrap import tag_activation_checkpoint
from torch.fx import GraphModule, Interpreter, Node
from torch.utils.checkpoint import checkpoint

from opfuse import capture, library, memory, native
from opfuse.chain_proof import Proof
from opfuse.chain_rewrite import Chain, ChainRefused, chain_of, rewritten

log = logging.getLogger("opfuse")
_REPORTS: list[Report] = []


@dataclass
class ChainReport:
    """One chain of a captured graph."""

    rule: str
    place: str  # "net.py:30"
    python: str  # what it became, or would
    refusal: str = ""  # why it stays; "" when it is replaced


@dataclass
class Report:
    """One captured graph: what was found and what became of it."""

    operators: int = 0
    chains: list[ChainReport] = field(default_factory=list)
    declined: str = ""  # why the graph runs as it is
    seconds: float = 0.0  # lowering, matching and proof

    def replaced(self) -> dict[str, int]:
        """Chains replaced, by rule."""
        found: dict[str, int] = {}
        for chain in self.chains:
            if not chain.refusal and not self.declined:
                found[chain.rule] = found.get(chain.rule, 0) + 1
        return found

    def __str__(self) -> str:
        if self.declined:
            return f"opfuse: the graph runs as it is: {self.declined}"
        replaced = ", ".join(f"{count} {rule}" for rule, count in self.replaced().items())
        lines = [
            f"opfuse: {self.operators} operators, replaced: {replaced or 'nothing'} "
            f"({self.seconds:.1f} s)"
        ]
        reasons: dict[str, int] = {}
        for chain in self.chains:
            part_of_another = chain.refusal.startswith("shares ")
            if chain.refusal and not part_of_another:
                text = f"{chain.rule}: {chain.refusal}"
                reasons[text] = reasons.get(text, 0) + 1
        return "\n".join(lines + [f"  stays: {n} {text}" for text, n in reasons.items()])


def reports() -> list[Report]:
    """What became of each graph captured so far in this process, oldest first.

    Example: `print(opfuse.backend.reports()[-1])`
    """
    return list(_REPORTS)


def optimize(model: Any, *, allow: str = "E1", **options: Any) -> Any:
    """`torch.compile(model, backend=opfuse)`; `options` are torch.compile's others.

    `allow="E2"` also takes operators that give another infinity or NaN where inputs are infinite
    (docs/legality.md). Hooks that modules get later are seen: Dynamo, which by itself does not look
    for them again, is told to. Raises ImportError when the library is not built.

    Example: `model = opfuse.backend.optimize(model)`
    """
    if allow not in ("E1", "E2"):
        raise ValueError(f"optimize: expected allow to be 'E1' or 'E2', found {allow!r}")
    library.load()
    keep_functions_whole()
    torch._dynamo.config.skip_nnmodule_hook_guards = False

    def backend(graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        return compile_graph(graph, inputs, allow=allow)

    return torch.compile(model, backend=backend, **options)


def keep_functions_whole() -> None:
    """Has Dynamo keep each call of a custom autograd.Function as it is.

    By itself Dynamo makes an operator of it that loses second derivatives.
    """
    pending: list[type] = list(torch.autograd.Function.__subclasses__())
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        if cls.__module__.split(".")[0] != "torch":
            torch._dynamo.allow_in_graph(cls)


def compile_graph(
    graph: GraphModule, inputs: list[Any], *, allow: str = "E1"
) -> Callable[..., Any]:
    """The backend that torch.compile calls: what runs in place of a captured graph.

    Example: `torch.compile(model, backend=opfuse.backend.compile_graph)`
    """
    report = Report()
    _REPORTS.append(report)
    _keep_checkpoints(graph)
    started = time.perf_counter()
    try:
        chains = _find(graph, inputs, allow, report)
    except Exception as error:  # the user's model runs, whatever happens here
        report.declined = f"{type(error).__name__}: {error}"
        log.warning("%s", report)
        return graph.forward
    report.seconds = time.perf_counter() - started
    if not chains:
        log.info("%s", report)
        return graph.forward
    return _Callable(graph, chains, report)


def _keep_checkpoints(graph: GraphModule) -> None:
    """Has torch.utils.checkpoint save what wants gradients alone, as in eager code.

    In a captured graph the buffers of the checkpointed modules are arguments; saved, they could not
    be written any more, which a batch norm does.
    """
    found = [n for n in graph.graph.nodes if n.target is tag_activation_checkpoint]
    for node in found:
        node.target = _checkpointed
    if found:
        graph.recompile()


def _checkpointed(body: Any, *args: Any, **options: Any) -> Any:
    options, own = tag_activation_checkpoint.divide_kwargs(options)
    wanting = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor) and a.requires_grad]

    def run(*given: Any) -> Any:
        filled = list(args)
        for index, value in zip(wanting, given):
            filled[index] = value
        return body(*filled, **own)

    return checkpoint(run, *(args[index] for index in wanting), **options)


def _find(graph: GraphModule, inputs: list[Any], allow: str, report: Report) -> list[Chain]:
    if any(str(n.target) == "autograd_function_apply" for n in graph.graph.nodes):
        keep_functions_whole()  # for what is captured from now on
        raise ChainRefused(
            "Dynamo took an autograd.Function apart, which loses second derivatives; call "
            "opfuse.backend.optimize(model), which keeps it whole"
        )
    lowered = capture.lower(graph, inputs, scopes=False)
    session = native.Native(str(library.find().parent / "libopfuse_torch.so"))
    device = next((i.device.type for i in inputs if isinstance(i, torch.Tensor)), "cpu")
    answer = session.call("match_captured", text=lowered.text, device=device, allow=allow)
    report.operators = answer["operators"]
    symbolic = any(isinstance(i, torch.SymInt) for i in inputs)
    chains = []
    for found in answer["chains"]:
        entry = ChainReport(found["rule"], found["place"], found["python"], found["refusal"])
        report.chains.append(entry)
        if entry.refusal:
            continue
        try:
            if symbolic and found["uses_sizes"]:
                raise ChainRefused("it depends on a size that may change")
            chains.append(chain_of(graph, lowered, found, entry))
        except ChainRefused as reason:
            entry.refusal = str(reason)
    return chains


class _Callable:
    """A captured graph: the first call proves, the others run what was proved."""

    def __init__(self, graph: GraphModule, chains: list[Chain], report: Report) -> None:
        self.graph = graph
        self.chains = chains
        self.report = report
        self.forward: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        if self.forward is not None:
            return self.forward(*args)
        started = time.perf_counter()
        first = _FirstCall(self.graph, self.chains)
        result = first.run(*args)
        held = [chain for chain in self.chains if not chain.report.refusal]
        try:
            self.forward = rewritten(self.graph, held).forward if held else self.graph.forward
        except Exception as error:
            self.report.declined = f"{type(error).__name__}: {error}"
            self.forward = self.graph.forward
        self.report.seconds += time.perf_counter() - started
        log.info("%s", self.report)
        return result


class _FirstCall(Interpreter):
    """Runs the captured graph; where a chain's last operator has run it is proved, and replaced if
    the proof holds."""

    def __init__(self, graph: GraphModule, chains: list[Chain]) -> None:
        super().__init__(graph)
        self.captured = graph
        self.starts: dict[Node, list[Chain]] = {}
        self.ends: dict[Node, list[Chain]] = {}
        order = {node: index for index, node in enumerate(graph.graph.nodes)}
        for chain in chains:
            first = min([chain.nodes[0], *chain.same], key=order.__getitem__)
            self.starts.setdefault(first, []).append(chain)
            self.ends.setdefault(chain.nodes[-1], []).append(chain)
        self.proofs: dict[int, Proof] = {}

    def run_node(self, n: Node) -> Any:
        # Each input is known before the chain's last operator, some not before its first.
        for chain in self.starts.get(n, ()):
            self.proofs[id(chain)] = Proof(chain, self.captured)
        for proof in self.proofs.values():
            proof.hold(self.env)
        result = super().run_node(n)
        for chain in self.ends.get(n, ()):
            proof = self.proofs.pop(id(chain))
            chain.report.refusal = proof.problem()
            if not chain.report.refusal:
                made = dict(zip(chain.outputs, proof.adopted() or ()))
                result = made.pop(n, result)
                self.env.update(made)
            # No step after this one has tensors of a proof's sizes, or of what the chain made.
            memory.trim()
        return result


keep_functions_whole()  # those that are known already; optimize() looks again
