"""Fused operators in the graph that Dynamo captures of the root module: see opfuse.backend.

For chains that no edit of source code reaches: across modules and functions. Each is proved at the
first call, by opfuse.chain_proof.
"""

from __future__ import annotations

import types
from typing import Any

import torch
import torch._dynamo.config as dynamo

from opfuse.levers.lever import Context, Lever, LeverRefused, Steps, devices_of, wrapper_of

_MISSING = object()
# The first call captures and proves; the second may capture again, where the first made state.
_PREPARING_STEPS = 3
_SETTINGS = ("skip_nnmodule_hook_guards", "suppress_errors")  # Dynamo's, that we change


class Forward:
    """The compiled forward in the place of a module's own, and to whoever looks at it that bound
    method itself: its signature, its source, what a copied or pickled module takes along.
    """

    def __init__(self, root: Any, compiled: Any) -> None:
        self.__self__ = root
        self.__func__ = type(root).forward
        self._root = root  # for Dynamo, which takes __self__ to be a real method's
        self._compiled = compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.jit.is_tracing() or torch.compiler.is_compiling():
            return type(self._root).forward(self._root, *args, **kwargs)
        return self._compiled(*args, **kwargs)

    @property
    def __class__(self) -> type:  # what isinstance() and inspect go by
        return types.MethodType

    def __getattr__(self, name: str) -> Any:
        if name == "__func__":  # not yet set
            raise AttributeError(name)
        return getattr(self.__func__, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.__self__, "forward")  # made before its attributes: the class's


class GraphLever(Lever):
    """`opfuse.backend.optimize(model)`, its hooks outside. Results may differ in rounding."""

    name = "graph"
    what = "fused operators in the graph that torch.compile captures"
    lines = ("import opfuse.backend", "model = opfuse.backend.optimize(model)")
    where = "after the model is made"

    def __init__(self, context: Context) -> None:
        root = context.boundaries.root
        if root is None:
            raise LeverRefused("no root module is called")
        if devices := devices_of(root) - {"cpu"}:
            raise LeverRefused(f"the model is on {', '.join(sorted(devices))}")
        if wrapper := wrapper_of(root):
            raise LeverRefused(f"the root module is a {wrapper}")
        own = root.__dict__.get("forward", _MISSING)
        if own is not _MISSING:
            raise LeverRefused("the root module's forward is set on the object, not its class")
        from opfuse import library

        library.look_beside(context.config.get("library", ""))
        if problem := library.problem():
            raise LeverRefused(problem)
        from opfuse import backend

        self._backend = backend
        self._root = root
        self._boundaries = context.boundaries
        self._allow = "E2" if context.config.get("allow") == "E2" else "E1"
        self._dynamo = {name: getattr(dynamo, name) for name in _SETTINGS}

    def prepare(self) -> Steps:
        dynamo.suppress_errors = True  # what cannot be captured runs as it is
        compiled = self._backend.optimize(self._root.forward, allow=self._allow)
        self._forward = Forward(self._root, compiled)
        begin = len(self._backend.reports())
        self._boundaries.compiles = True
        self.set(True)
        for _ in range(_PREPARING_STEPS):
            yield "capture"
        self.set(False)
        reports = self._backend.reports()[begin:]
        replaced: dict[str, int] = {}
        for report in reports:
            for rule, count in report.replaced().items():
                replaced[rule] = replaced.get(rule, 0) + count
        if not replaced:
            raise LeverRefused(_why_nothing(reports))
        counts = sorted(replaced.items(), key=lambda item: -item[1])
        self.what += ": " + ", ".join(f"{count} {rule}" for rule, count in counts)

    def set(self, on: bool) -> None:
        if on == self.on:
            return
        if on:
            self._root.forward = self._forward
        else:
            del self._root.forward
        self.on = on

    def drop(self) -> None:
        self.set(False)
        for name, value in self._dynamo.items():
            setattr(dynamo, name, value)


def _why_nothing(reports: list[Any]) -> str:
    if not reports:
        return "Dynamo captured no graph of the root module's forward"
    for report in reports:
        if report.declined:
            return f"the captured graph runs as it is: {report.declined}"
    refusals = [chain.refusal for report in reports for chain in report.chains if chain.refusal]
    return f"no chain was replaced: {refusals[0]}" if refusals else "no chain was found in it"
