"""Levers: what makes a step faster beside its operators, and changes no bit of its results.

Each is tried live in alternating steps after the operators were decided, and kept only if it wins.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from opfuse import wording
from opfuse.boundary import Boundaries, StepSample
from opfuse.state import State
from opfuse.switch import Switch

Steps = Generator[str, StepSample, Any]
# Measures two sides: (sides, publish, labels of their steps, steps to warm up after a change).
Alternate = Callable[[Any, Callable[[dict[str, Any]], None], tuple[str, str], int], Steps]


class LeverRefused(RuntimeError):
    """Why a lever is not tried here, as a sentence."""


class MemoryLever:
    """CPU memory of tensors from a cache: see opfuse.memory. Raises LeverRefused where it cannot be
    tried.

    Example: `lever = MemoryLever(config, root); lever.set(True); lever.set(False)`
    """

    name = "memory"
    what = "CPU memory of tensors is kept and reused"
    lines = ("import opfuse.memory", "opfuse.memory.use_caching_allocator()")
    warm_steps = 1  # the first step after a change fills the cache, or meets fresh pages

    def __init__(self, config: dict[str, Any], root: Any):
        devices = (
            {tensor.device.type for tensor in root.parameters()} if root is not None else set()
        )
        if devices - {"cpu"}:
            raise LeverRefused(f"the model is on {', '.join(sorted(devices))}")
        from opfuse import library

        library.look_beside(config["library"])
        try:
            from opfuse import memory

            if memory.in_use():
                raise LeverRefused("the script uses opfuse.memory already")
        except ImportError as error:
            raise LeverRefused(str(error)) from None
        self._memory = memory
        self.on = False

    def set(self, on: bool) -> None:
        if on == self.on:
            return
        if not on:
            self._memory.stop()
        else:
            try:
                self._memory.use_caching_allocator()
            except RuntimeError as error:
                raise LeverRefused(str(error)) from None
        self.on = on


LEVERS = {lever.name: lever for lever in (MemoryLever,)}


class Together:
    """Several sides switched as one.

    Example: `Together(switch, lever).set(True)`
    """

    def __init__(self, *sides: Any):
        self.sides = sides

    @property
    def on(self) -> bool:
        return all(side.on for side in self.sides)

    def set(self, on: bool) -> None:
        for side in self.sides:  # the code first: it alone can be refused, and then nothing moved
            side.set(on)


class LeverTrials:
    """Each lever against the code as it is by then; then all that is kept against the original.

    Writes `levers` and `together` of the result. Example: `yield from trials.run(["memory"], …)`
    """

    def __init__(self, config: dict[str, Any], state: State, boundaries: Boundaries):
        self.config = config
        self.state = state
        self.boundaries = boundaries
        self.kept: list[Any] = []
        self._trying: Any = None

    def run(self, names: list[str], switch: Switch, alternate: Alternate, ranks: bool) -> Steps:
        rows: list[dict[str, Any]] = []
        self.state.result["levers"] = rows
        for name in names:
            row = {"name": name, "outcome": "refused", "reason": "", "kept": False}
            rows.append(row)
            try:
                if ranks:
                    raise LeverRefused("ranks cannot switch it together yet")
                yield from self._try(
                    LEVERS[name](self.config, self.boundaries.root), row, alternate
                )
            except LeverRefused as refused:
                self._trying = None
                row["reason"] = str(refused)
                self._say(f"lever {name}: {refused}")
        if self.kept and switch.on:
            yield from self._all(Together(switch, *self.kept), alternate)

    def _try(self, lever: Any, row: dict[str, Any], alternate: Alternate) -> Steps:
        row.update(what=lever.what, lines=list(lever.lines), outcome="running")
        self._trying = lever
        self._say(f"trying lever {lever.name}: {lever.what}", "measuring")
        labels = (f"{lever.name}_off", f"{lever.name}_on")
        yield from alternate(lever, lambda ab: row.update(ab=ab), labels, lever.warm_steps)
        row.update(outcome=row["ab"]["outcome"], reason=wording.ratio(row["ab"]))
        row["kept"] = row["outcome"] == "tuned"
        lever.set(row["kept"])
        self._trying = None
        if row["kept"]:
            self.kept.append(lever)
        self._say(f"lever {lever.name} {'' if row['kept'] else 'not '}kept: {row['reason']}")

    def _all(self, everything: Together, alternate: Alternate) -> Steps:
        self._say("measuring everything that is kept against the original code", "measuring")
        result = self.state.result
        warm = max(lever.warm_steps for lever in self.kept)
        publish = lambda ab: result.update(together=ab)  # noqa: E731
        yield from alternate(everything, publish, ("all_off", "all_on"), warm)
        everything.set(True)
        self._say(f"everything that is kept: {wording.ratio(result['together'])}")

    def interrupted(self, reason: str) -> None:
        """The script ended while a lever was tried."""
        for row in self.state.result.get("levers", []):
            if row["outcome"] == "running":
                row.update(outcome="undecided", reason=reason)

    def undo(self) -> None:
        """Everything as it was before any lever. Safe at any time."""
        for lever in [*self.kept, *([self._trying] if self._trying is not None else [])]:
            lever.set(False)
        self.kept.clear()
        self._trying = None

    def _say(self, text: str, phase: str = "") -> None:
        self.state.event(text, self.boundaries.step, phase)
