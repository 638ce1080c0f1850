"""torch.compile of the root module against the same module as it is, in alternating steps.

This runs in a process of its own, after the tuning: what is compiled there reaches nobody else.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import torch

from opfuse.boundary import StepSample

Steps = Generator[str, StepSample, Any]
_MISSING = object()
_WARM_STEPS = 3  # the first call compiles; the next may compile again for another mode or shape


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


def measure(
    side: CompiledForward,
    row: dict[str, Any],
    alternate: Callable[..., Steps],
    say: Callable[[str, str], None],
) -> Steps:
    """Fills `row`: seconds of the first compiled step, then `ab`, the original against it."""
    side.set(True)
    first: StepSample = yield "compile"
    row["first_step_s"] = first.wall_s
    say(f"the first compiled step took {first.wall_s:.3g} s", "measuring")
    for _ in range(_WARM_STEPS):
        yield "warm"
    yield from alternate(side, lambda ab: row.update(ab=ab), ("eager", "compiled"), 0)
    row["outcome"] = row["ab"]["outcome"]
    side.set(False)
