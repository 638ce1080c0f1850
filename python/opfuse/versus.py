"""torch.compile of the root module against the same module as it is, in alternating steps.

This runs in a process of its own, after the tuning: what is compiled there reaches nobody else.
"""

from __future__ import annotations

from typing import Any

import torch

from opfuse.boundary import Boundaries, StepSample
from opfuse.levers import Alternate, Steps
from opfuse.state import State

_MISSING = object()
_WARM_STEPS = 3  # the first call compiles; the next may compile again for another mode or shape


class VersusRefused(RuntimeError):
    """Why torch.compile is not measured here, as a sentence."""


class CompiledForward:
    """The two sides: the root's forward compiled, and as it is. Its hooks run outside either.

    Example: `side = CompiledForward(root, "inductor"); side.set(True); side.set(False)`
    """

    def __init__(self, root: Any, backend: str) -> None:
        self._root = root
        self._own = root.__dict__.get("forward", _MISSING)
        self._compiled = torch.compile(root.forward, backend=backend)
        self.on = False

    def set(self, on: bool) -> None:
        if on == self.on:
            return
        if on:
            self._root.forward = self._compiled
        elif self._own is _MISSING:
            del self._root.forward
        else:
            self._root.forward = self._own
        self.on = on


def run(
    backend: str,
    state: State,
    boundaries: Boundaries,
    alternate: Alternate,
    plain_step_s: float,
    *,
    ranks: bool,
) -> Steps:
    """Fills `versus` of the result: seconds of the first compiled step, then `ab`, the original
    against it. Raises VersusRefused where it is not measured."""
    row = {"name": "torch.compile", "backend": backend, "outcome": "running", "reason": "",
           "plain_step_s": plain_step_s}  # fmt: skip
    state.result["versus"] = row
    root = boundaries.root
    if ranks or root is None:
        reason = "it is measured in a script of one process whose root module is called"
        row.update(outcome="refused", reason=reason)
        raise VersusRefused(reason)
    boundaries.compiles = True
    text = f"compiling {type(root).__name__} with torch.compile ({backend})"
    state.event(text, boundaries.step, "compiling")
    side = CompiledForward(root, backend)
    side.set(True)
    first: StepSample = yield "compile"
    row["first_step_s"] = first.wall_s
    text = f"the first compiled step took {first.wall_s:.3g} s"
    state.event(text, boundaries.step, "measuring")
    for _ in range(_WARM_STEPS):
        yield "warm"
    yield from alternate(side, lambda ab: row.update(ab=ab), ("eager", "compiled"), 0)
    row["outcome"] = row["ab"]["outcome"]
    side.set(False)
