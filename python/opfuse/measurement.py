"""The alternating measurement: which side each step runs, and what its sample is worth.

The statistics are the session's (opfuse/verify/statistics.h); here is what needs the program.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from typing import Any, Protocol

from opfuse import distributed, fault
from opfuse.boundary import Boundaries, StepSample
from opfuse.state import State
from opfuse.switch import SwitchRefused

_SEED = 1
_BUSY_BOUNDARIES = 16


class Sides(Protocol):
    """What is switched between two steps. `set` raises SwitchRefused when it cannot just now."""

    on: bool

    def set(self, on: bool) -> None: ...


class Measurement:
    """Old and new steps in random order until the session has decided.

    `publish` gets the session's answer whenever there is news. `labels` name the steps of both
    sides. After each change `warm_steps` steps run that do not count. With `ranks`, `meeting` names
    the one at which they end this measurement.
    Example: `m.open(); yield from m.run(); outcome = m.close()`
    """

    def __init__(
        self,
        session: Any,
        state: State,
        boundaries: Boundaries,
        sides: Sides,
        publish: Callable[[dict[str, Any]], None],
        *,
        ranks: distributed.Ranks | None = None,
        meeting: str = "end",
        budget: int = 64,
        labels: tuple[str, str] = ("old", "new"),
        warm_steps: int = 0,
    ) -> None:
        self.session = session
        self.state = state
        self.boundaries = boundaries
        self.sides = sides
        self.publish = publish
        self.ranks = ranks
        self.meeting = meeting
        self.budget = budget
        self.labels = labels
        self.warm_steps = warm_steps
        self._open = False
        self._busy = 0

    def open(self) -> None:
        self.session.call("ab_open", seed=_SEED)
        self._open = self.boundaries.measuring = True

    def run(self) -> Generator[str, StepSample, None]:
        """Yields the coming step's side; ends when it is decided. Raises SwitchRefused when the
        code to switch was running at too many boundaries."""
        for position in itertools.count():
            coming = self.session.call("ab_next")
            done = coming["phase"] == "done"
            if self._decided(done, coming["outcome"]):
                return
            replaced = self._side(coming, position)
            changes = replaced != self.sides.on
            usable = self._try_switch(replaced)
            for _ in range(self.warm_steps if changes else 0):
                yield "warm"
                if self.ranks is not None and self.ranks.due(self.meeting, self.boundaries.step):
                    return
            sample: StepSample = yield self.labels[self.sides.on]
            fault.reach("measure")
            if not usable:
                self.session.call("ab_discard")
            elif not done:
                self._add(sample, replaced)
                self._show_progress()

    def close(self) -> dict[str, Any]:
        """Publishes what is known and gives it back. May be called at any time, once."""
        assert self._open
        self._open = self.boundaries.measuring = False
        ab = self.session.call("ab_state")
        if self.ranks is not None and self.ranks.value(self.meeting):
            ab["outcome"] = self.ranks.value(self.meeting)
        self.publish(ab)
        return ab

    @property
    def is_open(self) -> bool:
        return self._open

    def _try_switch(self, replaced: bool) -> bool:
        """False when the code runs just now, in another thread: then this step does not count."""
        try:
            self.sides.set(replaced)
        except SwitchRefused:
            self._busy += 1
            if self._busy > _BUSY_BOUNDARIES:
                raise
            return False
        return True

    def _add(self, sample: StepSample, replaced: bool) -> None:
        if sample.forwards == 0 and self.boundaries.kind == "root":
            self.session.call("ab_discard")
            return
        self.session.call(
            "ab_add",
            replaced=replaced,
            wall=sample.wall_s,
            cpu=sample.cpu_s,
            data=sample.data_s,
            signature=sample.signature,
            step=sample.step,
        )

    def _show_progress(self) -> None:
        coming = self.session.call("ab_state")
        self.publish(coming)
        done, total = coming.get("counted_steps", 0), self.budget
        self.state.progress(
            {
                "done": done,
                "total": total,
                "ratio": (coming.get("choosing") or {}).get("ratio"),
                "text": f"measuring: {done} of at most {total} steps",
            }
        )

    def _side(self, coming: dict[str, Any], position: int) -> bool:
        """Which side runs. All ranks must agree, so there it follows from how many ran before."""
        if self.ranks is None:
            return bool(coming["replaced"])
        pair, second = divmod(position, 2)
        first = (pair * 2654435761 + _SEED) >> 7 & 1
        return bool(first ^ second)

    def _decided(self, done: bool, outcome: str) -> bool:
        """Is it over before the coming step? With ranks, rank 0 says so, for all at one step."""
        if self.ranks is None:
            return done
        if self.ranks.rank == 0 and done and not self.ranks.value(self.meeting):
            self.ranks.propose(self.meeting, outcome, self.boundaries.step)
        return self.ranks.due(self.meeting, self.boundaries.step)
