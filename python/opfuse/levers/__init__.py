"""Levers: what makes a step faster beside the edits of source code.

Each is tried live in alternating steps against the code as it is by then, and kept only if it wins;
then all that is kept is measured against the original.
"""

from __future__ import annotations

import time
from typing import Any

from opfuse import wording
from opfuse.levers.graph import GraphLever
from opfuse.levers.layout import LayoutLever
from opfuse.levers.lever import Agree, Alternate, Context, Lever, LeverRefused, Steps
from opfuse.levers.memory import MemoryLever
from opfuse.levers.optimizer import OptimizerLever
from opfuse.state import State

__all__ = ["Alternate", "LeverRefused", "LeverTrials", "LEVERS", "Steps", "Together"]

# Layout comes after the graph: most of its operators are for channels_last. Memory comes last:
# fresh pages cost the same time in any step, which is a larger share of a short one.
LEVERS: dict[str, type[Lever]] = {
    lever.name: lever for lever in (GraphLever, LayoutLever, OptimizerLever, MemoryLever)
}


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

    def __init__(self, state: State) -> None:
        self.state = state
        self.kept: list[Lever] = []
        self._trying: Lever | None = None

    def run(self, names: list[str], context: Context, alternate: Alternate, agree: Agree) -> Steps:
        """`agree(meeting, refusal)`: ranks go on together, or none of them does."""
        rows: list[dict[str, Any]] = []
        self.state.result["levers"] = rows
        self.boundaries = context.boundaries
        for name in names:
            row = {"name": name, "outcome": "refused", "reason": "", "kept": False}
            rows.append(row)
            refusal = ""
            try:
                yield from self._prepare(LEVERS[name](context), row)
            except LeverRefused as refused:
                refusal = str(refused)
            refusal = yield from agree(f"lever/{name}", refusal)
            if not refusal:
                try:
                    yield from self._measure(row, alternate)
                except LeverRefused as refused:  # by this rank alone
                    refusal = str(refused)
                    context.leave_ranks()
            if refusal:
                self._give_up(row, refusal)
        kept: list[Any] = [context.switch] if context.switch.on else []
        kept += self.kept
        if self.kept and len(kept) > 1:
            yield from self._all(Together(*kept), alternate)

    def _prepare(self, lever: Lever, row: dict[str, Any]) -> Steps:
        row.update(what=lever.what, lines=list(lever.lines), where=lever.where, outcome="running")
        self._trying = lever
        self._say(f"trying lever {lever.name}: {lever.what}", "measuring")
        begin = time.perf_counter()
        yield from lever.prepare()
        row.update(what=lever.what, prepare_s=round(time.perf_counter() - begin, 6))

    def _measure(self, row: dict[str, Any], alternate: Alternate) -> Steps:
        lever = self._trying
        assert lever is not None
        labels = (f"{lever.name}_off", f"{lever.name}_on")
        yield from alternate(lever, lambda ab: row.update(ab=ab), labels, lever.warm_steps)
        row.update(outcome=row["ab"]["outcome"], reason=wording.ratio(row["ab"]))
        row["kept"] = row["outcome"] == "tuned"
        self._trying = None
        if row["kept"]:
            lever.set(True)
            self.kept.append(lever)
        else:
            lever.drop()
        self._say(f"lever {lever.name} {'' if row['kept'] else 'not '}kept: {row['reason']}")

    def _give_up(self, row: dict[str, Any], refusal: str) -> None:
        if self._trying is not None:
            self._trying.drop()
            self._trying = None
        row.update(outcome="refused", reason=refusal)
        self._say(f"lever {row['name']}: {refusal}")

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
        if self._trying is not None:
            self._trying.drop()
        for lever in reversed(self.kept):
            lever.drop()
        self.kept.clear()
        self._trying = None

    def _say(self, text: str, phase: str = "") -> None:
        self.state.event(text, self.boundaries.step, phase)
