"""What the tuning took, told in plain steps of the user's own."""

from __future__ import annotations

import contextlib
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

from opfuse import fault

# Steps of the user's that we slowed down: only what goes beyond a plain step is ours.
_RECORDED = {"record": "record_s", "values": "values_s", "validate": "validate_step_s"}


class Costs:
    """Times of our own steps, and of the user's with and without us.

    `steps` are the rows of the state file, where the plain steps are found.
    Example: `with costs.stage("prove", "prove_s"): …`, then `costs.summary()["prove_s"]`
    """

    def __init__(self, steps: list[dict[str, Any]]) -> None:
        self._steps = steps
        self._seconds: dict[str, float] = {}

    def __getitem__(self, name: str) -> float:
        return self._seconds[name]

    @contextlib.contextmanager
    def stage(self, stage: str, cost: str = "") -> Iterator[None]:
        """One of our own steps: a place for faults, and its time when `cost` names it."""
        fault.reach(stage)
        begin = time.perf_counter()
        yield
        if cost:
            self._seconds[cost] = self._seconds.get(cost, 0.0) + time.perf_counter() - begin

    def recorded_step(self, side: str, seconds: float) -> None:
        if side in _RECORDED:  # what a lever records is its own cost
            self._seconds[_RECORDED[side]] = seconds

    def plain_step(self) -> float:
        """The time of a step without us: measured among the new ones, or else the last before."""
        old = self._walls("old")
        plain = self._walls("plain")
        return statistics.median(old) if old else plain[-1] if plain else 0.0

    def plain_name(self) -> str:
        plain = [row["step"] for row in self._steps if row["side"] == "plain"]
        return "a plain step" if self._walls("old") or not plain else f"step {plain[-1]}"

    def _walls(self, side: str) -> list[float]:
        return [row["wall"] for row in self._steps if row["side"] == side]

    def summary(self) -> dict[str, Any]:
        """The `costs` of the result."""
        plain = self.plain_step()
        steps = set(_RECORDED.values())
        extra = sum(max(s - plain, 0.0) for name, s in self._seconds.items() if name in steps)
        ours = sum(s for name, s in self._seconds.items() if name not in steps)
        unit = 2**20 if sys.platform == "darwin" else 2**10
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
        return {
            **{name: round(seconds, 6) for name, seconds in self._seconds.items()},
            "plain_step_s": round(plain, 6),
            "total_in_plain_steps": round((extra + ours) / plain, 2) if plain > 0 else None,
            "memory_peak_mb": round(peak, 1),
        }
